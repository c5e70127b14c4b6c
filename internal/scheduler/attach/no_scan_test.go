package attach_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestNoFullScan has pods with volumes, claims and named nodes. The index finds the nodes of all of them, and they are those of
// upstream's plugins.
func TestNoFullScan(t *testing.T) {
	for name, change := range map[string]func(*world, *v1.Pod){
		"volume in a zone":                 useClaims("in-a"),
		"volume with a zone label":         useClaims("labelled"),
		"volume of one node":               useClaims("on-node"),
		"volume to create in two zones":    useClaims("later-1"),
		"volume to create anywhere":        useClaims("anywhere-1"),
		"volume of a driver with limits":   useClaims("limited"),
		"two volumes":                      useClaims("in-b", "anywhere-2"),
		"claim with a selected node":       useClaims("selected"),
		"disk that pods cannot share":      addSource(v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk"}}),
		"volume that restricts nothing":    addSource(v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "nfs", Path: "/"}}),
		"device":                           func(w *world, pod *v1.Pod) { w.claimDevices(pod, false) },
		"selector for a hostname":          func(_ *world, pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: "node-4"} },
		"affinity to nodes by their names": func(_ *world, pod *v1.Pod) { pod.Spec.Affinity = toNodes("node-2", "node-5") },
	} {
		t.Run(name, func(t *testing.T) {
			w := plainWorld(t)
			for name := range w.Nodes {
				w.putCSINode(name)
				w.addDevices(name)
			}
			for i := range 4 {
				pod := schedtest.PlainPod(fmt.Sprintf("pod-%d", i), "100m")
				pod.UID = types.UID(pod.Name)
				change(w, pod)
				result, err := w.scheduleAndCompare(pod)
				if err != nil {
					t.Fatal(err)
				}
				w.allocate(pod, result.SuggestedHost)
				w.bind(pod, result.SuggestedHost)
			}
			if len(w.fallbacks) > 0 || w.ranked != 4 {
				t.Errorf("the index ranked %d of 4 pods, and the reasons for full scans are %v; want all 4", w.ranked, w.fallbacks)
			}
		})
	}
}

// plainWorld returns a world with twelve equal nodes in three zones.
func plainWorld(t *testing.T) *world {
	w := newWorld(t, 1, 0)
	for _, node := range slices.Collect(maps.Values(w.Nodes)) {
		delete(w.Nodes, node.Name)
		w.must(w.cacheOf(node.Name).RemoveNode(klog.Logger{}, trimmed(w, node)))
	}
	for i := range 12 {
		node := schedtest.PlainNode(fmt.Sprint("node-", i), "8")
		node.Labels[v1.LabelTopologyZone] = []string{"a", "b", "c"}[i%3]
		w.putNode(node)
	}
	return w
}

// TestOnlyNodesWithFreeDevicesAreAskedAbout has two nodes with one device each. Nodes without a free device are not asked about, and
// a claim that is deleted frees its device.
func TestOnlyNodesWithFreeDevicesAreAskedAbout(t *testing.T) {
	w := plainWorld(t)
	for _, object := range w.informers[0].Resource().V1().ResourceSlices().Informer().GetIndexer().List() {
		w.push(object.(*resourcev1.ResourceSlice), true)
	}
	for _, node := range []string{"node-3", "node-7"} {
		w.push(deviceSlice(node, "fast", 1), false)
	}
	claiming := func(name string) *v1.Pod {
		pod := schedtest.PlainPod(name, "100m")
		w.putClaim(pod, resourcev1.DeviceRequest{Name: "device", Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: "fast", Count: 1, AllocationMode: resourcev1.DeviceAllocationModeExactCount,
		}})
		return pod
	}
	var placed []*v1.Pod
	for i := range 4 {
		if i == 2 {
			w.dropClaim(placed[0])
		}
		pod := claiming(fmt.Sprint("pod-", i))
		result, err := w.scheduleAndCompare(pod)
		if i == 3 {
			if err == nil {
				t.Errorf("the fourth pod was placed on %s, want no node, because both devices are allocated", result.SuggestedHost)
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		w.allocate(pod, result.SuggestedHost)
		w.bind(pod, result.SuggestedHost)
		placed = append(placed, pod)
	}
	if w.ranker.NodesAsked != 3 {
		t.Errorf("filters were asked about %d nodes, want 3: one for each placed pod", w.ranker.NodesAsked)
	}
}

// useClaims returns a function that makes a pod use volume claims.
func useClaims(names ...string) func(*world, *v1.Pod) {
	return func(w *world, pod *v1.Pod) {
		for _, name := range names {
			addSource(v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}})(w, pod)
		}
	}
}

// addSource returns a function that adds a volume to a pod.
func addSource(source v1.VolumeSource) func(*world, *v1.Pod) {
	return func(_ *world, pod *v1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: fmt.Sprint("volume-", len(pod.Spec.Volumes)), VolumeSource: source})
	}
}

// toNodes returns a required affinity to nodes by their names.
func toNodes(names ...string) *v1.Affinity {
	selector := &v1.NodeSelector{}
	for _, name := range names {
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, v1.NodeSelectorTerm{
			MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{name}}},
		})
	}
	return &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}}
}
