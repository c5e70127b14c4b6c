#!/usr/bin/env bash
# go.sh WHAT PACKAGE...: builds Go programs of modules that go.mod pins into bin/ and shows
# the progress. Kubernetes takes about 10 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/.."

what=$1
shift
mkdir -p bin

kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
IFS=. read -r major minor _ <<<"${kubernetes#v}"
# kubectl and kube-apiserver read their version from these variables.
stamp=""
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  stamp+=" -X $package.gitVersion=$kubernetes -X $package.gitMajor=$major -X $package.gitMinor=$minor"
  stamp+=" -X $package.gitTreeState=clean"
done

echo "==> Fetching the sources of $what"
total=$(go list -deps "$@" | wc -l)
echo "==> Building $what: $total packages, without those in the Go build cache"
start=$SECONDS
report() { printf '    %5d packages compiled, %dm%02ds\n' "$1" $(((SECONDS - start) / 60)) $(((SECONDS - start) % 60)); }

# go build -v prints the name of each package that it compiles to standard error. Any
# other line is a message for the user.
go build -v -o bin/ -ldflags "-s -w$stamp" "$@" 2>&1 | {
  count=0
  shown=$SECONDS
  while IFS= read -r line; do
    case $line in
      *[[:space:]]* | "") printf '%s\n' "$line" >&2 ;;
      *) count=$((count + 1)) ;;
    esac
    if ((SECONDS - shown >= 10)); then
      report "$count"
      shown=$SECONDS
    fi
  done
  if [ "$count" = 0 ]; then echo "    all packages were in the cache"; else report "$count"; fi
}
