#!/usr/bin/env bash
# fuzz.sh TIME: runs each fuzz target, and each Rust test with random input, for TIME
# (60s, 5m). Failing inputs are kept: for Go in testdata/fuzz of the package, for Rust in
# *.seeds files or proptest-regressions.
set -euo pipefail
cd "$(dirname "$0")/.."

time=${1:-60s}
case $time in
  *[!0-9sm]* | "" | s | m) echo "FUZZTIME=$time: write it like 60s or 5m" >&2; exit 2 ;;
  *m) seconds=$((${time%m} * 60)) ;;
  *) seconds=${time%s} time=${time%s}s ;;
esac

# All Go fuzz targets.
grep -rno --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' cmd internal pkg test | sort | while IFS=: read -r file _ name; do
  name=${name#func } package=./$(dirname "$file")
  echo "==> $package $name, $time"
  go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$package"
done

# Cases per round of a Rust test. A case of pipeline's repair test takes a second.
cases=200
# rust PACKAGE [ARGUMENT...] -- [TEST...]: repeats tests with random cases, with new seeds
# in each round, until the time is over.
rust() {
  echo "==> cargo test -p $*, $time"
  local until=$((SECONDS + seconds)) rounds=0 log
  log=$(mktemp)
  while ((rounds == 0 || SECONDS < until)); do
    PROPTEST_CASES=1000 FUZZ_CASES=$cases cargo test --quiet --locked -p "$@" >"$log" 2>&1 || { cat "$log"; rm "$log"; return 1; }
    rounds=$((rounds + 1))
  done
  grep -h '^test result' "$log" | grep -v ' 0 passed' || { echo "no such tests: $*" >&2; rm "$log"; return 1; }
  echo "    $rounds rounds"
  rm "$log"
}
cargo test --quiet --locked --no-run -p http2 -p grpc -p trace -p etcd-proxy -p wal -p snapshot -p pipeline -p fuzz 2>/dev/null
rust http2 --lib -- hpack::
rust grpc --lib -- fuzz:: assembler::
rust trace --lib -- decode::
rust etcd-proxy -- tap:: frames::
rust wal --test fuzz
rust snapshot --test fuzz
cases=10 rust pipeline --test repair
rust fuzz
