package rank

import (
	"context"
	"reflect"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
)

// Class is a pod class: pods that every plugin treats alike. It has the plugins' state for them,
// and computes verdicts for the index.
type Class struct {
	cluster *cache.Cluster
	profile *Profile
	pod     *framework.PodInfo
	// state is the state of a scheduling cycle after PreFilter and PreScore, and written is what
	// they wrote.
	state   *framework.CycleState
	written map[fwk.StateKey]fwk.StateData
	// skipFilter and skipScore are the plugins that skip the pod. state skips more: the plugins
	// that the index replaces.
	skipFilter, skipScore sets.Set[string]
	Images                []string
	imageSets             intern.Numbers
	imageSetImages        [][]string
	imageSetKeys          []string
	requiredNode          nodeaffinity.RequiredNodeAffinity
	terms                 terms
	refusals              []*fwk.Status
	// request is what the pods of a simple class request; see [Class.isSimple].
	request request
	simple  bool
	// lackStatuses are the statuses of nodes that fit only without their nominated pods, by what
	// they lack, for a simple class.
	lackStatuses             map[lack]*fwk.Status
	fitWeight, balanceWeight int64
	// shapes are the verdicts of plugins that read only the shape of a node.
	shapes map[index.ShapeID]*shapeVerdict
	Spec   index.Spec
	// agreed is nil if all nodes are in this index.
	agreed *Agreement
	// namedNodes are the only nodes that the pod can go to, and NamingPlugins are the plugins that
	// restrict it. Only classes whose nodes are evaluated one by one have them.
	namedNodes    sets.Set[string]
	NamingPlugins []string
	// hostTerms is set if the class counts pods by hostname label. Then no two nodes may share a
	// value of it.
	hostTerms bool
}

// recorder notes what plugins write into the state of a scheduling cycle.
type recorder struct {
	fwk.CycleState
	written map[fwk.StateKey]fwk.StateData
}

// Write notes the data and writes it.
func (r recorder) Write(key fwk.StateKey, value fwk.StateData) {
	r.written[key] = value
	r.CycleState.Write(key, value)
}

// NewClass makes the class of a pod.
func NewClass(ctx context.Context, c *cache.Cluster, p *Profile, pod *framework.PodInfo, agreed *Agreement) (*Class, error) {
	// The queue changes its pod info when the pod is updated.
	pod = pod.DeepCopy()
	cl := &Class{
		cluster: c, profile: p, pod: pod, agreed: agreed, state: framework.NewCycleState(),
		written:      map[fwk.StateKey]fwk.StateData{},
		imageSets:    intern.Numbers{},
		shapes:       map[index.ShapeID]*shapeVerdict{},
		lackStatuses: map[lack]*fwk.Status{},
		requiredNode: nodeaffinity.GetRequiredNodeAffinity(pod.GetPod()),
	}
	if err := cl.prepare(ctx); err != nil {
		return nil, err
	}
	cl.listImages()
	cl.request, cl.simple = newRequest(cl.pod), cl.isSimple()
	cl.fitWeight, cl.balanceWeight = cl.weight(pluginnames.NodeResourcesFit), cl.weight(pluginnames.NodeResourcesBalancedAllocation)
	if err := cl.specify(); err != nil {
		return nil, err
	}
	return cl, nil
}

// prepare runs PreFilter and PreScore as if the cluster had no nodes. The index counts what they
// would have counted.
func (cl *Class) prepare(ctx context.Context) (err error) {
	state := recorder{CycleState: cl.state, written: cl.written}
	pod, fw := cl.pod.GetPod(), cl.profile.Framework
	walk := cl.agreed != nil && cl.agreed.PerNode
	if walk && cl.agreed.inUse {
		cl.cluster.CountClaims(pod, 1)
		defer cl.cluster.CountClaims(pod, -1)
	}
	cl.cluster.Snapshot.HideNodes(walk, func() {
		result, status, unschedulable := fw.RunPreFilterPlugins(ctx, state, pod)
		switch {
		case status.IsRejected():
			err = Rejection{status, unschedulable}
		case !status.IsSuccess():
			err = status.AsError()
		case !result.AllNodes() && !walk:
			err = ReasonNamedNodes
		default:
			err = fw.RunPreScorePlugins(ctx, state, pod, nil).AsError()
		}
		if !result.AllNodes() {
			cl.namedNodes, cl.NamingPlugins = result.NodeNames, sets.List(unschedulable)
		}
	})
	if err != nil {
		return err
	}
	cl.skipFilter, cl.skipScore = cl.state.GetSkipFilterPlugins(), cl.state.GetSkipScorePlugins()
	for name := range usuallySkippedPlugins {
		if !walk && !cl.skipFilter.Has(name) && cl.profile.filters.Has(name) {
			return FallbackReason(name)
		}
	}
	cl.state.SetSkipFilterPlugins(cl.skipFilter.Union(IndexPlugins))
	cl.state.SetSkipScorePlugins(cl.skipScore.Union(IndexPlugins))
	return nil
}

