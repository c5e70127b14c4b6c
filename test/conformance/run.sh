#!/usr/bin/env bash
# Runs Kubernetes' own storage tests against mem_etcd, in the version that go.mod
# pins and unmodified but for the file that starts the server.
#
#   run.sh [-short] [-run REGEXP] [-race] ...     flags of go test
#
# Not -count: some of the suites compare metrics of their whole process, so they
# pass only once in each.
#
#   MEM_ETCD         server under test (bin/mem_etcd); etcd works as well
#   ETCD_WAL_MODE    mem_etcd's durability (buffered)
#   PACKAGES         packages of k8s.io/apiserver to test
#   CONFORMANCE_DIR  scratch directory (target/conformance)
#
# Fails unless exactly the tests that expected.txt lists fail or are skipped.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
scratch=${CONFORMANCE_DIR:-$root/target/conformance}
MEM_ETCD=$(realpath "${MEM_ETCD:-$root/bin/mem_etcd}")
export MEM_ETCD
packages=${PACKAGES:-./pkg/storage/etcd3/... ./pkg/storage/cacher/... \
  ./pkg/storage/storagebackend/factory/... ./pkg/registry/generic/registry/...}

if [[ ! -x $MEM_ETCD ]]; then
  echo "run.sh: no program at $MEM_ETCD: build it, or set MEM_ETCD" >&2
  exit 2
fi

# A copy, because the module cache is read-only and shared. One per version, and
# kept, because the tests are then compiled only once.
cd "$root"
read -r version source < <(go list -m -f '{{.Version}} {{.Dir}}' k8s.io/apiserver)
copy=$scratch/apiserver@$version
if [[ ! -d $copy ]]; then
  mkdir -p "$scratch"
  rm -rf "$copy.partial"
  cp -r "$source" "$copy.partial"
  chmod -R u+w "$copy.partial"
  mv "$copy.partial" "$copy"
fi
cp "$here/testdata/test_server.go" "$copy/pkg/storage/etcd3/testserver/test_server.go"

log=$scratch/log.json
echo "k8s.io/apiserver $version against $MEM_ETCD, log in $log"
cd "$copy"
status=0
# -p 1: packages one after the other, because their tests time things.
# shellcheck disable=SC2086  # $packages is a list
GOWORK=off go test -json -p 1 -count 1 -timeout 30m "$@" $packages |
  tee "$log" |
  sed -unE 's/^\{"Time":"[^"]*","Action":"(pass|fail)","Package":"([^"]*)","Elapsed".*/\1 \2/p' ||
  status=$?

# What remains of the log is "pass|fail|skip package test seconds", "-" standing
# for the package itself. Output of tests cannot match: it follows the names.
results=$scratch/results.txt
sed -nE '
  s/^\{"Time":"[^"]*","Action":"(pass|fail|skip)","Package":"([^"]*)","Test":"(([^"\\]|\\.)*)","Elapsed":([0-9.e-]*).*/\1 \2 \3 \5/p
  s/^\{"Time":"[^"]*","Action":"(pass|fail|skip)","Package":"([^"]*)","Elapsed":([0-9.e-]*).*/\1 \2 - \3/p
' "$log" >"$results"

filtered=false
for arg in "$@"; do
  case $arg in -run | -run=* | --run | --run=* | -short | --short | -skip | -skip=*) filtered=true ;; esac
done

awk -v filtered="$filtered" -v status="$status" -f "$here/summary.awk" "$here/expected.txt" "$results"
