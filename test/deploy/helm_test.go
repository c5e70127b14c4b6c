// Package deploy tests the files in deploy: what the Helm chart renders, the programs that its pods run, and the guide for
// control planes of kubeadm.
//
//	K1M_BIN     directory of the binaries (default ../../bin)
//	CHART=full  also run the tests that start clusters
package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	chartDir  = "../../deploy/chart"
	release   = "big"
	namespace = "k8s-1m"
)

// parts are the parts of the chart. With the values next to them, they need nothing else.
var parts = []struct {
	key    string
	values []string
}{
	{"memEtcd", nil},
	{"distScheduler", nil},
	{"kubeGateway", []string{"kubeGateway.apiServers={10.0.0.1:6443,10.0.0.2:6443}"}},
	{"etcdProxy", []string{"etcdProxy.endpoints=https://10.0.0.1:2379"}},
	{"warmControllerManager", nil},
	{"dashboards", nil},
}

// variants are values that change what a part renders. Each combination of parts is rendered with one of them.
var variants = [][]string{
	{"memEtcd.members=3", "distScheduler.shareNodes=true", "distScheduler.replicas=3"},
	{"memEtcd.members=3", "memEtcd.replicationLog=memory", "certificates.method=cert-manager", "distScheduler.shareNodes=true"},
	{
		"memEtcd.walMode=none", "certificates.method=existing", "kubeGateway.nodePath=true", "kubeGateway.discover=true",
		"kubeGateway.config.nodePath.leases.mode=on",
	},
	{
		"memEtcd.members=5", "memEtcd.quotaBytes=8589934592", "memEtcd.storage.className=fast", "image.registry=registry.example", "image.pullSecrets[0].name=pull",
		"distScheduler.replicas=1", "kubeGateway.service.type=LoadBalancer", "kubeGateway.nodePath=true", "etcdProxy.record.enabled=true",
		"etcdProxy.secretName=store", "memEtcd.walModePrefixes={/registry/leases/=none}",
	},
	{
		"memEtcd.walModePrefixes={/registry/leases/=none}", "bindAddress=[::]", "etcdProxy.record.enabled=true", "etcdProxy.record.claimName=traces",
		"warmControllerManager.signCertificates=false",
	},
}

// run runs a program of the directory bin and returns its output. It fails the test if the exit code is not 0.
func run(t *testing.T, stdin []byte, program string, args ...string) string {
	t.Helper()
	out, err := tryRun(t, stdin, program, args...)
	if err != nil {
		t.Fatalf("%s %s: %v", program, strings.Join(args, " "), err)
	}
	return out
}

// tryRun runs a program of the directory bin and returns its output. The error has what it wrote to standard error.
func tryRun(t *testing.T, stdin []byte, program string, args ...string) (string, error) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(testcluster.Binaries(t, program), program), args...)
	cmd.Stdin = bytes.NewReader(stdin)
	// Neither the configuration of the user nor a cluster that it names matters here.
	cmd.Env = append(os.Environ(), "HOME="+home, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+os.DevNull)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w\n%s%s", err, out, stderr.Bytes())
	}
	return string(out), err
}

// set returns the flags of helm that set values.
func set(values ...string) (flags []string) {
	for _, value := range values {
		flags = append(flags, "--set", value)
	}
	return flags
}

// combination returns the values that switch on the parts in the bits of mask, with one of the variants.
func combination(mask int) (values []string) {
	for i, part := range parts {
		if mask&(1<<i) != 0 {
			values = append(append(values, part.key+".enabled=true"), part.values...)
		}
	}
	return append(values, variants[mask%len(variants)]...)
}

// template returns what the chart renders with these values.
func template(t *testing.T, flags ...string) string {
	t.Helper()
	out, err := tryTemplate(t, flags...)
	must(t, err)
	return out
}

func tryTemplate(t *testing.T, flags ...string) (string, error) {
	t.Helper()
	return tryRun(t, nil, "helm", append([]string{"template", release, chartDir, "--namespace", namespace, "--kube-version", "1.37.1"}, flags...)...)
}

// objects returns the objects in a stream of YAML documents.
func objects(t *testing.T, text string) (all []*unstructured.Unstructured) {
	t.Helper()
	for _, document := range strings.Split(text, "\n---\n") {
		var fields map[string]any
		if err := yaml.UnmarshalStrict([]byte(document), &fields); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if len(fields) > 0 {
			all = append(all, &unstructured.Unstructured{Object: fields})
		}
	}
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
