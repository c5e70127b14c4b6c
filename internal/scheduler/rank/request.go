package rank

import (
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/unexported"
)

// usage is what a pod adds to the sums of its node.
type usage struct {
	milliCPU, memory, storage      int64
	nonZeroMilliCPU, nonZeroMemory int64
}

func newUsage(pod fwk.PodInfo) usage {
	resources := pod.CalculateResource()
	return usage{
		milliCPU: resources.Resource.GetMilliCPU(), memory: resources.Resource.GetMemory(),
		storage:         resources.Resource.GetEphemeralStorage(),
		nonZeroMilliCPU: resources.Non0CPU, nonZeroMemory: resources.Non0Mem,
	}
}

// addTo returns a node state with the usage of one more pod added.
func (u *usage) addTo(s index.State) index.State {
	s.Pods++
	s.MilliCPU += u.milliCPU
	s.Memory += u.memory
	s.EphemeralStorage += u.storage
	s.NonZeroMilliCPU += u.nonZeroMilliCPU
	s.NonZeroMemory += u.nonZeroMemory
	return s
}

// request has the amounts that the usage plugins count for a pod. They differ: for example, only the score
// of NodeResourcesFit ignores pod-level resources. So the ranker does not compute them, but reads what the
// plugins have written into the cycle state.
type request struct {
	usage usage
	// required is what NodeResourcesFit requires of a node.
	required struct{ milliCPU, memory, storage int64 }
	// fit and balance are what the scores of NodeResourcesFit and of balanced allocation add to the
	// usage of a node.
	fit, balance amounts
}

// amounts are an amount of CPU and an amount of memory.
type amounts struct{ milliCPU, memory int64 }

// readRequest sets request and simple. A class is simple if the ranker can compute verdicts without the
// usage plugins: their arguments allow it, and the pod requests no host ports and no other resources than
// CPU, memory and ephemeral storage.
func (cl *Class) readRequest() error {
	cl.request.usage = newUsage(cl.pod)
	required, err := writtenField[framework.Resource](cl, "PreFilter"+pluginnames.NodeResourcesFit, "Resource")
	if err != nil || required == nil || !cl.profile.usage.arithmetic {
		return err
	}
	r := &cl.request
	r.required.milliCPU, r.required.memory, r.required.storage = required.MilliCPU, required.Memory, required.EphemeralStorage
	scored := true
	for _, score := range []struct {
		plugin    string
		weight    int64
		resources []config.ResourceSpec
		amounts   *amounts
	}{
		{pluginnames.NodeResourcesFit, cl.fitWeight, cl.profile.usage.fit, &r.fit},
		{pluginnames.NodeResourcesBalancedAllocation, cl.balanceWeight, cl.profile.usage.balance, &r.balance},
	} {
		if score.weight == 0 {
			continue
		}
		requests, err := writtenField[[]int64](cl, fwk.StateKey("PreScore"+score.plugin), "podRequests")
		if err != nil {
			return err
		}
		scored = scored && requests != nil && score.amounts.set(score.resources, *requests)
	}
	cl.simple = scored && len(required.ScalarResources) == 0 && len(cl.pod.CalculateResource().Resource.GetScalarResources()) == 0 &&
		cl.skipFilter.Has(pluginnames.NodePorts) && cl.profile.filters.Has(pluginnames.NodeResourcesFit)
	return nil
}

// set sets the amounts from those of a list of resources. It returns false if the lists have different
// lengths.
func (a *amounts) set(resources []config.ResourceSpec, requests []int64) bool {
	if len(resources) != len(requests) {
		return false
	}
	for i := range resources {
		if v1.ResourceName(resources[i].Name) == v1.ResourceCPU {
			a.milliCPU = requests[i]
		} else {
			a.memory = requests[i]
		}
	}
	return true
}

// writtenField returns a field of the data that a plugin has written into the cycle state; nil if it has not
// written any. The fields are unexported.
func writtenField[T any](cl *Class, key fwk.StateKey, name string) (field *T, err error) {
	data := reflect.ValueOf(cl.written[key])
	switch {
	case !data.IsValid():
		return nil, nil
	case data.Kind() != reflect.Pointer || data.Elem().Kind() != reflect.Struct:
		return nil, fmt.Errorf("kube-scheduler writes a %v as %s: build with the Kubernetes release in go.mod", data.Type(), key)
	}
	unexported.Field(data.Elem(), name, &field, &err)
	return field, err
}
