#!/usr/bin/env bash
# Runs Kubernetes' own storage tests against mem_etcd. The tests have the version that go.mod pins.
# They are unmodified, except for the file that starts the server.
#
#   run.sh [-short] [-run REGEXP] [-race] ...     flags of go test
#
# The flag -count is not supported: some suites compare metrics of the whole test process, and fail
# when they run a second time in the same process.
#
#   MEM_ETCD         server under test (bin/mem_etcd); etcd works as well
#   ETCD_WAL_MODE    WAL mode of mem_etcd (buffered)
#   STORE_MEMBERS    members of each server (1); the suites then have the endpoints of all members
#   ETCD_REPLICATION_LOG  log of each of several members of mem_etcd (buffered)
#   PACKAGES         packages to test, such as k8s.io/apiserver/pkg/storage/etcd3
#   CONFORMANCE_DIR  scratch directory (target/conformance)
#
# Fails unless the tests that fail or are skipped are exactly those in expected.txt.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
scratch=$(realpath -m "${CONFORMANCE_DIR:-$root/target/conformance}")
apiserver=k8s.io/apiserver/pkg
MEM_ETCD=$(realpath "${MEM_ETCD:-$root/bin/mem_etcd}")
export MEM_ETCD
packages=${PACKAGES:-$apiserver/storage/etcd3/... $apiserver/storage/cacher/... \
  $apiserver/storage/storagebackend/factory/... $apiserver/registry/generic/registry/...}

# shellcheck source=test/kubernetes.sh
source "$root/test/kubernetes.sh"
require_program "$MEM_ETCD" MEM_ETCD
cd "$root"
copy_module k8s.io/apiserver "$scratch"
cp "$here/testdata/test_server.go" "$copy/pkg/storage/etcd3/testserver/test_server.go"
# The suites are built with the versions of all modules that this repository builds kube-apiserver with. With those
# of apiserver's own go.mod, nearly all packages would be compiled a second time.
replace_module k8s.io/apiserver "$scratch"

log=$scratch/log.json
echo "testing k8s.io/apiserver $version with $MEM_ETCD; log: $log"
status=0
# -p 1 runs one package at a time, because tests depend on timeouts. Kubernetes vets its own code.
# shellcheck disable=SC2086  # $packages is a list
go test -modfile "$scratch/go.mod" -vet=off -json -p 1 -count 1 -timeout 30m "$@" $packages |
  tee "$log" |
  packages_of ||
  status=$?

results=$scratch/results.txt
tests_of "$log" >"$results"
awk -v filtered="$(filtered "$@")" -v status="$status" -f "$here/summary.awk" "$here/expected.txt" "$results"
