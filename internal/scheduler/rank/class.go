package rank

import (
	"context"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
)

// Class is a pod class: pods that every plugin treats alike. It has the plugins' state for these pods, and
// is the [index.Judge] that computes verdicts.
type Class struct {
	cluster *cache.Cluster
	profile *Profile
	pod     *framework.PodInfo
	// state is a cycle state after PreFilter and PreScore. written is the data that these plugins
	// wrote into it.
	state   *framework.CycleState
	written map[fwk.StateKey]fwk.StateData
	// skipFilter and skipScore are the plugins that skip the pod. state also skips the plugins that
	// the index replaces.
	skipFilter, skipScore sets.Set[string]
	// Images are the images of the pod, once for each use.
	Images []string
	// imageSets are the numbers of image sets, by key. imageSetImages and imageSetKeys have the
	// images and the key of each image set, by number.
	imageSets      intern.Numbers
	imageSetImages [][]string
	imageSetKeys   []string
	requiredNode   nodeaffinity.RequiredNodeAffinity
	terms          terms
	// refusals are the statuses of rejected nodes, by [index.Verdict.Refusal]. refusalNumbers are these numbers, by the
	// key of the status. refusalKey is a buffer for a key.
	refusals       []*fwk.Status
	refusalNumbers intern.Numbers
	refusalKey     []byte
	// request has the requests of the pod. For simple, see [Class.readRequest].
	request request
	simple  bool
	// lackStatuses are the statuses of nodes that fit only without their nominated pods, by the
	// resources that these nodes lack. Only simple classes use them.
	lackStatuses map[lack]*fwk.Status
	// fitWeight and balanceWeight are the score weights of NodeResourcesFit and
	// NodeResourcesBalancedAllocation.
	fitWeight, balanceWeight int64
	// shapes are the verdicts of the plugins that read only the shape of a node.
	shapes map[index.ShapeID]*shapeVerdict
	Spec   index.Spec
	// agreed is nil without replicas: then all nodes are in this index.
	agreed *Agreement
	// conditions are what the volumes and devices of the pod require of nodes. They are part of the class key.
	conditions
	// uncountedRoom is true if the room for volumes is not known on some node.
	uncountedRoom bool
	// namedNodes are the only nodes on which the pod may run; nil if it may run on all nodes.
	// NamingPlugins are the plugins that restrict it. Only classes whose nodes are evaluated
	// separately have them.
	namedNodes    sets.Set[string]
	NamingPlugins []string
	// countsByHostname is true if the class counts pods by hostname label. The index can do that
	// only if no two nodes have the same hostname label.
	countsByHostname bool
}

// recorder is a cycle state that records what plugins write into it.
type recorder struct {
	fwk.CycleState
	written map[fwk.StateKey]fwk.StateData
}

// Write records the data and writes it.
func (r recorder) Write(key fwk.StateKey, value fwk.StateData) {
	r.written[key] = value
	r.CycleState.Write(key, value)
}

// NewClass makes the class of a pod. It returns a [FallbackReason] if the index cannot rank the pod.
func NewClass(ctx context.Context, c *cache.Cluster, p *Profile, pod *framework.PodInfo, agreed *Agreement) (*Class, error) {
	return newClass(ctx, c, p, pod, agreed, conditions{})
}

// newClass is [NewClass] with the conditions of the volumes of the pod.
func newClass(ctx context.Context, c *cache.Cluster, p *Profile, pod *framework.PodInfo, agreed *Agreement, volumes conditions) (*Class, error) {
	// Copy, because the queue changes its pod info when the pod is updated.
	pod = pod.DeepCopy()
	if agreed == nil || !agreed.PerNode {
		removeVolumes(&pod.Pod.Spec)
	}
	cl := &Class{
		cluster: c, profile: p, pod: pod, agreed: agreed, conditions: volumes, state: framework.NewCycleState(),
		written:        map[fwk.StateKey]fwk.StateData{},
		imageSets:      intern.Numbers{},
		refusalNumbers: intern.Numbers{},
		shapes:         map[index.ShapeID]*shapeVerdict{},
		lackStatuses:   map[lack]*fwk.Status{},
		requiredNode:   nodeaffinity.GetRequiredNodeAffinity(pod.GetPod()),
	}
	if err := cl.prepare(ctx); err != nil {
		return nil, err
	}
	cl.listImages()
	cl.fitWeight, cl.balanceWeight = cl.weight(pluginnames.NodeResourcesFit), cl.weight(pluginnames.NodeResourcesBalancedAllocation)
	if err := cl.readRequest(); err != nil {
		return nil, err
	}
	if err := cl.specify(); err != nil {
		return nil, err
	}
	return cl, nil
}

// removeVolumes removes the volumes and resource claims of a pod whose class other pods share. The plugins that read them are
// asked for each pod. Images remain, because the class key contains them.
func removeVolumes(spec *v1.PodSpec) {
	spec.ResourceClaims = nil
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(volume v1.Volume) bool { return volume.Image == nil })
}

