#!/bin/sh
# bundle.sh MACHINE FILES DIRECTORY: prints a tar archive with the certificates and kubeconfigs of a machine. FILES is the
# output `files` of the Terraform module, and DIRECTORY is where kubeadm has written them (/etc/kubernetes).
set -eu
if [ $# != 3 ]; then
  echo "usage: bundle.sh MACHINE FILES DIRECTORY > bundle.tar" >&2
  exit 2
fi
umask 077
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
group=
while read -r machine path source owner; do
  [ "$machine" = "$1" ] || continue
  if [ ! -f "$3/$source" ]; then
    echo "bundle.sh: $3/$source is missing: create it with kubeadm before" >&2
    exit 1
  fi
  mkdir -p "$folder/files/${path%/*}"
  cp "$3/$source" "$folder/files/$path"
  group=$owner
done <"$2"
if [ -z "$group" ]; then
  echo "bundle.sh: $1: $2 has no such machine" >&2
  exit 1
fi
# The names of the owners are those of the machine where the archive is unpacked. Folders are not in it: they exist there.
(cd "$folder/files" && find . -type f | sort | tar --create --files-from - --owner=root --group="$group" --mode=640)
