package attach_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

// The tests in this file change every field of Pod and Node, one at a time, and compare the decisions after
// each change with those of upstream's plugins. They fail if a plugin reads a field that is missing in class
// keys, node shapes or node states, that informers trim, or that does not count as a change. Classes and
// states exist before the change, so a decision is wrong if they stay the same.

// mutationWorld returns a world with fixed nodes and pods on them, in which small changes of a pod or a node
// change decisions.
func mutationWorld(t *testing.T, shards int) *world {
	w := newWorld(t, 1, shards)
	for _, node := range slices.Collect(maps.Values(w.Nodes)) {
		delete(w.Nodes, node.Name)
		w.must(w.cacheOf(node.Name).RemoveNode(klog.Logger{}, trimmed(w, node)))
	}
	for i, zone := range []string{"a", "b", "a", "c", "b"} {
		w.putNode(mutationNode(i, zone))
	}
	for i, app := range []string{"web", "db", "web", "cache", "db", "job"} {
		w.putBound(boundPod(i, app))
	}
	return w
}

// putNode adds a node to the world.
func (w *world) putNode(node *v1.Node) {
	w.Nodes[node.Name] = node
	w.cacheOf(node.Name).AddNode(klog.Logger{}, trimmed(w, node))
}

// putBound adds a pod on a node to the world.
func (w *world) putBound(pod *v1.Pod) {
	w.Pods[pod.UID] = pod
	w.must(w.cacheOf(pod.Spec.NodeName).AddPod(klog.Logger{}, trimmed(w, pod)))
}

func mutationNode(number int, zone string) *v1.Node {
	name := fmt.Sprint("node-", number)
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{
		v1.LabelHostname: name, v1.LabelTopologyZone: zone, "disk": []string{"ssd", "hdd"}[number%2], "rack": fmt.Sprint(number), "cores": fmt.Sprint(2 + 4*number),
	}}}
	node.Spec.Taints = []v1.Taint{{Key: "spot", Value: "yes", Effect: v1.TaintEffectPreferNoSchedule}}
	if number == 0 {
		node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: "gpu", Value: "yes", Effect: v1.TaintEffectNoSchedule})
	}
	node.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU: schedtest.Quantity("8"), v1.ResourceMemory: schedtest.Quantity("16Gi"), v1.ResourcePods: schedtest.Quantity("20"),
		v1.ResourceEphemeralStorage: schedtest.Quantity("10Gi"), "example.com/gpu": schedtest.Quantity("2"), v1.ResourceHugePagesPrefix + "2Mi": schedtest.Quantity("64Mi"),
	}
	node.Status.Images = []v1.ContainerImage{{Names: []string{"nginx:latest", "x"}, SizeBytes: 300 << 20}}
	node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	node.Status.DeclaredFeatures = []string{generate.RestartFeature}
	if number != 3 {
		node.Status.DeclaredFeatures = append(node.Status.DeclaredFeatures, generate.UserNamespacesFeature)
	}
	if number < 3 {
		node.Status.Images = append(node.Status.Images, v1.ContainerImage{Names: []string{"redis:7"}, SizeBytes: 600 << 20})
	}
	return node
}

// term returns an affinity term for the pods with an app label.
func term(app, topology string) v1.PodAffinityTerm {
	return v1.PodAffinityTerm{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, TopologyKey: topology}
}

func boundPod(number int, app string) *v1.Pod {
	name := fmt.Sprint("bound-", number)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{"app": app, "version": "1"}}}
	pod.Spec.NodeName = fmt.Sprint("node-", number%4)
	pod.Spec.Containers = []v1.Container{{
		Name: "main", Image: "nginx", Resources: v1.ResourceRequirements{Requests: schedtest.Resources("1", "1Gi"), Limits: schedtest.Resources("2", "2Gi")},
		Ports: []v1.ContainerPort{{ContainerPort: 80, HostPort: 8000 + int32(number), Protocol: v1.ProtocolTCP}},
	}}
	pod.Spec.InitContainers = []v1.Container{{Name: "init", Image: "nginx", Resources: v1.ResourceRequirements{Requests: schedtest.Resources("100m", "64Mi")}}}
	if number%2 == 0 {
		pod.Spec.Affinity = &v1.Affinity{
			PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{
				{Weight: 10, PodAffinityTerm: term("web", v1.LabelTopologyZone)},
			}},
			PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term("cache", v1.LabelHostname)}},
		}
	}
	pod.Status = v1.PodStatus{
		Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonDeferred}},
		StartTime: &metav1.Time{Time: time.Unix(1<<20, 0)},
	}
	corev1.SetObjectDefaults_Pod(pod)
	return pod
}

