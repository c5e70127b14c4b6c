#!/usr/bin/env bash
# Runs etcd's own tests, unmodified, against clusters of mem_etcd with one, three and five members, with and without TLS: the
# packages common and e2e of go.etcd.io/etcd/tests/v3, in the version that go.mod of this folder pins.
#
#   run.sh [-run REGEXP] ...     flags of go test
#
#   STORE             server under test (bin/mem_etcd); bin/etcd runs the same tests with etcd
#   PACKAGES          packages to test (common e2e)
#   SHORT             1: only some tests, which take less than two minutes
#   ETCD_TESTS_DIR    scratch directory (target/etcd-upstream)
#
# Fails unless the tests that fail or are skipped are exactly those in expected.txt.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
scratch=$(realpath -m "${ETCD_TESTS_DIR:-$root/target/etcd-upstream}")
STORE=$(realpath "${STORE:-$root/bin/mem_etcd}")
module=go.etcd.io/etcd/tests/v3
short='^Test(KV|Lease|Txn|Watch|Role|User|Compact|HashKV|Member|Status|Endpoint|Alarm)'

# shellcheck source=test/kubernetes.sh
source "$root/test/kubernetes.sh"
require_program "$STORE" STORE
cd "$here"
copy_module "$module" "$scratch"
replace_module "$module" "$scratch"

# The tests start the program etcd of a folder that also has etcd's own etcdctl and etcdutl.
bin=$scratch/bin
rm -rf "$bin"
mkdir -p "$bin"
for name in etcdctl etcdutl; do
  require_program "$root/bin/$name" "PATH to $name"
  ln -s "$(realpath "$root/bin/$name")" "$bin/$name"
done
if [[ ${STORE##*/} = etcd ]]; then
  ln -s "$STORE" "$bin/etcd"
else
  ln -s "$here/member.sh" "$bin/etcd"
  export ETCD_TESTS_STORE=$STORE # the tests pass on only variables that begin with ETCD_
fi

# left PACKAGE: prints the tests of the package that expected.txt leaves out, as a regular expression for -skip.
left() {
  awk -v package="$module/$1" '
    $1 == "LEAVE" && $2 == package {
      gsub(/[^A-Za-z0-9_\/-]/, ".", $3)
      gsub("/", "$/^", $3)
      all = all (all == "" ? "" : "|") "^" $3 "$"
    }
    END {print all == "" ? "^$" : all}' "$here/expected.txt"
}

log=$scratch/log.json
echo "testing $STORE with $module $version; log: $log"
: >"$log"
status=0
filter=("$@")
if [[ ${SHORT:-} = 1 ]]; then filter+=(-run "$short"); fi
# E2E_TEST_MINIMAL leaves out what needs certificates that the server creates itself, and older releases.
for package in ${PACKAGES:-common e2e}; do
  E2E_TEST_MINIMAL=true go test -modfile "$scratch/go.mod" -tags e2e -exec "$here/isolated.sh" -json -count 1 -timeout 90m \
    -skip "$(left "$package")" "${filter[@]}" "$module/$package" -args -bin-dir "$bin" |
    tee -a "$log" |
    packages_of ||
    status=$?
done

results=$scratch/results.txt
expected=$scratch/expected.txt
tests_of "$log" >"$results"
# etcd's own run is for comparison: each of its tests should pass.
leave=LEAVE
if [[ ${STORE##*/} = etcd ]]; then leave+='|FAIL|SKIP'; fi
grep -vE "^($leave) " "$here/expected.txt" >"$expected"
awk -v filtered="$(filtered "${filter[@]}")" -v status="$status" -f "$root/test/conformance/summary.awk" "$expected" "$results"
