#!/usr/bin/env bash
# boot.sh ROOT NAME CGROUP: boots the systemd in a root directory in namespaces of its own, but for the network: it is that
# of the caller. CGROUP is the name of its groups in each hierarchy of cgroup v1.
set -euo pipefail
root=$1 name=$2 group=$3
for hierarchy in /sys/fs/cgroup/*/; do
  hierarchy=${hierarchy%/}
  [ ! -L "$hierarchy" ] || continue
  mkdir -p "$hierarchy/$group"
  # A group without processors and memory takes no processes.
  for file in cpuset.cpus cpuset.mems; do
    [ ! -e "$hierarchy/$file" ] || cat "$hierarchy/$file" >"$hierarchy/$group/$file"
  done
  echo $$ >"$hierarchy/$group/cgroup.procs"
done
exec unshare --mount --pid --fork --cgroup --uts --ipc --kill-child bash -euc '
root=$1
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
for device in null zero full random urandom tty kmsg; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t devpts devpts "$root/dev/pts" -o newinstance,ptmxmode=0666
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
# The list is complete before the first of them is mounted again.
hierarchies=$(while read -r _ mounted type options _; do
  [ "$type" = cgroup ] || [ "$type" = cgroup2 ] || continue
  kept=$(echo "$options" | tr , "\n" | grep -vE "^(rw|ro|relatime|nosuid|nodev|noexec)$" | paste -sd , || true)
  case $kept in name=*) kept=none,$kept ;; "") kept=rw ;; esac
  echo "$type $kept ${mounted##*/}"
done </proc/mounts)
while read -r type options folder; do
  mkdir "$root/sys/fs/cgroup/$folder"
  mount -t "$type" -o "$options" cgroup "$root/sys/fs/cgroup/$folder"
done <<<"$hierarchies"
# Settings of the kernel are those of this machine, but for the network.
mkdir "$root/run/net"
mount --bind "$root/proc/sys/net" "$root/run/net"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount --move "$root/run/net" "$root/proc/sys/net"
# kubelet sets these. It finds them set.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file=/run/${setting%=*}
  mkdir -p "$root${file%/*}"
  echo "${setting#*=}" >"$root$file"
  mount --bind "$root$file" "$root/proc/sys/${setting%=*}"
done
hostname "$2"
cd "$root"
pivot_root . mnt
umount -l /mnt
exec env -i container=k8s-1m-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init --log-target=console --show-status=0
' sh "$root" "$name"
