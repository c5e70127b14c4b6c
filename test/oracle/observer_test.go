package oracle

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
)

// observer computes what kube-scheduler's plugins decide about the objects in the API server.
type observer struct {
	t         *testing.T
	ctx       context.Context
	client    kubernetes.Interface
	kinds     []kind
	reference *reference.Reference
	args      *config.DefaultPreemptionArgs
}

// kind is a kind of objects that the plugins read.
type kind struct {
	informer cache.SharedIndexInformer
	list     func() (runtime.Object, error)
}

// state has all objects that the plugins read, at one time.
type state struct {
	nodes []*v1.Node
	pods  []*v1.Pod
	// others are the objects of all other kinds.
	others []runtime.Object
}

func newObserver(t *testing.T, client kubernetes.Interface) *observer {
	t.Helper()
	cfg, err := latest.Default()
	must(t, err)
	ctx := klog.NewContext(t.Context(), klog.Logger{})
	factory := informers.NewSharedInformerFactory(client, 0)
	o := &observer{t: t, ctx: ctx, client: client, kinds: kindsOf(ctx, client, factory)}
	o.reference, err = reference.New(ctx, cfg.Profiles[0], factory)
	must(t, err)
	for _, plugin := range cfg.Profiles[0].PluginConfig {
		if args, ok := plugin.Args.(*config.DefaultPreemptionArgs); ok {
			o.args = args
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return o
}

// kindsOf returns the kinds of which a world has objects.
func kindsOf(ctx context.Context, client kubernetes.Interface, f informers.SharedInformerFactory) []kind {
	all := metav1.ListOptions{}
	core, storage, devices := client.CoreV1(), client.StorageV1(), client.ResourceV1()
	return []kind{
		{f.Core().V1().Nodes().Informer(), func() (runtime.Object, error) { return core.Nodes().List(ctx, all) }},
		{f.Core().V1().Pods().Informer(), func() (runtime.Object, error) { return core.Pods("").List(ctx, all) }},
		{f.Core().V1().Namespaces().Informer(), func() (runtime.Object, error) { return core.Namespaces().List(ctx, all) }},
		{f.Core().V1().Services().Informer(), func() (runtime.Object, error) { return core.Services("").List(ctx, all) }},
		{f.Core().V1().PersistentVolumes().Informer(), func() (runtime.Object, error) { return core.PersistentVolumes().List(ctx, all) }},
		{f.Core().V1().PersistentVolumeClaims().Informer(), func() (runtime.Object, error) { return core.PersistentVolumeClaims("").List(ctx, all) }},
		{f.Apps().V1().ReplicaSets().Informer(), func() (runtime.Object, error) { return client.AppsV1().ReplicaSets("").List(ctx, all) }},
		{f.Storage().V1().StorageClasses().Informer(), func() (runtime.Object, error) { return storage.StorageClasses().List(ctx, all) }},
		{f.Storage().V1().CSINodes().Informer(), func() (runtime.Object, error) { return storage.CSINodes().List(ctx, all) }},
		{f.Policy().V1().PodDisruptionBudgets().Informer(), func() (runtime.Object, error) { return client.PolicyV1().PodDisruptionBudgets("").List(ctx, all) }},
		{f.Resource().V1().ResourceClaims().Informer(), func() (runtime.Object, error) { return devices.ResourceClaims("").List(ctx, all) }},
		{f.Resource().V1().ResourceSlices().Informer(), func() (runtime.Object, error) { return devices.ResourceSlices().List(ctx, all) }},
		{f.Resource().V1().DeviceClasses().Informer(), func() (runtime.Object, error) { return devices.DeviceClasses().List(ctx, all) }},
	}
}

// observe lists all objects, and waits until the informers of the plugins have exactly these objects.
func (o *observer) observe() (s state) {
	o.t.Helper()
	eventually(o.t, settleTimeout, "the informers of the reference have what the API server has", func() error {
		s = state{}
		for _, kind := range o.kinds {
			list, err := kind.list()
			must(o.t, err)
			if err := o.collect(&s, list, kind.informer.GetStore()); err != nil {
				return err
			}
		}
		return o.devicesCaughtUp(s)
	})
	return s
}

// collect adds the objects of a list to the state. It returns an error if the informer has other objects.
func (o *observer) collect(s *state, list runtime.Object, informer cache.Store) error {
	count := 0
	err := meta.EachListItem(list, func(object runtime.Object) error {
		count++
		switch object := object.(type) {
		case *v1.Node:
			s.nodes = append(s.nodes, object)
		case *v1.Pod:
			s.pods = append(s.pods, object)
		default:
			s.others = append(s.others, object)
		}
		accessor, err := meta.Accessor(object)
		must(o.t, err)
		known, exists, err := informer.Get(object)
		must(o.t, err)
		if !exists || known.(metav1.Object).GetResourceVersion() != accessor.GetResourceVersion() {
			return fmt.Errorf("the informer does not have version %s of %T %s", accessor.GetResourceVersion(), object, accessor.GetName())
		}
		return nil
	})
	if have := len(informer.ListKeys()); err == nil && have != count {
		err = fmt.Errorf("the informer has %d objects instead of the %d of %T", have, count, list)
	}
	return err
}

// devicesCaughtUp returns an error if the manager of devices, which gets its objects from the informers in
// the background, does not have the objects of the state.
func (o *observer) devicesCaughtUp(s state) error {
	versions := map[string]string{}
	devices := o.reference.Framework().SharedDRAManager()
	claims, err := devices.ResourceClaims().List()
	must(o.t, err)
	for _, claim := range claims {
		versions[string(claim.UID)] = claim.ResourceVersion
	}
	slices, err := devices.ResourceSlices().ListWithDeviceTaintRules()
	must(o.t, err)
	for _, slice := range slices {
		versions[string(slice.UID)] = slice.ResourceVersion
	}
	for _, object := range s.others {
		switch object := object.(type) {
		case *resourceapi.ResourceClaim, *resourceapi.ResourceSlice:
			accessor := object.(metav1.Object)
			if uid := string(accessor.GetUID()); versions[uid] == accessor.GetResourceVersion() {
				delete(versions, uid)
				continue
			}
			return fmt.Errorf("the manager of devices does not have the current %T %s", object, accessor.GetName())
		case *resourceapi.DeviceClass:
			name := v1.ResourceName(*object.Spec.ExtendedResourceName)
			if class := devices.DeviceClassResolver().GetDeviceClass(name); class == nil || class.UID != object.UID {
				return fmt.Errorf("the manager of devices does not have the current class of %s", name)
			}
		}
	}
	if len(versions) > 0 {
		return fmt.Errorf("the manager of devices has %d deleted objects", len(versions))
	}
	return nil
}

// expectation is what kube-scheduler's plugins decide about a pod.
type expectation struct {
	reference.Decision
	// candidates are all nodes on which evictions would make room for the pod, with the pods to evict.
	// It is empty if a node fits.
	candidates []preemption.Candidate
	// bestAfter are the other nodes to which the pod may be bound after the evictions of a best candidate, by its node
	// (see [observer.bestAfter]).
	bestAfter map[string]sets.Set[string]
}

// expect computes the decision about a pending pod.
func (o *observer) expect(s state, pod *v1.Pod) expectation {
	o.t.Helper()
	must(o.t, o.reference.Nominate(s.nominated()))
	decision, err := o.reference.Decide(o.ctx, s.assigned(), s.nodes, pod)
	must(o.t, err)
	e := expectation{Decision: decision}
	if decision.Feasible == 0 {
		e.candidates, err = o.reference.Preempt(o.ctx, o.args, s.assigned(), s.nodes, pod)
		must(o.t, err)
		e.bestAfter = map[string]sets.Set[string]{}
	}
	for _, candidate := range e.bestCandidates() {
		e.bestAfter[candidate.Name()] = o.bestAfter(s, pod, candidate)
	}
	return e
}

// fits returns whether the pod fits on a node.
func (e *expectation) fits(node string) bool {
	_, scored := e.Scores[node]
	return scored || e.Best.Has(node)
}

// bestCandidates returns the candidates that are equally good in upstream's order, and better than all others.
func (e *expectation) bestCandidates() (best []preemption.Candidate) {
	for _, candidate := range e.candidates {
		order := -1
		if len(best) > 0 {
			rank, bestRank := reference.CandidateRank(candidate), reference.CandidateRank(best[0])
			order = slices.Compare(rank[:], bestRank[:])
		}
		switch {
		case order < 0:
			best = []preemption.Candidate{candidate}
		case order == 0:
			best = append(best, candidate)
		}
	}
	return best
}

// maxChanging is the largest number of ending pods for which bestAfter decides in all states between the evictions
// and their end. There are 3^maxChanging such states.
const maxChanging = 5

// bestAfter returns the nodes to which a pod may be bound after the evictions of a candidate, to whose node the pod is
// then nominated. A victim may occupy more than its node, such as a claim with the access mode ReadWriteOncePod. If it
// ends before the others, the pod may be bound to another node.
//
// The scheduler may retry the pod in any state in which each ending pod still runs, terminates or is gone, because it
// learns of each separately. The result has the best nodes of all these states. It has all nodes that fit after the
// evictions in two cases: if more than maxChanging pods end, and if another pending pod may be scheduled meanwhile,
// because the room that this pod takes or leaves is then not known.
func (o *observer) bestAfter(s state, pod *v1.Pod, candidate preemption.Candidate) sets.Set[string] {
	nominated := pod.DeepCopy()
	nominated.Status.NominatedNodeName = candidate.Name()
	ending := slices.Clone(candidate.Victims().Pods)
	for _, other := range s.assigned() {
		if other.DeletionTimestamp != nil && other.Spec.NodeName == candidate.Name() && !slices.ContainsFunc(ending, func(p *v1.Pod) bool { return p.UID == other.UID }) {
			ending = append(ending, other)
		}
	}
	all := s
	for _, victim := range ending {
		s = s.without(victim.UID)
	}
	if len(ending) > maxChanging || all.without(pod.UID).waiting() {
		for _, victim := range candidate.Victims().Pods {
			all = all.without(victim.UID)
		}
		decision, err := o.reference.Decide(o.ctx, all.assigned(), all.nodes, pod)
		must(o.t, err)
		return sets.KeySet(decision.Scores).Union(decision.Best)
	}
	return o.bestWhileEnding(s, nominated, ending)
}

// bestWhileEnding returns the best nodes for a pod in all states in which each of the other pods still runs,
// terminates or is gone.
func (o *observer) bestWhileEnding(s state, pod *v1.Pod, ending []*v1.Pod) sets.Set[string] {
	if len(ending) == 0 {
		decision, err := o.reference.Decide(o.ctx, s.assigned(), s.nodes, pod)
		must(o.t, err)
		return decision.Best
	}
	best := o.bestWhileEnding(s, pod, ending[1:])
	terminating := ending[0].DeepCopy()
	terminating.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	for _, version := range []*v1.Pod{ending[0], terminating} {
		with := s
		with.pods = append(slices.Clone(s.pods), version)
		best = best.Union(o.bestWhileEnding(with, pod, ending[1:]))
	}
	return best
}

// waiting returns whether a pod is pending and not held back by a gate.
func (s state) waiting() bool {
	return slices.ContainsFunc(s.pods, func(pod *v1.Pod) bool {
		return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0
	})
}

// assigned returns the pods that are on a node and occupy it.
func (s state) assigned() (pods []*v1.Pod) {
	for _, pod := range s.pods {
		if pod.Spec.NodeName != "" && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed {
			pods = append(pods, pod)
		}
	}
	return pods
}

// nominated returns the pending pods that are nominated to a node.
func (s state) nominated() (pods []*v1.Pod) {
	for _, pod := range s.pods {
		if pod.Spec.NodeName == "" && pod.Status.NominatedNodeName != "" && pod.DeletionTimestamp == nil {
			pods = append(pods, pod)
		}
	}
	return pods
}

// without returns the state without a pod.
func (s state) without(pod types.UID) state {
	s.pods = slices.DeleteFunc(slices.Clone(s.pods), func(other *v1.Pod) bool { return other.UID == pod })
	return s
}
