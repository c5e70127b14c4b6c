package rank

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// TestRequestsHaveKeysOfTheirOwn checks that specs with different numbers of containers have
// different keys even if nothing is requested: plugins count a default request for each container.
func TestRequestsHaveKeysOfTheirOwn(t *testing.T) {
	specs := map[string]v1.PodSpec{
		"four containers of a pod with resources": {Containers: make([]v1.Container, 4), Resources: &v1.ResourceRequirements{}},
		"three that begin before one":             {InitContainers: make([]v1.Container, 3), Containers: make([]v1.Container, 1)},
		"four containers":                         {Containers: make([]v1.Container, 4)},
	}
	of := map[string]string{}
	for name, spec := range specs {
		key := string(appendRequests(nil, &framework.PodInfo{Pod: &v1.Pod{Spec: spec}}))
		if other, taken := of[key]; taken {
			t.Errorf("%s and %s have the same key", name, other)
		}
		of[key] = name
	}
}