// pendingPods returns the pods whose fields are changed: one that uses as many fields as possible and fits on
// several nodes, and one that uses almost none.
func pendingPods() []*v1.Pod {
	plain := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "plain", Namespace: "default", UID: "plain", Labels: map[string]string{"app": "job"}}}
	plain.Spec.SchedulerName = v1.DefaultSchedulerName
	plain.Spec.Containers = []v1.Container{{Name: "main", Image: "nginx"}}

	rich := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "rich", Namespace: "default", UID: "rich", Labels: map[string]string{"app": "web", "version": "1"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", Controller: ptr.To(true)}},
	}}
	rich.Spec.SchedulerName = v1.DefaultSchedulerName
	rich.Spec.HostNetwork, rich.Spec.HostUsers = true, ptr.To(false)
	rich.Spec.Containers = []v1.Container{
		{
			Name: "main", Image: "nginx", Ports: []v1.ContainerPort{{ContainerPort: 80, HostPort: 8000, HostIP: "127.0.0.1", Protocol: v1.ProtocolUDP}},
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
				v1.ResourceCPU: schedtest.Quantity("500m"), v1.ResourceMemory: schedtest.Quantity("512Mi"),
				v1.ResourceEphemeralStorage: schedtest.Quantity("1Gi"), "example.com/gpu": schedtest.Quantity("1"),
			}},
			RestartPolicyRules: []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestartAllContainers}},
			VolumeMounts:       []v1.VolumeMount{{Name: "cache", MountPath: "/cache"}},
		},
		{Name: "second", Image: "redis:7"},
	}
	rich.Spec.InitContainers = []v1.Container{{
		Name: "sidecar", Image: "other", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways), Resources: v1.ResourceRequirements{Requests: schedtest.Resources("50m", "32Mi")},
	}}
	rich.Spec.Volumes = []v1.Volume{{Name: "cache", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	rich.Spec.Overhead = schedtest.Resources("100m", "64Mi")
	rich.Spec.Resources = &v1.ResourceRequirements{Requests: schedtest.Resources("1", "2Gi")}
	rich.Spec.Tolerations = []v1.Toleration{{Key: "gpu", Operator: v1.TolerationOpExists}, {Key: "spot", Operator: v1.TolerationOpEqual, Value: "no"}}
	rich.Spec.Affinity = richAffinity()
	rich.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{
		{MaxSkew: 3, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			NodeTaintsPolicy: ptr.To(v1.NodeInclusionPolicyHonor), MatchLabelKeys: []string{"version"}, MinDomains: ptr.To[int32](2)},
		{MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"web", "db"}},
		}}, NodeAffinityPolicy: ptr.To(v1.NodeInclusionPolicyIgnore)},
	}
	rich.Status.Conditions = []v1.PodCondition{{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonDeferred}}
	return []*v1.Pod{plain, rich}
}

// richAffinity returns an affinity with each kind of term.
func richAffinity() *v1.Affinity {
	disk := v1.NodeSelectorRequirement{Key: "disk", Operator: v1.NodeSelectorOpIn, Values: []string{"ssd", "hdd"}}
	cores := v1.NodeSelectorRequirement{Key: "cores", Operator: v1.NodeSelectorOpGt, Values: []string{"1"}}
	return &v1.Affinity{
		NodeAffinity: &v1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{disk, cores}}}},
			PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{
				Weight: 7, Preference: v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "cores", Operator: v1.NodeSelectorOpLt, Values: []string{"9"}}}},
			}},
		},
		PodAffinity: &v1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term("db", v1.LabelTopologyZone)},
			PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{
				{Weight: 20, PodAffinityTerm: term("cache", "rack")},
			},
		},
		PodAntiAffinity: &v1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term("job", v1.LabelHostname)},
			PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{
				{Weight: 30, PodAffinityTerm: term("web", v1.LabelTopologyZone)},
			},
		},
	}
}

