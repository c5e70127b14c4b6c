#!/usr/bin/env bash
# release.sh images [PROGRAM...]: builds container images of all programs, or only of some, into target/images.
# release.sh dist: builds archives, Debian packages, an SBOM and checksums into target/dist.
# The version is that of Cargo.toml with the commit. All times are that of the commit, so the same commit gives the
# same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

images=(mem_etcd etcd-proxy kube-gateway node-sim dist-scheduler warm-controller-manager k1m)
packages=(mem_etcd kube-gateway dist-scheduler etcd-proxy)

revision=$(git rev-parse HEAD)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)+g${revision:0:12}
[ -z "$(git status --porcelain --untracked-files=no)" ] || version+=.dirty
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# description PROGRAM: the description of its unit.
description() { sed -n 's/^Description=[^,]*, //p' "deploy/systemd/$1.service"; }

# package PROGRAM: writes a Debian package. Names of packages have no underscores.
package() {
  local script
  mkdir -p target/packages
  for script in postinst prerm postrm; do sed "s/PROGRAM/$1/g" "deploy/packages/$script" >"target/packages/$script"; done
  PROGRAM=$1 PACKAGE=${1//_/-} VERSION=$version ARCH=$(go env GOARCH) DESCRIPTION=$(description "$1") \
    bin/nfpm package --config deploy/packages/nfpm.yaml --packager deb --target target/dist
}

case ${1:-} in
  images)
    shift
    [ $# -gt 0 ] || set -- "${images[@]}"
    build/static.sh "$@"
    # A tag has no plus sign.
    go run ./tools/images -version "${version//+/-}" -revision "$revision" -time "$SOURCE_DATE_EPOCH" "$@"
    ;;
  dist)
    build/static.sh "${images[@]}"
    rm -rf target/dist
    go run ./tools/dist archives -version "$version" -time "$SOURCE_DATE_EPOCH"
    for program in "${packages[@]}"; do package "$program"; done
    go run ./tools/dist sums -version "$version"
    ls -l target/dist
    ;;
  *)
    echo "release.sh: ${1:-no command}: use images or dist" >&2
    exit 2
    ;;
esac