// WriteState writes into the state of a scheduling cycle what PreFilter would have written.
func (cl *Class) WriteState(state fwk.CycleState) {
	for key, value := range cl.written {
		state.Write(key, copyForPod(value))
	}
	state.SetSkipFilterPlugins(cl.skipFilter)
	state.SetSkipScorePlugins(cl.skipScore)
}

// copyForPod returns a copy of plugin data for one pod. Some plugins return themselves as the clone
// and write to it later, such as VolumeBinding in Reserve. For a pod that they do not handle their
// data is empty, and this returns new empty data.
func copyForPod(value fwk.StateData) fwk.StateData {
	if v := reflect.ValueOf(value); v.Kind() == reflect.Pointer && !v.IsNil() && v.Elem().IsZero() {
		return reflect.New(v.Type().Elem()).Interface().(fwk.StateData)
	}
	return value.Clone()
}

// Verdict returns what the plugins that read one node decide about a node with some state.
func (cl *Class) Verdict(id index.NodeID, state *index.State) (index.Verdict, error) {
	if cl.agreed != nil && cl.agreed.PerNode {
		// Nodes are evaluated one by one, not by state.
		return index.Verdict{}, nil
	}
	verdict, known, err := cl.quickVerdict(id, state)
	if known || err != nil {
		return verdict, err
	}
	verdict, refused, err := cl.runPlugins(cl.state, cl.cluster.ByID[id].Info)
	if refused != nil {
		verdict.Refusal = cl.refusal(refused)
	}
	return verdict, err
}

// runPlugins runs the plugins that read one node and are not skipped by the state. The status is
// that of the plugin that rejected the node.
func (cl *Class) runPlugins(state fwk.CycleState, info *framework.NodeInfo) (index.Verdict, *fwk.Status, error) {
	ctx, pod := context.Background(), cl.pod.GetPod()
	status := cl.profile.Framework.RunFilterPlugins(ctx, state, pod, info)
	if status.IsRejected() {
		return index.Verdict{}, status, nil
	}
	if !status.IsSuccess() {
		return index.Verdict{}, nil, status.AsError()
	}
	scores, status := cl.profile.Framework.RunRawScorePlugins(ctx, state, pod, info)
	if !status.IsSuccess() {
		return index.Verdict{}, nil, status.AsError()
	}
	verdict := index.Verdict{Fits: true, Raw: make([]int64, len(normalizedPlugins)), ImageSet: cl.imageSet(info)}
	for _, score := range scores {
		if i := normalizedIndex(score.Name); i >= 0 {
			verdict.Raw[i] = score.Score
		} else {
			verdict.Static += cl.profile.weights[score.Name] * score.Score
		}
	}
	return verdict, nil, nil
}

// normalizedIndex returns the position of a plugin in normalizedPlugins; -1 if it is not there.
func normalizedIndex(name string) int {
	for i := range normalizedPlugins {
		if normalizedPlugins[i].name == name {
			return i
		}
	}
	return -1
}

// normalizedTerms returns the score terms that compare nodes. A term that is skipped for the pod
// has weight 0.
func (cl *Class) normalizedTerms() []index.Normalized {
	terms := make([]index.Normalized, len(normalizedPlugins))
	for i, plugin := range normalizedPlugins {
		if !cl.skipScore.Has(plugin.name) {
			terms[i] = index.Normalized{Weight: cl.profile.weights[plugin.name], Reverse: plugin.reverse}
		}
	}
	return terms
}

// Topology returns the topology of the nodes of a shape.
func (cl *Class) Topology(shape index.ShapeID) index.Topology {
	return cl.topology(cl.cluster.Names.ShapeOf[shape])
}

// TopologyAt returns the topology of one node if the class depends on the names of nodes.
func (cl *Class) TopologyAt(id index.NodeID) (index.Topology, bool) {
	if cl.agreed == nil || !cl.agreed.PerNode || !NamesNodes(&cl.pod.GetPod().Spec) {
		return index.Topology{}, false
	}
	return cl.topology(cl.cluster.ByID[id].Info.Node()), true
}

// topology computes the topology of a node.
func (cl *Class) topology(node *v1.Node) index.Topology {
	_, host := node.Labels[v1.LabelHostname]
	topology := index.Topology{Host: host, Values: make([]int32, len(cl.Spec.Keys))}
	for i, key := range cl.Spec.Keys {
		topology.Values[i] = cl.cluster.Names.Value(node.Labels, key)
	}
	for i := range cl.terms.counters {
		if cl.terms.counters[i].eligible(cl, node) {
			topology.Eligible |= 1 << i
		}
	}
	return topology
}
