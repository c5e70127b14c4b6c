package rank

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Answer answers a query of the leader for the nodes of this replica. The cluster must not change during
// the call.
func (r *Ranker) Answer(ctx context.Context, query *wire.Query) (_ *wire.Answer, err error) {
	profile, pod, err := r.decodeQuery(query)
	if err != nil {
		return nil, err
	}
	defer r.Rescue(ctx, pod.Pod, &err)
	// This must precede Class, because the terms of nominated pods count like those of running pods.
	nominees := r.nomineesByNode(pod.Pod)
	agreed := &Agreement{TermKeys: query.TermKeys, PerNode: query.NodeByNode, inUse: query.InUse}
	indexClass, class, err := r.Class(ctx, profile, pod, agreed)
	var missing missingTermKeys
	if errors.As(err, &missing) {
		return &wire.Answer{Missing: missing.TermKeys}, nil
	}
	if err != nil {
		return nil, err
	}
	if class.countsByHostname && r.Cluster.SharedHosts > 0 {
		return nil, reasonSharedHostname
	}
	nominated, refused, err := class.evaluateNominated(ctx, pod.Pod, nominees)
	if err != nil {
		return nil, err
	}
	a := &wire.Answer{}
	if query.NodeByNode {
		w := &nodeWalk{class: class, except: sets.New(query.Exclude...), refused: refused, answer: a}
		a.Summary, err = w.summarize(ctx, indexClass, query.Node, nominated)
		a.InUse = r.Cluster.ClaimsInUse(pod.Pod)
	} else {
		a.Summary, err = r.summarize(indexClass, query, nominated)
	}
	if err == nil && query.Preempt {
		err = r.proposeAround(ctx, query, a, class, indexClass, pod.Pod, nominated, refused)
	}
	if err != nil {
		return nil, err
	}
	if query.Reasons {
		indexClass.WithNominated(nominated, func() { class.explain(a, indexClass, refused, query.NodeByNode) })
	}
	class.translate(a)
	r.reportLabels(a, query)
	class.countImages(a)
	if n := r.Cluster.Lookup(query.Node); n != nil && query.IncludeNode {
		a.Node, a.Pods = marshalNode(n)
	}
	return a, nil
}

// marshalNode returns the encodings of a node and of its pods. The pods have no constraints, which only [IndexPlugins]
// read: the leader does not run these plugins, and constraints of one pod can be as large as the pod may be.
func marshalNode(n *cache.Node) (node []byte, pods [][]byte) {
	for _, info := range n.Info.Pods {
		pod := *info.GetPod()
		pod.Spec.Affinity, pod.Spec.TopologySpreadConstraints = nil, nil
		pods = append(pods, wire.MarshalObject(&pod))
	}
	return wire.MarshalObject(n.Info.Node()), pods
}

