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

// Answer answers a query about the nodes here for a pod class. The cluster must not change during
// the call.
func (r *Ranker) Answer(ctx context.Context, query *wire.Query) (_ *wire.Answer, err error) {
	profile, pod, err := r.decodeQuery(query)
	if err != nil {
		return nil, err
	}
	defer r.Rescue(ctx, pod.Pod, &err)
	// The terms of nominated pods count like those of running pods.
	nominated := r.nominatedAhead(pod.Pod)
	agreed := &Agreement{TermKeys: query.TermKeys, PerNode: query.NodeByNode, inUse: query.InUse}
	found, class, err := r.Class(ctx, profile, pod, agreed)
	var missing missingTermKeys
	if errors.As(err, &missing) {
		return &wire.Answer{Missing: missing.TermKeys}, nil
	}
	if err != nil {
		return nil, err
	}
	if class.hostTerms && r.Cluster.SharedHosts > 0 {
		return nil, reasonSharedHostname
	}
	around, refused, err := class.surroundings(ctx, pod.Pod, nominated)
	if err != nil {
		return nil, err
	}
	if query.Preempt {
		return r.proposeAround(ctx, query, class, found, pod.Pod, around, refused)
	}
	a := &wire.Answer{}
	if query.NodeByNode {
		w := &nodeWalk{ctx: ctx, class: class, pod: pod.Pod, except: sets.New(query.Exclude...), refused: refused}
		a.Summary, err = found.SummarizeEach(w.nodeIDs(query.Node), around, w.verdict)
		a.InUse = r.Cluster.ClaimsInUse(pod.Pod)
	} else {
		a.Summary, err = r.summarize(found, query, around)
	}
	if err != nil {
		return nil, err
	}
	class.translate(a)
	class.countImages(a)
	if n := r.Cluster.Lookup(query.Node); n != nil && query.IncludeNode {
		a.Node, a.Pods = marshalNode(n)
	}
	if query.Reasons {
		class.explain(a, found, refused, query.NodeByNode)
	}
	return a, nil
}

// marshalNode returns the encodings of a node and of its pods.
func marshalNode(n *cache.Node) (node []byte, pods [][]byte) {
	for _, pod := range n.Info.Pods {
		pods = append(pods, wire.MarshalObject(pod.GetPod()))
	}
	return wire.MarshalObject(n.Info.Node()), pods
}

// decodeQuery returns the profile and the pod of a query.
func (r *Ranker) decodeQuery(query *wire.Query) (*Profile, *framework.PodInfo, error) {
	profile := r.Profiles[query.Profile]
	if profile == nil {
		return nil, nil, fmt.Errorf("unknown profile %q: all replicas need the same configuration", query.Profile)
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(query.Pod); err != nil {
		return nil, nil, fmt.Errorf("decoding the pod of a query: %w", err)
	}
	// Upstream also ignores malformed terms that the API server accepted.
	info, _ := framework.NewPodInfo(pod)
	return profile, info, nil
}

// summarize returns the summary of all nodes, or of the only node that the query names.
func (r *Ranker) summarize(found *index.Class, query *wire.Query, around []index.Nominated) (index.Summary, error) {
	if query.Node == "" {
		return found.Summarize(around, query.Offers, query.Steps)
	}
	if n := r.Cluster.Lookup(query.Node); n != nil {
		return found.SummarizeOnly(n.ID, around, query.Steps)
	}
	return found.Counts(), nil
}

// nominees are the pods nominated to a node for which another pod has to leave room.
type nominees struct {
	node  *cache.Node
	kinds []index.KindID
}

// nominatedAhead returns the nominated pods, by node, for which a pod has to leave room.
func (r *Ranker) nominatedAhead(pod *v1.Pod) []nominees {
	var all []nominees
	for name := range r.Nominations.ByNode() {
		n := r.Cluster.Lookup(name)
		if n == nil {
			continue
		}
		place := nominees{node: n}
		for _, nominated := range r.Nominations.NominatedPodsForNode(name) {
			other := nominated.GetPod()
			if other.UID != pod.UID && corev1helpers.PodPriority(other) >= corev1helpers.PodPriority(pod) {
				place.kinds = append(place.kinds, r.Cluster.Names.Kind(nominated))
			}
		}
		if len(place.kinds) > 0 {
			all = append(all, place)
		}
	}
	return all
}

// surroundings returns how nominated pods change nodes, and the statuses of nodes where the pod
// does not fit because of them.
func (cl *Class) surroundings(ctx context.Context, pod *v1.Pod, nominated []nominees) ([]index.Nominated, map[index.NodeID]*fwk.Status, error) {
	var around []index.Nominated
	refused := map[index.NodeID]*fwk.Status{}
	for _, place := range nominated {
		a := index.Nominated{Node: place.node.ID}
		status := cl.fitsWithNominated(ctx, pod, place.node)
		if !status.IsSuccess() && !status.IsRejected() {
			return nil, nil, status.AsError()
		}
		if status.IsRejected() {
			a.Barred = true
			refused[a.Node] = status
		}
		// Nominated pods also count on a node that they bar: the node may not be barred once other
		// pods have left.
		if len(cl.Spec.Counters) > 0 {
			for _, kind := range place.kinds {
				a.Extra = append(a.Extra, cl.Amounts(kind)...)
			}
		}
		around = append(around, a)
	}
	return around, refused, nil
}

// translate replaces the numbers in a summary by values that are valid on other replicas.
func (cl *Class) translate(a *wire.Answer) {
	words := intern.Numbers{wire.NoValue: 0, "": index.EmptyValue}
	a.Values, a.ImageSets = []string{wire.NoValue, ""}, cl.imageSetKeys
	a.Summary.Renumber(func(value int32) int32 {
		number, fresh := words.Of([]byte(cl.cluster.Names.ValueOf[value]))
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
	a.ReferencedLabels = cl.cluster.Names.Visible.UnsortedList()
}

// explain adds to an answer why nodes do not fit: because of pods nominated to them, or because a
// plugin that reads one node rejects them.
func (cl *Class) explain(a *wire.Answer, found *index.Class, refused map[index.NodeID]*fwk.Status, walk bool) {
	note := func(status *fwk.Status, nodes int) {
		if nodes > 0 {
			a.AddRefusal(wire.Refusal{Code: int(status.Code()), Plugin: status.Plugin(), Reasons: status.Reasons(), Nodes: nodes})
		}
	}
	for _, status := range refused {
		note(status, 1)
	}
	if walk {
		return
	}
	counts := make([]int, len(cl.refusals))
	found.EachRefused(func(number int32, ids []index.NodeID) {
		for _, id := range ids {
			if refused[id] == nil {
				counts[number]++
			}
		}
	})
	for number, nodes := range counts {
		note(cl.refusals[number], nodes)
	}
}