// probes returns pods whose decisions show changes of nodes and of other pods.
func probes() []*v1.Pod {
	pods := pendingPods()
	probe := func(name string, change func(*v1.Pod)) {
		pod := pendingPods()[0]
		pod.Name, pod.UID = name, types.UID(name)
		change(pod)
		pods = append(pods, pod)
	}
	probe("requests", func(pod *v1.Pod) {
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{
			v1.ResourceCPU: schedtest.Quantity("5"), v1.ResourceMemory: schedtest.Quantity("12Gi"), v1.ResourceEphemeralStorage: schedtest.Quantity("10Gi"),
			v1.ResourceHugePagesPrefix + "2Mi": schedtest.Quantity("64Mi"), "example.com/gpu": schedtest.Quantity("2"),
		}
	})
	probe("port", func(pod *v1.Pod) {
		pod.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 8000, Protocol: v1.ProtocolTCP}}
	})
	probe("selector", func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
	probe("cache", func(pod *v1.Pod) { pod.Labels["app"] = "cache" })
	probe("web", func(pod *v1.Pod) { pod.Labels["app"] = "web" })
	probe("spread", func(pod *v1.Pod) {
		pod.Spec.TopologySpreadConstraints = pendingPods()[1].Spec.TopologySpreadConstraints
	})
	probe("affinity", func(pod *v1.Pod) { pod.Spec.Affinity = richAffinity() })
	probe("features", func(pod *v1.Pod) { pod.Spec.HostNetwork, pod.Spec.HostUsers = true, ptr.To(false) })
	probe("team", func(pod *v1.Pod) { pod.Namespace = "team-a" })
	return pods
}

// mutations makes the changes of a test.
type mutations struct {
	*world
	// before are the decisions of the reference before a change, by the name of the pod.
	before map[string]reference.Decision
	// changes counts the changes, and changed the decisions that the reference changed.
	changes, changed int
}

const (
	// maxFailures is the number of wrong decisions after which a test makes no more changes.
	maxFailures = 10
	// unchangedSample is the interval at which decisions are compared that the reference has not changed.
	unchangedSample = 64
)

func newMutations(t *testing.T, shards int, pods ...*v1.Pod) *mutations {
	m := &mutations{world: mutationWorld(t, shards), before: map[string]reference.Decision{}}
	for _, pod := range pods {
		m.before[pod.Name] = m.referenceDecision(pod)
		_, _ = m.scheduleAndCompareTo(pod, m.before[pod.Name])
	}
	return m
}

// compare compares the decisions about pods after a change with those of the reference, if the change has
// changed them, and some of the others.
func (m *mutations) compare(path string, pods ...*v1.Pod) {
	m.changes++
	m.record("mutate %s", path)
	for _, pod := range pods {
		if want, err, matters := m.decide(pod, pod.Name); matters {
			m.compareChanged(pod, want, err)
		}
	}
}

// decide returns the decision of the reference about a pod, and whether to compare it: if it differs from that
// about the pod with a name before the change, and sometimes otherwise.
func (m *mutations) decide(pod *v1.Pod, name string) (want reference.Decision, err error, matters bool) {
	want, err = m.reference.Decide(m.ctx, slices.Collect(maps.Values(m.Pods)), slices.Collect(maps.Values(m.Nodes)), pod)
	if err != nil || !sameDecision(m.before[name], want) {
		m.changed++
		return want, err, true
	}
	return want, nil, m.changes%unchangedSample == 0
}

// compareChanged compares one decision with that of the reference, which may be an error.
func (m *mutations) compareChanged(pod *v1.Pod, want reference.Decision, err error) {
	if m.search != nil {
		m.search.EndBatch()
		if !validPreferences(pod) {
			// Upstream's error depends on the number of nodes that fit. The API server refuses such pods.
			return
		}
	}
	if err == nil {
		_, _ = m.scheduleAndCompareTo(pod, want)
		return
	}
	m.updateSnapshots()
	info, _ := framework.NewPodInfo(trimmed(m.world, pod))
	result, got := m.sched.SchedulePod(m.ctx, m.sched.Profiles[v1.DefaultSchedulerName], framework.NewCycleState(), &framework.QueuedPodInfo{PodInfo: info})
	if got == nil {
		m.fail(pod, "SchedulePod() = %s, want an error as upstream: %v", result.SuggestedHost, err)
	}
}

// sameDecision returns whether two decisions are the same, including scores and reasons.
func sameDecision(a, b reference.Decision) bool {
	if (a.FitError == nil) != (b.FitError == nil) || a.FitError != nil && a.FitError.Error() != b.FitError.Error() {
		return false
	}
	return a.Feasible == b.Feasible && a.Best.Equal(b.Best) && maps.Equal(a.Scores, b.Scores)
}

// validPreferences returns whether the preferred node affinity of a pod is well-formed.
func validPreferences(pod *v1.Pod) bool {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return true
	}
	_, err := nodeaffinity.NewPreferredSchedulingTerms(pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	return err == nil
}

