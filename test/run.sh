#!/usr/bin/env bash
# test/run.sh [STAGE...]: runs the stages of `make test`, or only the given ones. A failed stage does
# not end the run. The last lines are a table of the stages with their times, and the number of passed, failed and
# skipped tests. The logs are written to target/test/.
#
# `make test` first builds the programs that the stages test. Given stages expect them in bin/.
#
# The stage gateway-upstream runs only if it is given: it compiles Kubernetes' API server and its tests again, which
# takes ten minutes.
set -uo pipefail
cd "$(dirname "$0")/.."

logs=target/test
mkdir -p "$logs"
builds=(go-programs rust-programs)
# Stages that wait for real clusters come first, those that keep all cores busy last: see run_all.
stages=(e2e components store network deploy upstream conformance go rust lint)
if [ $# -gt 0 ]; then builds=() stages=("$@"); fi

go-programs() { make --no-print-directory go-programs; }
rust-programs() { make --no-print-directory rust-programs; }
lint() { build/check.sh; }
rust() { cargo test --workspace --locked --profile "${RUST_PROFILE:-dev}"; }

# tested FLAG... PACKAGE...: runs Go tests. The stage lint vets their packages, with more checks than `go test` does.
tested() { go test -vet=off -v "$@"; }

go_unit() { tested -timeout 30m ./cmd/... ./internal/... ./pkg/... ./test/schedperf/... ./tools/...; }
store() { tested -count=1 -timeout 60m ./test/store/... ./test/store-cluster/...; }
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
  # They are built here, while another stage waits: no other stage needs them.
  make bin/helm bin/kubeconform || return 1
  tested -count=1 -p 1 -timeout 30m ./test/controller-manager ./test/deploy ./test/machines ./test/operations
}
# Their labs are network namespaces. Without the right to create these, the tests are skipped, and the last lines say so.
network() {
  make bin/network-agent bin/network-gateway bin/cni/bridge bin/cni/host-local || return 1
  tested -count=1 -p 1 -timeout 20m ./test/network/...
}
# One package after the other: the tests of each measure or wait for real processes.
e2e() { tested -count=1 -p 1 -timeout 90m ./test/e2e/...; }
components() { tested -count=1 -p 1 -timeout 90m ./test/gateway/... ./test/node-path/... ./test/node-sim/... ./test/oracle/...; }

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

# run_each STAGE...: runs those of the stages, in this order, that no other run_each has begun.
run_each() {
  local stage
  for stage in "$@"; do
    if mkdir "$logs/$stage.begun" 2>/dev/null; then run "$stage"; fi
  done
}

# run_all STAGE...: runs the stages, two at once. One lane begins with the first, the other with the last, and they
# end at about the same time. So a stage that waits runs beside one that computes as long as there are both.
run_all() {
  local stage backwards=()
  for stage in "$@"; do backwards=("$stage" "${backwards[@]}"); done
  run_each "$@" &
  run_each "${backwards[@]}"
  wait
}

# report STAGE...: prints why stages failed, then a table of all stages and the sums of their tests. The last line
# names the stages that failed.
report() {
  local stage log verdict seconds of_stage broken table="" failures="" passed=0 failed=0 skipped=0
  for stage in "$@"; do
    log=$logs/$stage.log
    read -r verdict seconds <"$logs/$stage.verdict"
    of_stage=$(count "$log" passed) broken=$(count "$log" failed)
    # A successful stage has at least one passed test, and a failed stage at least one failed test.
    if [ "$verdict" = FAILED ] && [ "$broken" = 0 ]; then broken=1; fi
    if [ "$verdict" = ok ] && [ "$of_stage" = 0 ]; then of_stage=1; fi
    # Builds are no tests.
    if [[ $stage = *-programs ]]; then of_stage=0; fi
    if [ "$verdict" = FAILED ]; then
      printf '\n--- %s\n' "$log"
      explain "$log"
      tail -n 20 "$log"
      failures+=" $stage"
    fi
    passed=$((passed + of_stage)) failed=$((failed + broken))
    skipped=$((skipped + $(grep -cE '^[[:space:]]*--- SKIP' "$log")))
    table+=$(printf '  %-16s %-7s %5d passed %3d failed  %4ds  %s' \
      "$stage" "$verdict" "$of_stage" "$broken" "$seconds" "$log")$'\n'
  done
  printf '\n%s  two stages at once, %ds in all\n\n' "$table" $((SECONDS - started))
  echo "tests: $passed passed, $failed failed, $skipped skipped${failures:+; failed stages:$failures}"
  [ "$failed" = 0 ]
}

rm -rf "$logs"/*.log "$logs"/*.verdict "$logs"/*.begun
started=$SECONDS
if [ ${#builds[@]} != 0 ]; then
  run_all "${builds[@]}"
  # Without all programs, no stage can tell anything.
  if grep -q FAILED "$logs"/*.verdict; then stages=(); fi
fi
run_all "${stages[@]}"
report "${builds[@]}" "${stages[@]}"
