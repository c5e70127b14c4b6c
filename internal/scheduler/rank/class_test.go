package rank

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
)

// TestKeysDependOnNumberOfContainers checks that pods with different containers have different keys
// even if they request nothing: plugins count a default request for each container.
func TestKeysDependOnNumberOfContainers(t *testing.T) {
	specs := map[string]v1.PodSpec{
		"four containers and pod-level resources": {Containers: make([]v1.Container, 4), Resources: &v1.ResourceRequirements{}},
		"three init containers and one container": {InitContainers: make([]v1.Container, 3), Containers: make([]v1.Container, 1)},
		"four containers":                         {Containers: make([]v1.Container, 4)},
	}
	nameOf := map[string]string{}
	for name, spec := range specs {
		key := string(appendRequests(nil, &framework.PodInfo{Pod: &v1.Pod{Spec: spec}}))
		if other, exists := nameOf[key]; exists {
			t.Errorf("appendRequests() = %q for %q and for %q, want different keys", key, name, other)
		}
		nameOf[key] = name
	}
}

// TestRefusalsAreNumberedByStatus checks that equal statuses of nodes have one number, and other ones their own. A
// shard may have as many statuses as nodes, so finding the number must not take time for each of them: with a linear scan,
// this test takes minutes.
func TestRefusalsAreNumberedByStatus(t *testing.T) {
	const nodes = 200_000
	cl := &Class{refusalNumbers: intern.Numbers{}}
	status := func(node int) *fwk.Status {
		return fwk.NewStatus(fwk.Unschedulable, fmt.Sprintf("untolerated taint %d", node)).WithPlugin("TaintToleration")
	}
	for range 2 {
		for node := range nodes {
			if got := cl.refusal(status(node)); got != int32(node) {
				t.Fatalf("refusal() = %d for the status of node %d, want its own number", got, node)
			}
		}
	}
	for name, other := range map[string]*fwk.Status{
		"code":    fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "untolerated taint 0").WithPlugin("TaintToleration"),
		"plugin":  fwk.NewStatus(fwk.Unschedulable, "untolerated taint 0").WithPlugin("NodeAffinity"),
		"reasons": fwk.NewStatus(fwk.Unschedulable, "untolerated taint 0", "untolerated taint 1").WithPlugin("TaintToleration"),
	} {
		known := len(cl.refusals)
		if number := cl.refusal(other); int(number) != known || cl.refusals[number] != other {
			t.Errorf("refusal() = %d for a status with another %s, want the new number %d", number, name, known)
		}
	}
}

// TestIgnoredResources checks which missing resources do not prevent a reservation.
func TestIgnoredResources(t *testing.T) {
	rules := newUsageRules(config.KubeSchedulerProfile{PluginConfig: []config.PluginConfig{{Args: &config.NodeResourcesFitArgs{
		IgnoredResources: []string{"example.com/one", "cpu"}, IgnoredResourceGroups: []string{"example.org"},
	}}}})
	for resource, want := range map[v1.ResourceName]bool{
		"example.com/one": true, "example.com/two": false, "example.org/any": true, v1.ResourceCPU: false,
	} {
		if got := rules.ignores(resource); got != want {
			t.Errorf("ignores(%s) = %t, want %t", resource, got, want)
		}
	}
}