// TestEveryFieldOfPendingPod changes each field of pods that wait for a node, and compares the decisions of one
// scheduler, and of a leader whose nodes are divided among two shards.
func TestEveryFieldOfPendingPod(t *testing.T) {
	t.Parallel()
	m := newMutations(t, 0, pendingPods()...)
	sharded := newMutations(t, 2, pendingPods()...)
	for _, base := range pendingPods() {
		if fitting := m.before[base.Name].Feasible; fitting < 2 {
			t.Fatalf("pod %s fits on %d nodes before a change, want several", base.Name, fitting)
		}
		eachMutation(base, (*v1.Pod).DeepCopy, func(path string, changed *v1.Pod) {
			if m.failures+sharded.failures >= maxFailures {
				return
			}
			m.changes++
			m.record("mutate %s%s", base.Name, path)
			if want, err, matters := m.decide(changed, base.Name); matters {
				m.compareChanged(changed, want, err)
				sharded.record("mutate %s%s", base.Name, path)
				sharded.compareChanged(changed, want, err)
			}
		})
	}
	m.report(5000)
}

// TestEveryFieldOfNode changes each field of a node.
func TestEveryFieldOfNode(t *testing.T) {
	t.Parallel()
	m := newMutations(t, 0, probes()...)
	base := m.Nodes["node-1"]
	eachMutation(base, (*v1.Node).DeepCopy, func(path string, changed *v1.Node) {
		if changed.Name != base.Name || m.failures >= maxFailures || strings.HasSuffix(path, ".SizeBytes") {
			// If nodes report different sizes of an image, kube-scheduler's cache uses the first one it
			// got. The snapshot of the reference uses that of each node.
			return
		}
		m.Nodes[base.Name] = changed
		m.sched.Cache.UpdateNode(klog.Logger{}, trimmed(m.world, base), trimmed(m.world, changed))
		m.compare("node"+path, probes()...)
		m.Nodes[base.Name] = base
		m.sched.Cache.UpdateNode(klog.Logger{}, trimmed(m.world, changed), trimmed(m.world, base))
	})
	m.report(500)
}

// TestEveryFieldOfBoundPod changes each field of a pod on a node that the API server allows to change.
func TestEveryFieldOfBoundPod(t *testing.T) {
	t.Parallel()
	m := newMutations(t, 0, probes()...)
	base := m.Pods["bound-0"]
	eachMutation(base, (*v1.Pod).DeepCopy, func(path string, changed *v1.Pod) {
		if changed.Name != base.Name || changed.Namespace != base.Namespace || changed.UID != base.UID || m.failures >= maxFailures || !mayUpdate(t, base, changed) {
			return
		}
		m.Pods[base.UID] = changed
		m.must(m.sched.Cache.UpdatePod(klog.Logger{}, trimmed(m.world, base), trimmed(m.world, changed)))
		m.compare("bound pod"+path, probes()...)
		m.Pods[base.UID] = base
		m.must(m.sched.Cache.UpdatePod(klog.Logger{}, trimmed(m.world, changed), trimmed(m.world, base)))
	})
	m.report(25)
}

// report logs the numbers of changes, and fails the test if fewer than least decisions changed.
func (m *mutations) report(least int) {
	m.t.Helper()
	m.t.Logf("%d changes, %d changed decisions", m.changes, m.changed)
	if m.changed < least {
		m.t.Errorf("%d decisions changed, want at least %d", m.changed, least)
	}
}

// mayUpdate returns whether the API server would accept an update of a pod, of its status or of its resources,
// or whether only the API server itself changes the field.
func mayUpdate(t *testing.T, before, after *v1.Pod) bool {
	if (before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) {
		return true
	}
	internal := func(pod *v1.Pod) *core.Pod {
		pod = pod.DeepCopy()
		pod.ResourceVersion = "1"
		converted := &core.Pod{}
		if err := corev1.Convert_v1_Pod_To_core_Pod(pod, converted, nil); err != nil {
			t.Fatal(err)
		}
		return converted
	}
	old, updated := internal(before), internal(after)
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&updated.Spec, &old.Spec, &updated.ObjectMeta, &old.ObjectMeta)
	if !equality.Semantic.DeepEqual(before.Status, after.Status) {
		return len(validation.ValidatePodStatusUpdate(updated, old, options)) == 0
	}
	return len(validation.ValidatePodUpdate(updated, old, options)) == 0 || len(validation.ValidatePodResize(internal(after), old, options)) == 0
}
