#!/usr/bin/env bash
# Runs Kubernetes' own integration tests of the API server through kube-gateway. The tests have the
# version that go.mod pins. They are unmodified, except for a hook in the two functions that start an API
# server for them: it starts a gateway in front of it and returns the gateway's address (see hook.awk).
# With NODE_PATH=1, the gateways serve requests of nodes themselves.
#
#   run.sh [-run REGEXP] [-skip REGEXP] [-p N] ...     flags of go test
#
#   PACKAGES       packages below k8s.io/kubernetes/test/integration to test (all that test what a client
#                  sees of an API server)
#   SHORT          1: only some packages, without slow tests, which take three minutes; with NODE_PATH=1 only the
#                  tests of nodes, which take one
#   NODE_PATH      1: the node path is on. Other packages are tested: those with clients that act as nodes or as
#                  controllers. All clients use certificates, also those that act as nodes by tokens or
#                  impersonation (see node.awk), and the Node authorizer precedes the test's other ones.
#   GATEWAY        program under test (bin/kube-gateway); 0: no gateway, for comparison
#   STORE          server that the tests start as etcd (bin/mem_etcd); etcd works as well
#   UPSTREAM_DIR   scratch directory (target/upstream, shared with test/upstream)
#
# Fails unless the tests that fail or are skipped are exactly those in expected.txt. A test counts as
# passed only if a client connected to a gateway in it. Other passed tests are counted separately. The
# logs of the gateways are in target/upstream/gateway.
#
# With NODE_PATH=1, the results must be those in expected.txt and in expected-node-path.txt, the node path must
# have served what served.txt says, and the report on each package has the number of requests that it served.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
scratch=$(realpath -m "${UPSTREAM_DIR:-$root/target/upstream}")
store=$(realpath "${STORE:-$root/bin/mem_etcd}")
gateway=${GATEWAY:-$root/bin/kube-gateway}
integration=k8s.io/kubernetes/test/integration
short="auth apiserver/certreload apiserver/podlogs apiserver/portforward apiserver/anonymous dryrun"
all="$short apiserver apiserver/admissionwebhook apiserver/apply apiserver/discovery \
  apiserver/flowcontrol apiserver/openapi apiserver/tracing client"
# Tests of auth that are slow, or test the same as others from a client's view.
slow='^Test(ServiceAccountTokenAttestations.*|GetsSelfAttributes.*|ResourceClaimGranularStatusAuthorization'
slow+='|DynamicClientBuilder|PodSecurity.*|ConstrainedImpersonation.*|DiscoveryUpgradeBootstrapping'
slow+='|BootstrapTokenAuth|AuthModeAlways.*)$'

nodes='^Test(Node.*|WatchBasedManager|PodCertificateManager)$'
nodeShort="auth kubelet podcertificaterequests"
nodeAll="$nodeShort apimachinery apiserver endpointslice network service"
# The tests of nodes, in the files that node.awk changes, and the number of changes.
nodeTests="auth/rbac_test.go:1 auth/node_test.go:1 kubelet/watch_manager_test.go:4
  kubelet/podcertificatemanager_integration_test.go:1 podcertificaterequests/podcertificate_integration_test.go:1"

# shellcheck source=test/kubernetes.sh
source "$root/test/kubernetes.sh"
require_program "$store" STORE
export KUBE_GATEWAY=""
if [[ $gateway != 0 ]]; then
  require_program "$gateway" GATEWAY
  KUBE_GATEWAY=$(realpath "$gateway")
fi
cd "$root"
copy_module k8s.io/kubernetes "$scratch"
for file in cmd/kube-apiserver/app/testing/testserver.go test/integration/framework/test_server.go; do
  awk -f "$here/hook.awk" "$source/$file" >"$scratch/hooked.go"
  mv "$scratch/hooked.go" "$copy/$file"
done
name=gateway
selected=(-skip "$slow")
expected=("$here/expected.txt")
export KUBE_GATEWAY_NODE_PATH=""
if [[ ${NODE_PATH:-} = 1 ]]; then
  name=gateway-node-path
  expected+=("$here/expected-node-path.txt")
  KUBE_GATEWAY_NODE_PATH=$root/deploy/kube-gateway
  short=$nodeShort all=$nodeAll
  selected=(-run "$nodes")
fi
for file in $nodeTests; do
  test=test/integration/${file%:*}
  if [[ $KUBE_GATEWAY_NODE_PATH ]]; then
    awk -v changes="${file#*:}" -f "$here/node.awk" "$source/$test" >"$scratch/hooked.go"
  else
    cat "$source/$test" >"$scratch/hooked.go"
  fi
  mv "$scratch/hooked.go" "$copy/$test"
done
replace_module k8s.io/kubernetes "$scratch"
# The files of a module are not executable. Tests execute this one.
chmod +x "$copy/test/integration/client/testdata/exec-plugin.sh"
store_as_etcd "$store" "$scratch"

# If a server listens at this URL, the tests use that server instead of starting one. No server listens
# at port 1.
export KUBE_INTEGRATION_ETCD_URL=http://127.0.0.1:1
export PATH=$scratch/store:$PATH
export KUBE_GATEWAY_LOGS=$scratch/gateway
mkdir -p "$KUBE_GATEWAY_LOGS"
rm -f "$KUBE_GATEWAY_LOGS"/*.log

packages=()
for package in ${PACKAGES:-$([[ ${SHORT:-} = 1 ]] && echo "$short" || echo "$all")}; do
  packages+=("$integration/$package")
  if [[ $package = client ]]; then
    # It imports a module that this repository does not need.
    go get -modfile "$scratch/go.mod" "k8s.io/sample-apiserver@$(go list -m -f '{{.Version}}' k8s.io/apiserver)"
  fi
done
[[ ${SHORT:-} = 1 ]] && set -- "${selected[@]}" "$@"
log=$scratch/$name.json
echo "testing kube-gateway with Kubernetes' integration tests; log: $log"
status=0
# -p 1 runs one package at a time, because tests depend on timeouts. Kubernetes vets its own code.
go test -modfile "$scratch/go.mod" -vet=off -json -p 1 -count 1 -timeout 60m "$@" "${packages[@]}" |
  tee "$log" |
  packages_of ||
  status=$?

# The results file contains the results of the tests, and after them the reports of the hook (see
# through.go): "attached|left PACKAGE TEST". With the node path, the sums of the requests that it served follow.
results=$scratch/$name.txt
output='^\{"Time":"[^"]*","Action":"output","Package":"([^"]*)","Test":"(([^"\\]|\\.)*)","Output":"[^"]*k1m: '
{
  tests_of "$log"
  sed -nE "s/$output(attached|left).*/\4 \1 \2/p" "$log"
} >"$results"
served=$(sed -nE "s/${output}served: ([a-z0-9= ]*).*/served \1 \2 \4/p" "$log" |
  awk -f "$here/served.awk" "$here/served.txt" "$results" -)
grep '^decided' <<<"$served" >>"$results" || true
cat "${expected[@]}" >"$scratch/expected.txt"
failed=0
awk -v filtered="$(filtered "$@")" -v status="$status" -v attach="$([[ $gateway = 0 ]] && echo 0 || echo 1)" \
  -v subject=kube-gateway -f "$root/test/upstream/summary.awk" "$scratch/expected.txt" "$results" || failed=1
if [[ $KUBE_GATEWAY && $KUBE_GATEWAY_NODE_PATH ]] && grep '^MISSING' <<<"$served"; then
  failed=1
fi
exit "$failed"
