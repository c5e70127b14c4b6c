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

# The go.mod of this repository, with k8s.io/kubernetes replaced by the copy. The tests can therefore
# import packages of this repository, and are built with the same versions of all modules.
cp go.sum "$scratch/go.sum"
cp go.mod "$scratch/go.mod"
go mod edit -replace "k8s.io/kubernetes=$copy" "$scratch/go.mod"

# The added file belongs to the external test package (PACKAGE_test): it imports a package that
# imports pkg/scheduler, which pkg/scheduler itself cannot import.
go list -modfile "$scratch/go.mod" -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}} {{.Name}}{{end}}' "$@" |
  while read -r dir name; do
    sed "s/PACKAGE/$name/" "$here/testdata/attach_test.go" >"$dir/k1m_attach_test.go"
  done

# The tests start etcd with --listen-peer-urls, which mem_etcd rejects.
mkdir -p "$scratch/store"
cat >"$scratch/store/etcd" <<SCRIPT
#!/usr/bin/env bash
flags=()
while [ \$# -gt 0 ]; do
  case \$1 in
    --listen-peer-urls) shift ;;
    *) flags+=("\$1") ;;
  esac
  shift
done
exec "$store" "\${flags[@]}"
SCRIPT
chmod +x "$scratch/store/etcd"
