package attach_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestScoreIgnoresPodLevelResources has a pod whose spec.resources request CPU and memory, and whose container
// requests nothing. The score of upstream's NodeResourcesFit counts the default request of the container, so
// the small empty node is best. With the requests of the pod, the large node would be.
func TestScoreIgnoresPodLevelResources(t *testing.T) {
	for _, shards := range []int{0, 2} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			w := newWorld(t, 1, shards)
			for _, node := range slices.Collect(maps.Values(w.Nodes)) {
				delete(w.Nodes, node.Name)
				w.must(w.cacheOf(node.Name).RemoveNode(klog.Logger{}, trimmed(w, node)))
			}
			for name, size := range map[string][2]string{"small": {"10", "10Gi"}, "large": {"40", "40Gi"}} {
				node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}}}
				node.Status.Allocatable = schedtest.Resources(size[0], size[1])
				node.Status.Allocatable[v1.ResourcePods] = schedtest.Quantity("10")
				w.putNode(node)
			}
			running := schedtest.PlainPod("running", "4")
			running.Spec.NodeName = "large"
			running.Spec.Containers[0].Resources.Requests = schedtest.Resources("4", "4Gi")
			w.putBound(running)
			pod := schedtest.PlainPod("pod", "1")
			pod.Spec.Containers[0].Resources.Requests = nil
			pod.Spec.Resources = &v1.ResourceRequirements{Requests: schedtest.Resources("3", "3Gi")}
			if result, _ := w.scheduleAndCompare(pod); result.SuggestedHost != "small" {
				t.Errorf("SchedulePod() = %q, want small", result.SuggestedHost)
			}
		})
	}
}
