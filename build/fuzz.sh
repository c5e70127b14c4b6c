#!/usr/bin/env bash
# fuzz.sh TIME: runs each Go fuzz target, and each group of Rust tests with random input, for TIME
# (60s, 5m). Failing inputs are saved: of Go in testdata/fuzz of the package, of Rust in *.seeds
# files or proptest-regressions.
set -euo pipefail
cd "$(dirname "$0")/.."

time=${1:-60s}
case $time in
  *[!0-9sm]* | "" | s | m) echo "FUZZTIME=$time is not a duration such as 60s or 5m" >&2; exit 2 ;;
  *m) seconds=$((${time%m} * 60)) ;;
  *) seconds=${time%s} time=${time%s}s ;;
esac

# All Go fuzz targets.
grep -rno --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' cmd internal pkg test | sort | while IFS=: read -r file _ name; do
  name=${name#func } package=./$(dirname "$file")
  echo "==> $package $name, $time"
  go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$package"
done

# FUZZ_CASES of a Rust test: the number of random cases in one round.
cases=200
# fuzz_rust PACKAGE [ARGUMENT...] -- [TEST...]: runs the tests in rounds, each with new random cases,
# until the time is over.
fuzz_rust() {
  echo "==> cargo test -p $*, $time"
  local until=$((SECONDS + seconds)) rounds=0 log
  log=$(mktemp)
  while ((rounds == 0 || SECONDS < until)); do
    PROPTEST_CASES=1000 FUZZ_CASES=$cases cargo test --quiet --locked -p "$@" >"$log" 2>&1 || { cat "$log"; rm "$log"; return 1; }
    rounds=$((rounds + 1))
  done
  grep -h '^test result' "$log" | grep -v ' 0 passed' || { echo "no test matches: $*" >&2; rm "$log"; return 1; }
  echo "    $rounds rounds"
  rm "$log"
}
cargo test --quiet --locked --no-run -p http2 -p grpc -p trace -p etcd-proxy -p wal -p snapshot -p pipeline -p fuzz 2>/dev/null
fuzz_rust http2 --lib -- hpack::
fuzz_rust grpc --lib -- fuzz:: assembler::
fuzz_rust trace --lib -- decode::
fuzz_rust etcd-proxy -- tap:: frames::
fuzz_rust wal --test fuzz
fuzz_rust snapshot --test fuzz
# A case of this test takes about a second.
cases=10 fuzz_rust pipeline --test repair
fuzz_rust fuzz
