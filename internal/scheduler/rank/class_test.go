package rank

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
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
