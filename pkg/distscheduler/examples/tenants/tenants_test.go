package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// asCommand is an environment variable that makes the test binary the command itself.
const asCommand = "TEST_AS_TENANTS"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

func labelled(labels map[string]string) (*v1.Pod, *v1.Node) {
	pod, node := &v1.Pod{}, &v1.Node{}
	pod.Labels, node.Labels = labels, labels
	return pod, node
}

// TestFilter checks which pods may run on the nodes of a tenant.
func TestFilter(t *testing.T) {
	plugin, err := New(t.Context(), &runtime.Unknown{Raw: []byte(`{"label":"tenant"}`)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ours, ourNode := labelled(map[string]string{"tenant": "us"})
	theirs, _ := labelled(map[string]string{"tenant": "them"})
	nobodys, freeNode := labelled(nil)
	for _, c := range []struct {
		pod  *v1.Pod
		node *v1.Node
		fits bool
	}{{ours, ourNode, true}, {theirs, ourNode, false}, {nobodys, ourNode, false}, {theirs, freeNode, true}, {nobodys, freeNode, true}} {
		info := framework.NewNodeInfo()
		info.SetNode(c.node)
		status := plugin.(*Tenants).Filter(t.Context(), nil, c.pod, info)
		if status.IsSuccess() != c.fits {
			t.Errorf("Filter() of a pod with labels %v on a node with labels %v = %v, want success: %t", c.pod.Labels, c.node.Labels, status, c.fits)
		}
		hint, err := plugin.(*Tenants).nodeMayFit(klog.Logger{}, c.pod, nil, c.node)
		if err != nil || (hint == fwk.Queue) != c.fits {
			t.Errorf("nodeMayFit() = %v, %v, want to retry the pod: %t", hint, err, c.fits)
		}
	}
}

// TestBadArgumentsAreErrors checks that the scheduler does not start with arguments that make no sense.
func TestBadArgumentsAreErrors(t *testing.T) {
	for _, raw := range []string{`{"label":7}`, `{"label":""}`} {
		if _, err := New(t.Context(), &runtime.Unknown{Raw: []byte(raw)}, nil); err == nil || !strings.Contains(err.Error(), Name) {
			t.Errorf("New(%s) = error %v, want one with the name of the plugin", raw, err)
		}
	}
}

const cluster = `apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: reserved, labels: {example.com/tenant: us}}, status: {allocatable: {cpu: "8", pods: "10"}}}
- {apiVersion: v1, kind: Node, metadata: {name: shared}, status: {allocatable: {cpu: "4", pods: "10"}}}
- {apiVersion: v1, kind: Pod, metadata: {name: p, namespace: default}, spec: {schedulerName: default-scheduler, containers: [{name: c, image: i}]}}
`

const configuration = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: Tenants}]}}
`

// TestExplainKnowsThePlugin runs the command explain of this program.
func TestExplainKnowsThePlugin(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"cluster.yaml": cluster, "config.yaml": configuration} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "explain", "--pod", "default/p", "--cluster", "cluster.yaml", "--config", "config.yaml", "--node", "reserved")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), asCommand+"=1")
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, errOut.String(), out)
	}
	for _, want := range []string{"Node reserved does not fit.", "Tenants:  node(s) belong to another tenant", "shared, the only node that fits"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("explain prints\n%s\nwithout %q", out, want)
		}
	}
}
