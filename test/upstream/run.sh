#!/usr/bin/env bash
# Runs Kubernetes' own scheduler tests with our search in place, in the version that
# go.mod pins and unmodified but for a hook in scheduler.New (see prepare.sh).
#
#   run.sh [-run REGEXP] [-p N] [-race] ...     flags of go test
#
#   PACKAGES       packages of k8s.io/kubernetes to test: all that our search can be
#                  put into; expected.txt says which are left out, and why
#   SHORT          1: only some packages, in three minutes
#   K1M_ATTACH     0: with upstream's search, to compare
#   STORE          what serves as etcd (bin/mem_etcd); etcd works as well
#   UPSTREAM_DIR   scratch directory (target/upstream)
#
# Fails unless exactly the tests that expected.txt lists fail or are skipped. A test
# counts for ours only if a scheduler was made in it that our search was attached to;
# the others are counted apart.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
scratch=$(realpath -m "${UPSTREAM_DIR:-$root/target/upstream}")
integration=k8s.io/kubernetes/test/integration
short=$integration/scheduler
for below in eventhandler extender; do short+=" $integration/scheduler/$below"; done
whole="$short k8s.io/kubernetes/pkg/scheduler $integration/daemonset"
for below in bind filters nominated_node_name plugins preemption preemption/misc preemption/nominatednodename \
  prequeueinghint queueing scoring serving taint; do
  whole+=" $integration/scheduler/$below"
done
packages=${PACKAGES:-$([[ ${SHORT:-} = 1 ]] && echo "$short" || echo "$whole")}

# shellcheck source=test/kubernetes.sh
source "$root/test/kubernetes.sh"
# shellcheck disable=SC2086  # $packages is a list
"$here/prepare.sh" "$scratch" $packages
# An etcd that happens to run here is not for the tests to fill.
export KUBE_INTEGRATION_ETCD_URL=http://127.0.0.1:1
export PATH=$scratch/store:$PATH

log=$scratch/log.json
echo "scheduler tests of Kubernetes, log in $log"
cd "$root"
status=0
# -p 1: packages one after the other, because their tests time things.
# shellcheck disable=SC2086  # $packages is a list
go test -modfile "$scratch/go.mod" -json -p 1 -count 1 -timeout 60m "$@" $packages |
  tee "$log" |
  packages_of ||
  status=$?

# The tests, and from our hook "attached|left package test" and "decided package
# counts...", after them.
results=$scratch/results.txt
{
  tests_of "$log"
  sed -nE '
    s/^\{"Time":"[^"]*","Action":"output","Package":"([^"]*)","Test":"(([^"\\]|\\.)*)","Output":"k1m: (attached|left).*/\4 \1 \2/p
    s/^\{"Time":"[^"]*","Action":"output","Package":"([^"]*)",("Test":"([^"\\]|\\.)*",)?"Output":"k1m: decided so far: ([^"\\]*).*/decided \1 \4/p
  ' "$log"
} >"$results"
awk -v filtered="$(filtered "$@")" -v status="$status" -v attach="${K1M_ATTACH:-1}" \
  -f "$here/summary.awk" "$here/expected.txt" "$results"
