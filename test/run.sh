#!/usr/bin/env bash
# Runs every test, all of them even when one fails, and says at the end what
# passed and what failed. Logs stay in target/test/.
#   test/run.sh [STAGE...]   only these
set -uo pipefail
cd "$(dirname "$0")/.."

logs=target/test
mkdir -p "$logs"
stages=(lint rust go store conformance upstream e2e)
[ $# -gt 0 ] && stages=("$@")

lint() { build/check.sh; }
rust() { cargo test --workspace --locked; }
go_unit() { go test -v ./cmd/... ./internal/... ./pkg/... ./test/schedperf/...; }
store() { go test -v -count=1 -timeout 20m ./test/store/...; }
conformance() {
  local status=0
  test/conformance/run.sh || status=1
  # A part of them once more, recorded.
  STORAGE=./pkg/storage/etcd3 test/conformance/recorded.sh storage \
    -run '^Test(Create|Get|Delete|GuaranteedUpdate|Watch)' || status=1
  return "$status"
}
upstream() { SHORT=1 test/upstream/run.sh; }
e2e() { go test -v -count=1 -timeout 30m ./test/e2e/...; }

# count LOG WORD: tests that a log says have WORD (passed, failed).
count() {
  awk -v word="$2" '
    word == "passed" && /^[[:space:]]*--- PASS/ {n++}
    word == "failed" && /^[[:space:]]*--- FAIL/ {n++}
    /^test result:/ {for (i = 1; i < NF; i++) if ($(i + 1) == word ";") n += $i}
    /^[0-9]+ passed, [0-9]+ failed/ {for (i = 1; i < NF; i++) if ($(i + 1) ~ "^" word) n += $i}
    END {print n + 0}' "$1"
}

# run STAGE: its output goes to its log; verdict and seconds to files beside it.
run() {
  local start=$SECONDS verdict=FAILED command=$1
  [ "$1" = go ] && command=go_unit
  echo "==> $1"
  "$command" >"$logs/$1.log" 2>&1 && verdict=ok
  echo "$verdict $((SECONDS - start))" >"$logs/$1.verdict"
  echo "    $1: $verdict after $((SECONDS - start))s"
}

rm -f "$logs"/*.log "$logs"/*.verdict
# The end-to-end test mostly waits for an API server to check its cache, which
# takes it minutes; the others use that time.
beside=""
for stage in "${stages[@]}"; do
  if [ "$stage" = e2e ]; then
    run e2e &
    beside=$!
  fi
done
for stage in "${stages[@]}"; do
  [ "$stage" = e2e ] || run "$stage"
done
[ -z "$beside" ] || wait "$beside"

passed=0 failed=0 report=""
for stage in "${stages[@]}"; do
  log=$logs/$stage.log
  read -r verdict seconds <"$logs/$stage.verdict"
  here_passed=$(count "$log" passed) here_failed=$(count "$log" failed)
  # A stage that fails without naming a test, or has none to name, counts as one.
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
