#!/usr/bin/env bash
# release.sh images [PROGRAM...]: builds container images of all programs, or only of some, into target/images.
# The version is that of Cargo.toml with the commit. All times are that of the commit, so the same commit gives the
# same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

images=(mem_etcd etcd-proxy kube-gateway node-sim dist-scheduler warm-controller-manager)

revision=$(git rev-parse HEAD)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)+g${revision:0:12}
[ -z "$(git status --porcelain --untracked-files=no)" ] || version+=.dirty
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

case ${1:-} in
  images)
    shift
    [ $# -gt 0 ] || set -- "${images[@]}"
    build/static.sh "$@"
    # A tag has no plus sign.
    go run ./tools/images -version "${version//+/-}" -revision "$revision" -time "$SOURCE_DATE_EPOCH" "$@"
    ;;
  *)
    echo "release.sh: ${1:-no command}: use images" >&2
    exit 2
    ;;
esac
