#!/usr/bin/env bash
# Makes Kubernetes' own tests ready to be run with our search: a copy of its source,
# in the version that go.mod pins, with the hook that hook.awk puts in, and in each
# package named a file that sets the hook.
#
#   prepare.sh SCRATCH PACKAGE...    packages as k8s.io/kubernetes/pkg/scheduler
#
# After that, `go test -modfile SCRATCH/go.mod PACKAGE` tests with our search, and
# with upstream's if K1M_ATTACH=0. SCRATCH/store belongs in front of PATH: there the
# tests find an etcd.
#
#   STORE    what serves as etcd (bin/mem_etcd); etcd works as well
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

# Our go.mod but for the copy, so that the tests can import our packages and are
# built from the modules that we use.
cp go.sum "$scratch/go.sum"
cp go.mod "$scratch/go.mod"
go mod edit -replace "k8s.io/kubernetes=$copy" "$scratch/go.mod"

# An external test package, because pkg/scheduler cannot import what imports it.
go list -modfile "$scratch/go.mod" -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}} {{.Name}}{{end}}' "$@" |
  while read -r dir name; do
    sed "s/PACKAGE/$name/" "$here/testdata/attach_test.go" >"$dir/k1m_attach_test.go"
  done

# What mem_etcd refuses of the flags that the tests start etcd with: that of a cluster.
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