// decodeQuery returns the profile and the pod of a query.
func (r *Ranker) decodeQuery(query *wire.Query) (*Profile, *framework.PodInfo, error) {
	profile := r.Profiles[query.Profile]
	if profile == nil {
		return nil, nil, fmt.Errorf("unknown scheduler profile %q: configure the same profiles in all replicas", query.Profile)
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(query.Pod); err != nil {
		return nil, nil, fmt.Errorf("decoding the pod of a query: %w", err)
	}
	// Upstream also ignores malformed terms that the API server accepted.
	info, _ := framework.NewPodInfo(pod)
	return profile, info, nil
}

// summarize returns the summary of all nodes, or of the one node that the query names.
func (r *Ranker) summarize(indexClass *index.Class, query *wire.Query, nominated []index.Nominated) (index.Summary, error) {
	if query.Node == "" {
		return indexClass.Summarize(nominated, query.Offers, query.Steps)
	}
	if n := r.Cluster.Lookup(query.Node); n != nil {
		return indexClass.SummarizeOnly(n.ID, nominated, query.Steps)
	}
	return indexClass.Counts(), nil
}

// nodeNominees are those pods nominated to a node that have at least the priority of the pod to schedule.
// The pod must leave room for them.
type nodeNominees struct {
	node  *cache.Node
	kinds []index.KindID
}

// nomineesByNode returns, for each node, the nominated pods for which a pod must leave room. It makes their affinity
// terms count.
func (r *Ranker) nomineesByNode(pod *v1.Pod) []nodeNominees {
	var all []nodeNominees
	kinds := sets.New[index.KindID]()
	for name := range r.Nominations.ByNode() {
		n := r.Cluster.Lookup(name)
		if n == nil {
			continue
		}
		node := nodeNominees{node: n}
		for _, nominated := range r.Nominations.NominatedPodsForNode(name) {
			other := nominated.GetPod()
			if other.UID != pod.UID && corev1helpers.PodPriority(other) >= corev1helpers.PodPriority(pod) {
				node.kinds = append(node.kinds, r.Cluster.Names.Kind(nominated))
			}
		}
		if len(node.kinds) > 0 {
			all = append(all, node)
			kinds.Insert(node.kinds...)
		}
	}
	r.Cluster.Names.CountNominated(kinds)
	return all
}

// evaluateNominated returns how nominated pods affect the query, and the statuses of the nodes on which the
// pod does not fit together with them.
func (cl *Class) evaluateNominated(ctx context.Context, pod *v1.Pod, nominees []nodeNominees) ([]index.Nominated, map[index.NodeID]*fwk.Status, error) {
	var nominated []index.Nominated
	refused := map[index.NodeID]*fwk.Status{}
	for _, node := range nominees {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		a := index.Nominated{Node: node.node.ID}
		status := cl.fitsWithNominated(ctx, pod, node.node)
		if !status.IsSuccess() && !status.IsRejected() {
			return nil, nil, status.AsError()
		}
		if status.IsRejected() {
			a.Barred = true
			refused[a.Node] = status
		}
		// Count nominated pods also on a barred node, because a preemption dry run may evict pods
		// there.
		if len(cl.Spec.Counters) > 0 {
			for _, kind := range node.kinds {
				a.Extra = append(a.Extra, cl.Amounts(kind)...)
			}
		}
		nominated = append(nominated, a)
	}
	return nominated, refused, nil
}

// translate replaces the numbers in a summary by indexes into the strings of the answer, because other
// replicas have other numbers.
func (cl *Class) translate(a *wire.Answer) {
	numbers := intern.Numbers{wire.NoValue: 0, "": index.EmptyValue}
	a.Values, a.ImageSets = []string{wire.NoValue, ""}, cl.imageSetKeys
	a.Renumber(func(value int32) int32 {
		number, fresh := numbers.Of([]byte(cl.cluster.Names.ValueOf[value]))
		if fresh {
			a.Values = append(a.Values, cl.cluster.Names.ValueOf[value])
		}
		return number
	}, func(profile int32) int32 { return profile })
	for g := range a.Summary.Groups {
		for _, tier := range a.Summary.Groups[g].Tiers {
			for o := range tier.Offers {
				offer := &tier.Offers[o]
				a.Names = append(a.Names, cl.cluster.ByID[offer.Node].Info.Node().Name)
				offer.Node = index.NodeID(len(a.Names) - 1)
			}
		}
	}
}

// explain adds to an answer the reasons for which nodes do not fit: the statuses in refused, and, unless
// each node was evaluated separately (walk), the rejections by plugins that read only one node.
func (cl *Class) explain(a *wire.Answer, indexClass *index.Class, refused map[index.NodeID]*fwk.Status, walk bool) {
	refusals := a.CopyRefusals()
	defer func() { a.Refusals = refusals.List() }()
	add := func(status *fwk.Status, id index.NodeID) {
		refusal := refusalOf(status, 1)
		if cl.asksCountersBefore(status.Plugin()) {
			counts := indexClass.NodeCounts(id)
			refusal.Counts = &counts
		}
		refusals.Add(refusal)
	}
	for id, status := range refused {
		add(status, id)
	}
	if walk {
		return
	}
	counts := make([]int, len(cl.refusals))
	indexClass.EachRefused(func(number int32, ids []index.NodeID) {
		late := cl.asksCountersBefore(cl.refusals[number].Plugin())
		for _, id := range ids {
			switch {
			case refused[id] != nil:
			case late:
				add(cl.refusals[number], id)
			default:
				counts[number]++
			}
		}
	})
	for number, nodes := range counts {
		if nodes > 0 {
			refusals.Add(refusalOf(cl.refusals[number], nodes))
		}
	}
}

// refusalOf returns the refusal of a number of nodes with a status.
func refusalOf(status *fwk.Status, nodes int) wire.Refusal {
	return wire.Refusal{Code: int(status.Code()), Plugin: status.Plugin(), Reasons: status.Reasons(), Nodes: nodes}
}
