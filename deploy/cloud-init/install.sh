#!/bin/sh
# Installs what the user data of a machine names, and checks its SHA-256 sum.
#   install.sh debian NAME...           packages of the distribution
#   install.sh package NAME URL SHA256  a Debian package
#   install.sh program NAME URL SHA256  a program, to /usr/local/bin
set -eu
kind=$1
shift
export DEBIAN_FRONTEND=noninteractive
if [ "$kind" = debian ]; then
  dpkg --status "$@" >/dev/null 2>&1 && exit
  apt-get update
  exec apt-get install --yes --no-install-recommends "$@"
fi
name=$1 url=$2 sum=$3
file=/var/cache/k8s-1m/$name.deb
mkdir -p "${file%/*}"
curl --fail --silent --show-error --location --retry 20 --retry-all-errors --output "$file" "$url"
if ! echo "$sum  $file" | sha256sum --check --status; then
  echo "install.sh: $url has another SHA-256 sum than $sum: correct the sum or the URL" >&2
  exit 1
fi
case $kind in
  package) apt-get install --yes --no-install-recommends "$file" ;;
  program) install -m 755 "$file" "/usr/local/bin/$name" ;;
  *)
    echo "install.sh: $kind: choose debian, package or program" >&2
    exit 2
    ;;
esac
rm "$file"
