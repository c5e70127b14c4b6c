#!/usr/bin/env bash
# Prepares Kubernetes' own tests to run with dist-scheduler's node search. It copies the source of
# Kubernetes, in the version that go.mod pins, inserts a hook with hook.awk, and adds a test file that
# sets the hook to each of the given packages.
#
#   prepare.sh SCRATCH PACKAGE...    packages such as k8s.io/kubernetes/pkg/scheduler
#
# Then `go test -modfile SCRATCH/go.mod PACKAGE` tests with dist-scheduler's node search, and with
# upstream's if K1M_ATTACH=0. PATH must start with SCRATCH/store, which contains the etcd that the
# tests start.
#
#   STORE    server that the tests start as etcd (bin/mem_etcd); etcd works as well
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
scratch=$(realpath -m "$1")
shift
store=$(realpath "${STORE:-$root/bin/mem_etcd}")

# shellcheck source=test/kubernetes.sh
source "$root/test/kubernetes.sh"
require_program "$store" STORE
cd "$root"
copy_module k8s.io/kubernetes "$scratch"
awk -f "$here/hook.awk" "$source/pkg/scheduler/scheduler.go" >"$scratch/scheduler.go"
mv "$scratch/scheduler.go" "$copy/pkg/scheduler/scheduler.go"

replace_module k8s.io/kubernetes "$scratch"

# The added file belongs to the external test package (PACKAGE_test): it imports a package that
# imports pkg/scheduler, which pkg/scheduler itself cannot import.
go list -modfile "$scratch/go.mod" -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}} {{.Name}}{{end}}' "$@" |
  while read -r dir name; do
    sed "s/PACKAGE/$name/" "$here/testdata/attach_test.go" >"$dir/k1m_attach_test.go"
  done

store_as_etcd "$store" "$scratch"
