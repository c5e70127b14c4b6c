#!/usr/bin/env bash
# Runs Kubernetes' own test suites against mem_etcd behind etcd-proxy, and reports the requests that
# the suites sent. The suites have the version that go.mod pins.
#
#   recorded.sh [storage|api] [flags of go test]    by default, both groups of suites
#
#   STORAGE    packages in the group storage, such as k8s.io/apiserver/pkg/storage/etcd3
#   API        packages of k8s.io/kubernetes/test/integration in the group api: packages that start
#              an API server in their process
#   TRACE_DIR  directory for traces and reports (target/recorded); the traces of earlier runs are
#              removed
#
# Fails if a test fails, or if records are missing in a trace.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
traces=$(realpath -m "${TRACE_DIR:-$root/target/recorded}")
storage=${STORAGE:-k8s.io/apiserver/pkg/storage/etcd3 k8s.io/apiserver/pkg/storage/cacher \
  k8s.io/apiserver/pkg/registry/generic/registry}
api=${API:-namespace secrets events pods deployment garbagecollector dryrun}

# shellcheck source=test/kubernetes.sh
source "$root/test/kubernetes.sh"
for program in mem_etcd etcd-proxy; do
  [ -x "$root/bin/$program" ] || { echo "${0##*/}: no bin/$program; run make build" >&2 && exit 2; }
done
suites=(storage api)
case ${1:-} in storage | api) suites=("$1") && shift ;; esac
cd "$root"

run_storage() {
  MEM_ETCD=$here/proxied.sh PACKAGES=$storage "$here/run.sh" "$@"
}

# The integration test framework starts the etcd that it finds in PATH. If a server listens at
# KUBE_INTEGRATION_ETCD_URL, it uses that server instead; so the URL has a port without a server.
run_api() {
  local packages=() log=$traces/api.log status=0
  for name in $api; do packages+=("k8s.io/kubernetes/test/integration/$name"); done
  mkdir -p "$traces/bin"
  ln -sf "$here/proxied.sh" "$traces/bin/etcd"
  # -p 1 runs one package at a time, because tests depend on timeouts.
  KUBE_INTEGRATION_ETCD_URL=http://127.0.0.1:1 PATH=$traces/bin:$PATH \
    go test -vet=off -json -p 1 -count 1 -timeout 30m "$@" "${packages[@]}" | tee "$log" | packages_of || status=$?
  tests_of "$log" | awk '
    $3 != "-" {n[$1]++; if ($1 == "fail") print "FAIL", $2, $3}
    $3 == "-" && $1 == "fail" {print "FAIL", $2}
    END {printf "%d passed, %d failed, %d skipped\n", n["pass"], n["fail"], n["skip"]}'
  return "$status"
}

status=0
for suite in "${suites[@]}"; do
  export TRACE_DIR=$traces/$suite
  mkdir -p "$TRACE_DIR"
  rm -f "$TRACE_DIR"/*.jsonl.zst
  "run_$suite" "$@" || status=1
  "$root/bin/etcd-proxy" report "$TRACE_DIR"/*.jsonl.zst -o json >"$traces/$suite.json"
  "$root/bin/etcd-proxy" report "$TRACE_DIR"/*.jsonl.zst --html "$traces/$suite.html" | tee "$traces/$suite.txt"
  if grep -q '"missingRecords": [1-9]' "$traces/$suite.json"; then
    echo "${0##*/}: records are missing in the traces of $suite" >&2
    status=1
  fi
  echo "report of $suite: $traces/$suite.html"
done
exit "$status"
