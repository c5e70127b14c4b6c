#!/usr/bin/env bash
# test/run.sh [STAGE...]: runs the stages of `make test`, or only the given ones. A failed stage does
# not end the run. The last line is the number of passed, failed and skipped tests. The logs are written
# to target/test/.
#
# The stage gateway-upstream runs only if it is given: it compiles Kubernetes' API server and its tests again, which
# takes ten minutes.
set -uo pipefail
cd "$(dirname "$0")/.."

logs=target/test
mkdir -p "$logs"
stages=(lint rust go store conformance upstream deploy network e2e)
[ $# -gt 0 ] && stages=("$@")

lint() { build/check.sh; }
rust() { cargo test --workspace --locked; }
go_unit() { go test -v -timeout 30m ./cmd/... ./internal/... ./pkg/... ./test/schedperf/... ./tools/...; }
store() { go test -v -count=1 -timeout 60m ./test/store/... ./test/store-cluster/...; }
conformance() {
  local status=0
  test/conformance/run.sh || status=1
  # Run a part of the suites again through etcd-proxy, which records the requests.
  STORAGE=k8s.io/apiserver/pkg/storage/etcd3 test/conformance/recorded.sh storage \
    -run '^Test(Create|Get|Delete|GuaranteedUpdate|Watch)' || status=1
  return "$status"
}
upstream() { SHORT=1 test/upstream/run.sh; }
gateway-upstream() { SHORT=1 test/gateway-upstream/run.sh; }
deploy() {
  # They are built here, while the end-to-end stage waits: no other stage needs them.
  make bin/helm bin/kubeconform || return 1
  go test -v -count=1 -p 1 -timeout 30m ./test/controller-manager ./test/deploy ./test/machines ./test/operations
}
# Their labs are network namespaces. Without the right to create these, the tests are skipped, and the last lines say so.
network() {
  make bin/network-agent bin/network-gateway bin/cni/bridge bin/cni/host-local || return 1
  go test -v -count=1 -p 1 -timeout 20m ./test/network/...
}
# One package after the other: the tests of each measure or wait for real processes.
e2e() { go test -v -count=1 -p 1 -timeout 90m ./test/e2e/... ./test/gateway/... ./test/node-path/... ./test/node-sim/... ./test/oracle/...; }

# count LOG RESULT: prints the number of tests in LOG with this result (passed or failed). It
# understands the outputs of Go tests, Rust tests and the summary.awk scripts.
count() {
  awk -v result="$2" '
    result == "passed" && /^[[:space:]]*--- PASS/ {n++}
    result == "failed" && /^[[:space:]]*--- FAIL/ {n++}
    /^test result:/ {for (i = 1; i < NF; i++) if ($(i + 1) == result ";") n += $i}
    /^[0-9]+ passed, [0-9]+ failed/ {for (i = 1; i < NF; i++) if ($(i + 1) ~ "^" result) n += $i}
    END {print n + 0}' "$1"
}

# explain LOG: prints why tests in LOG failed: the last lines that each failed Go test printed, or the lines that
# name an error. A verbose log has the result of a test far below its messages.
explain() {
  awk -v most=40 '
    /^=== (RUN|CONT|NAME) / {name = $3; next}
    /^[[:space:]]*--- FAIL: / {
      print
      first = lines[$3] > most ? lines[$3] - most : 0
      for (i = first; i < lines[$3]; i++) print printed[$3, i % most]
      lines[$3] = 0
      next
    }
    /panicked at|^error|^FAIL|^panic:|DATA RACE/ {print; next}
    /^[[:space:]]*---/ {name = ""; next}
    name != "" {printed[name, lines[name]++ % most] = "    " substr($0, 1, 2000)}' "$1" | head -n 200
}

# run STAGE: runs the stage, writes its output to STAGE.log, and writes its verdict (ok or FAILED) and
# its duration in seconds to STAGE.verdict.
run() {
  local start=$SECONDS verdict=FAILED command=$1
  [ "$1" = go ] && command=go_unit
  echo "==> $1"
  "$command" >"$logs/$1.log" 2>&1 && verdict=ok
  echo "$verdict $((SECONDS - start))" >"$logs/$1.verdict"
  echo "    $1: $verdict after $((SECONDS - start))s"
}

rm -f "$logs"/*.log "$logs"/*.verdict
# Most of the end-to-end stage is waiting: one test waits for minutes until an API server has checked
# the consistency of its watch cache. So it runs beside the other stages, and takes about as long as these
# together.
for stage in "${stages[@]}"; do
  if [ "$stage" = e2e ]; then run "$stage"; fi
done &
background=$!
for stage in "${stages[@]}"; do
  if [ "$stage" != e2e ]; then run "$stage"; fi
done
wait "$background"

passed=0 failed=0 skipped=0 report=""
for stage in "${stages[@]}"; do
  log=$logs/$stage.log
  read -r verdict seconds <"$logs/$stage.verdict"
  stage_passed=$(count "$log" passed) stage_failed=$(count "$log" failed)
  # A successful stage has at least one passed test, and a failed stage at least one failed test.
  if [ "$verdict" = FAILED ] && [ "$stage_failed" = 0 ]; then stage_failed=1; fi
  if [ "$verdict" = ok ] && [ "$stage_passed" = 0 ]; then stage_passed=1; fi
  if [ "$verdict" = FAILED ]; then
    printf '\n--- %s\n' "$log"
    explain "$log"
    tail -n 20 "$log"
  fi
  passed=$((passed + stage_passed)) failed=$((failed + stage_failed))
  skipped=$((skipped + $(grep -cE '^[[:space:]]*--- SKIP' "$log")))
  report+=$(printf '  %-16s %-7s %5d passed %3d failed  %4ds  %s' \
    "$stage" "$verdict" "$stage_passed" "$stage_failed" "$seconds" "$log")$'\n'
done

printf '\n%s\n' "$report"
echo "tests: $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
