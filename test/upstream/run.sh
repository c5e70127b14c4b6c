#!/usr/bin/env bash
# Runs Kubernetes' own scheduler tests with dist-scheduler's node search. The tests have the version
# that go.mod pins. They are unmodified, except for a hook in scheduler.New (see prepare.sh).
#
#   run.sh [-run REGEXP] [-p N] [-race] ...     flags of go test
#
#   PACKAGES       packages of k8s.io/kubernetes to test (all packages that can use dist-scheduler's
#                  node search; expected.txt explains why others are left out)
#   SHORT          1: only some packages, which take three minutes
#   K1M_ATTACH     0: with upstream's search, for comparison
#   STORE          server that the tests start as etcd (bin/mem_etcd); etcd works as well
#   UPSTREAM_DIR   scratch directory (target/upstream)
#
# Fails unless the tests that fail or are skipped are exactly those in expected.txt. A test counts as
# passed only if dist-scheduler's node search was attached to a scheduler in it. Other passed tests are
# counted separately.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
scratch=$(realpath -m "${UPSTREAM_DIR:-$root/target/upstream}")
integration=k8s.io/kubernetes/test/integration
short=$integration/scheduler
for name in eventhandler extender; do short+=" $integration/scheduler/$name"; done
all="$short k8s.io/kubernetes/pkg/scheduler $integration/daemonset"
for name in bind filters nominated_node_name plugins preemption preemption/misc preemption/nominatednodename \
  prequeueinghint queueing scoring serving taint; do
  all+=" $integration/scheduler/$name"
done
packages=${PACKAGES:-$([[ ${SHORT:-} = 1 ]] && echo "$short" || echo "$all")}

# shellcheck source=test/kubernetes.sh
source "$root/test/kubernetes.sh"
# shellcheck disable=SC2086  # $packages is a list
"$here/prepare.sh" "$scratch" $packages
# If a server listens at this URL, the tests use that server instead of starting one. No server listens
# at port 1.
export KUBE_INTEGRATION_ETCD_URL=http://127.0.0.1:1
export PATH=$scratch/store:$PATH

log=$scratch/log.json
echo "testing Kubernetes' scheduler; log: $log"
cd "$root"
status=0
# -p 1 runs one package at a time, because tests depend on timeouts. Kubernetes vets its own code.
# shellcheck disable=SC2086  # $packages is a list
go test -modfile "$scratch/go.mod" -vet=off -json -p 1 -count 1 -timeout 60m "$@" $packages |
  tee "$log" |
  packages_of ||
  status=$?

# The results file contains the results of the tests, and after them the reports of the hook (see
# attach.go): "attached|left PACKAGE TEST" and "decided PACKAGE COUNTS".
results=$scratch/results.txt
{
  tests_of "$log"
  sed -nE '
    s/^\{"Time":"[^"]*","Action":"output","Package":"([^"]*)","Test":"(([^"\\]|\\.)*)","Output":"k1m: (attached|left).*/\4 \1 \2/p
    s/^\{"Time":"[^"]*","Action":"output","Package":"([^"]*)",("Test":"([^"\\]|\\.)*",)?"Output":"k1m: decided so far: ([^"\\]*).*/decided \1 \4/p
  ' "$log"
} >"$results"
awk -v filtered="$(filtered "$@")" -v status="$status" -v attach="${K1M_ATTACH:-1}" \
  -v subject="dist-scheduler's node search" \
  -f "$here/summary.awk" "$here/expected.txt" "$results"