// prepare runs PreFilter and PreScore. Unless each node is evaluated separately, it hides the nodes from
// them: the index counts pods in place of these plugins.
func (cl *Class) prepare(ctx context.Context) (err error) {
	state := recorder{CycleState: cl.state, written: cl.written}
	pod, fw := cl.pod.GetPod(), cl.profile.Framework
	walk := cl.agreed != nil && cl.agreed.PerNode
	if walk {
		cl.cluster.CountClaims(slices.Values(cl.agreed.inUse), 1)
		defer cl.cluster.CountClaims(slices.Values(cl.agreed.inUse), -1)
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
			err = cl.preScore(ctx, state)
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
	cl.state.SetSkipFilterPlugins(cl.skipFilter.Union(IndexPlugins).Union(cl.profile.foreign))
	cl.state.SetSkipScorePlugins(cl.skipScore.Union(IndexPlugins))
	return nil
}

// preScore runs PreScore. If it fails, the full scan has to find the node: upstream runs PreScore only if several
// nodes fit. A leader has no full scan.
func (cl *Class) preScore(ctx context.Context, state fwk.CycleState) error {
	status := cl.profile.Framework.RunPreScorePlugins(ctx, state, cl.pod.GetPod(), nil)
	if !status.IsSuccess() && cl.agreed == nil {
		return reasonPreScore
	}
	return status.AsError()
}

// WriteState writes into a cycle state the data that PreFilter and PreScore wrote for the class.
func (cl *Class) WriteState(state fwk.CycleState) {
	for key, value := range cl.written {
		state.Write(key, copyForPod(value))
	}
	state.SetSkipFilterPlugins(cl.skipFilter)
	state.SetSkipScorePlugins(cl.skipScore)
}

// copyForPod returns a copy of plugin data for one pod. The data of some plugins, such as VolumeBinding,
// returns itself as its clone, although the plugin writes to it later. For a pod that such a plugin does
// not handle, the data is empty, and copyForPod returns new empty data.
func copyForPod(value fwk.StateData) fwk.StateData {
	if v := reflect.ValueOf(value); v.Kind() == reflect.Pointer && !v.IsNil() && v.Elem().IsZero() {
		return reflect.New(v.Type().Elem()).Interface().(fwk.StateData)
	}
	return value.Clone()
}

// Verdict returns the verdict of the plugins that read one node on a node state. id is a node with that
// state.
func (cl *Class) Verdict(id index.NodeID, state *index.State) (index.Verdict, error) {
	if cl.agreed != nil && cl.agreed.PerNode {
		// The verdicts of nodeWalk are used instead.
		return index.Verdict{}, nil
	}
	verdict, known, err := cl.arithmeticVerdict(id, state)
	if !known && err == nil {
		var refused *fwk.Status
		if verdict, refused, err = cl.runPlugins(context.Background(), cl.state, cl.cluster.ByID[id].Info); refused != nil {
			verdict.Refusal = cl.refusal(refused)
		}
	}
	if verdict.Fits && len(cl.volumes) > 0 {
		room := cl.cluster.Names.RoomOf[state.Extra]
		cl.uncountedRoom = cl.uncountedRoom || slices.ContainsFunc(room, func(r cache.VolumeRoom) bool { return r.Driver == uncounted })
		if cl.exceeds(room) {
			verdict = index.Verdict{Refusal: cl.refusal(tooManyVolumes)}
		}
	}
	return verdict, err
}

// tooManyVolumes is the status of nodes without room for the volumes of a pod.
var tooManyVolumes = fwk.NewStatus(fwk.Unschedulable, nodevolumelimits.ErrReasonMaxVolumeCountExceeded).WithPlugin(pluginnames.NodeVolumeLimits)

// runPlugins runs the filter and score plugins for a node, except those that the cycle state skips. If a
// plugin rejects the node, it returns the status.
func (cl *Class) runPlugins(ctx context.Context, state fwk.CycleState, info *framework.NodeInfo) (index.Verdict, *fwk.Status, error) {
	pod := cl.pod.GetPod()
	status := cl.profile.Framework.RunFilterPlugins(ctx, state, pod, info)
	if status.IsRejected() {
		return index.Verdict{}, status, nil
	}
	if !status.IsSuccess() {
		return index.Verdict{}, nil, status.AsError()
	}
	if refused := cl.sets.refuse(info.Node().Labels); refused != nil {
		return index.Verdict{}, refused, nil
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

// normalizedIndex returns the position of a plugin in normalizedPlugins; -1 if it is not in the list.
func normalizedIndex(name string) int {
	for i := range normalizedPlugins {
		if normalizedPlugins[i].name == name {
			return i
		}
	}
	return -1
}

// normalizedTerms returns the score terms of normalizedPlugins. A plugin that skips the pod has weight 0.
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

// TopologyAt returns the topology of one node if the pod selects nodes by name or hostname, and false
// otherwise. The shape of a node does not contain its name and hostname.
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
	for i := range cl.terms.counters[:min(len(cl.terms.counters), index.MaxSpreadCounters)] {
		if cl.terms.counters[i].eligible(cl, node) {
			topology.Eligible |= 1 << i
		}
	}
	return topology
}
