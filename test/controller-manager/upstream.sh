#!/usr/bin/env bash
# Runs Kubernetes' own integration tests of controllers with what warm-controller-manager changes. The tests have the
# version that go.mod pins, and two changes:
#
#   - tests that run a whole kube-controller-manager run warm-controller-manager (package through);
#   - tests that run single controllers give them informers that run already (package warm).
#
#   upstream.sh [-run REGEXP] [-p N] [-race] ...     flags of go test
#
#   PACKAGES       packages below k8s.io/kubernetes/test/integration to test (all of the two lists below)
#   SHORT          1: only some packages, which take a few minutes
#   WARM           0: without the changes, for comparison
#   STORE          server that the tests start as etcd (bin/mem_etcd); etcd works as well
#   UPSTREAM_DIR   scratch directory (target/upstream-controllers)
#
# Fails unless the tests that fail or are skipped are exactly those in expected.txt, and unless each package used what
# was changed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
scratch=$(realpath -m "${UPSTREAM_DIR:-$root/target/upstream-controllers}")
store=$(realpath "${STORE:-$root/bin/mem_etcd}")
integration=k8s.io/kubernetes/test/integration
whole="controllermanager clustertrustbundles storageversionmigrator"
single="certificates cronjob daemonset deployment disruption endpoints endpointslice evictions garbagecollector job
  namespace podgc quota replicaset replicationcontroller statefulset ttlcontroller volume"
short="controllermanager endpoints podgc replicationcontroller ttlcontroller"

# shellcheck source=test/kubernetes.sh
source "$root/test/kubernetes.sh"
require_program "$store" STORE
cd "$root"
copy_module k8s.io/kubernetes "$scratch"
server=cmd/kube-controller-manager/app/testing/testserver.go
own=github.com/k8s-1m/k8s-1m/test/controller-manager

# change FILE EXPRESSION: writes the file of the module with a sed expression, which must change it.
change() {
  sed -E "$2" "$source/$1" >"$scratch/changed.go"
  if [[ ${WARM:-1} = 0 ]]; then
    cp "$source/$1" "$scratch/changed.go"
  elif cmp -s "$source/$1" "$scratch/changed.go"; then
    echo "upstream.sh: $1 has changed in this version of Kubernetes: adapt the expression $2" >&2
    exit 1
  fi
  if ! cmp -s "$scratch/changed.go" "$copy/$1"; then cp "$scratch/changed.go" "$copy/$1"; fi
}

change "$server" "s|app\.Run\(ctx, config\.Complete|through.Run(ctx, config.Complete|; s|^(\t\"k8s.io/kubernetes/cmd/kube-controller-manager/app\")|\1\n\t\"$own/through\"|"
for package in $single; do
  while read -r file; do
    change "${file#"$source"/}" "s|^\t\"k8s.io/client-go/informers\"|\tinformers \"$own/warm\"|"
  done < <(grep -rl '^	"k8s.io/client-go/informers"' "$source/test/integration/$package")
done
replace_module k8s.io/kubernetes "$scratch"
store_as_etcd "$store" "$scratch"
# If a server listens at this URL, the tests use that server instead of starting one. No server listens at port 1.
export KUBE_INTEGRATION_ETCD_URL=http://127.0.0.1:1
export PATH=$scratch/store:$PATH

packages=()
for package in ${PACKAGES:-$([[ ${SHORT:-} = 1 ]] && echo "$short" || echo "$whole $single")}; do
  packages+=("$integration/$package")
done
log=$scratch/log.json
echo "testing controllers with Kubernetes' integration tests; log: $log"
status=0
# -p 1 runs one package at a time, because tests depend on timeouts.
go test -modfile "$scratch/go.mod" -vet=off -json -p 1 -count 1 -timeout 60m "$@" "${packages[@]}" |
  tee "$log" |
  packages_of ||
  status=$?
results=$scratch/results.txt
# The summary counts a test if its package used what was changed, which is checked below.
{
  tests_of "$log"
  tests_of "$log" | awk '{print "attached", $2, $3}'
} >"$results"
failed=0
awk -v filtered="$(filtered "$@")" -v status="$status" -v attach="${WARM:-1}" -v subject=warm-controller-manager \
  -f "$root/test/upstream/summary.awk" "$here/expected.txt" "$results" || failed=1
for package in "${packages[@]}"; do
  if [[ ${WARM:-1} != 0 ]] && ! grep -q "\"Package\":\"$package\".*\"Output\":\"[^\"]*k1m: attached" "$log"; then
    echo "NOT USED $package: its tests ran without warm informers or warm-controller-manager"
    failed=1
  fi
done
exit "$failed"
