#!/usr/bin/env bash
# Runs all stages of the tests, even when one fails, and prints the numbers of passed and
# failed tests at the end. Logs are written to target/test/.
#   test/run.sh [STAGE...]   runs only these stages
set -uo pipefail
cd "$(dirname "$0")/.."

logs=target/test
mkdir -p "$logs"
stages=(lint rust go store conformance upstream e2e)
[ $# -gt 0 ] && stages=("$@")

lint() { build/check.sh; }
rust() { cargo test --workspace --locked; }
go_unit() { go test -v ./cmd/... ./internal/... ./pkg/... ./test/schedperf/... ./tools/...; }
store() { go test -v -count=1 -timeout 20m ./test/store/...; }
conformance() {
  local status=0
  test/conformance/run.sh || status=1
  # Run a part of the suite again through etcd-proxy, which records the requests.
  STORAGE=./pkg/storage/etcd3 test/conformance/recorded.sh storage \
    -run '^Test(Create|Get|Delete|GuaranteedUpdate|Watch)' || status=1
  return "$status"
}
upstream() { SHORT=1 test/upstream/run.sh; }
e2e() { go test -v -count=1 -timeout 30m ./test/e2e/...; }

# count LOG WORD: prints the number of tests in LOG with the result WORD (passed, failed).
count() {
  awk -v word="$2" '
    word == "passed" && /^[[:space:]]*--- PASS/ {n++}
    word == "failed" && /^[[:space:]]*--- FAIL/ {n++}
    /^test result:/ {for (i = 1; i < NF; i++) if ($(i + 1) == word ";") n += $i}
    /^[0-9]+ passed, [0-9]+ failed/ {for (i = 1; i < NF; i++) if ($(i + 1) ~ "^" word) n += $i}
    END {print n + 0}' "$1"
}

# run STAGE: runs the stage with its output in STAGE.log and writes its verdict and seconds
# to STAGE.verdict.
run() {
  local start=$SECONDS verdict=FAILED command=$1
  [ "$1" = go ] && command=go_unit
  echo "==> $1"
  "$command" >"$logs/$1.log" 2>&1 && verdict=ok
  echo "$verdict $((SECONDS - start))" >"$logs/$1.verdict"
  echo "    $1: $verdict after $((SECONDS - start))s"
}

rm -f "$logs"/*.log "$logs"/*.verdict
# The end-to-end tests wait for minutes until an API server has checked its cache. They
# run in the background while the other stages use the CPU.
background=""
for stage in "${stages[@]}"; do
  if [ "$stage" = e2e ]; then
    run e2e &
    background=$!
  fi
done
for stage in "${stages[@]}"; do
  [ "$stage" = e2e ] || run "$stage"
done
[ -z "$background" ] || wait "$background"

passed=0 failed=0 report=""
for stage in "${stages[@]}"; do
  log=$logs/$stage.log
  read -r verdict seconds <"$logs/$stage.verdict"
  here_passed=$(count "$log" passed) here_failed=$(count "$log" failed)
  # A stage whose log names no test counts as one test.
  if [ "$verdict" = FAILED ] && [ "$here_failed" = 0 ]; then here_failed=1; fi
  if [ "$verdict" = ok ] && [ "$here_passed" = 0 ]; then here_passed=1; fi
  if [ "$verdict" = FAILED ]; then
    printf '\n--- %s\n' "$log"
    grep -E '^[[:space:]]*--- FAIL|panicked at|^error|FAIL:' "$log" | head -n 40
    tail -n 40 "$log"
  fi
  passed=$((passed + here_passed)) failed=$((failed + here_failed))
  report+=$(printf '  %-12s %-7s %5d passed %3d failed  %4ds  %s' \
    "$stage" "$verdict" "$here_passed" "$here_failed" "$seconds" "$log")$'\n'
done

printf '\n%s\n' "$report"
echo "tests: $passed passed, $failed failed"
[ "$failed" = 0 ]
