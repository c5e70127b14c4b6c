#!/usr/bin/env bash
# go.sh NAME PACKAGE...: builds Go programs into bin/, or into the folder OUT, and shows the progress under NAME. The packages
# are in this module or in modules whose versions go.mod pins. Building Kubernetes takes about 10
# minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/.."

name=$1
shift
out=${OUT:-bin}
mkdir -p "$out"

kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
IFS=. read -r major minor _ <<<"${kubernetes#v}"
# The linker sets the variables from which Kubernetes programs read their version.
version_flags=""
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  version_flags+=" -X $package.gitVersion=$kubernetes -X $package.gitMajor=$major"
  version_flags+=" -X $package.gitMinor=$minor -X $package.gitTreeState=clean"
done

echo "==> Downloading the source code of $name"
total=$(go list -deps "$@" | wc -l)
echo "==> Building $name: $total packages; those in the Go build cache are not compiled again"
start=$SECONDS
print_progress() { printf '    %5d packages compiled, %dm%02ds\n' "$1" $(((SECONDS - start) / 60)) $(((SECONDS - start) % 60)); }

# go build -v prints the name of each package that it compiles to standard error. Lines with spaces
# are messages for the user.
go build -v -o "$out/" -ldflags "-s -w$version_flags" "$@" 2>&1 | {
  count=0
  last_progress=$SECONDS
  while IFS= read -r line; do
    case $line in
      *[[:space:]]* | "") printf '%s\n' "$line" >&2 ;;
      *) count=$((count + 1)) ;;
    esac
    if ((SECONDS - last_progress >= 10)); then
      print_progress "$count"
      last_progress=$SECONDS
    fi
  done
  if [ "$count" = 0 ]; then echo "    all packages were in the cache"; else print_progress "$count"; fi
}
