#!/usr/bin/env bash
# root.sh FOLDER: makes the root directory of a machine as a cloud has it: Debian with systemd, cloud-init, curl, and what
# nodes need. It needs root and debootstrap, and takes three minutes.
set -euo pipefail
root=$1
[ ! -e "$root/made" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
  echo "root.sh: needs root and debootstrap: install the Debian package debootstrap" >&2
  exit 1
fi
rm -rf "$root"
mkdir -p "${root%/*}"
mirror=$(grep -rhoE 'https?://[^ ]+/debian/?$' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -n 1 || true)
echo "==> Making the root directory of machines"
debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,ca-certificates,curl,iproute2,kmod,procps bookworm \
  "$root" "${mirror:-http://deb.debian.org/debian}" >"$root.log" 2>&1 ||
  { tail -n 20 "$root.log" >&2; exit 1; }
# Packages of kubelet: containers, their networks, and the firewall for Services.
chroot "$root" env DEBIAN_FRONTEND=noninteractive sh -ec '
  apt-get install --yes --no-install-recommends cloud-init containerd containernetworking-plugins iptables nftables conntrack
  apt-get clean
  systemctl disable containerd.service' >>"$root.log" 2>&1 ||
  { tail -n 20 "$root.log" >&2; exit 1; }
# It has no locales to choose from.
echo 'locale: false' >"$root/etc/cloud/cloud.cfg.d/90-machine.cfg"
touch "$root/made"
