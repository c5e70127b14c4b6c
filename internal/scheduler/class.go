package scheduler

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/helper"
	plugins "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// unranked is why the index does not rank nodes for a pod, in one word for the
// metric.
type unranked string

func (reason unranked) Error() string {
	return "the index does not rank nodes for this pod: " + string(reason)
}

// Reasons for which upstream's own search is used.
const (
	reasonExtender       unranked = "extender"
	reasonPlugin         unranked = "plugin"
	reasonVolumes        unranked = "volumes"
	reasonClaims         unranked = "resource-claims"
	reasonNamedNodes     unranked = "named-nodes"
	reasonNominated      unranked = "nominated-pods"
	reasonSharedHostname unranked = "shared-hostname"
	reasonConstraints    unranked = "constraints"
	reasonRejected       unranked = "rejected"
	reasonUnschedulable  unranked = "unschedulable"
)

// rejection is what plugins say of a pod that they reject before they look at nodes.
type rejection struct {
	status  *fwk.Status
	plugins sets.Set[string]
}

func (r rejection) Error() string { return r.status.Message() }

func (rejection) Unwrap() error { return reasonRejected }

// class is what plugins have prepared for the pods of a class. It answers the
// questions of the index.
type class struct {
	cluster *cluster
	profile *profile
	pod     *framework.PodInfo
	// state of a cycle as PreFilter and PreScore leave it, and what they wrote.
	state   *framework.CycleState
	written map[fwk.StateKey]fwk.StateData
	// skipFilter and skipScore for the pod; forVerdict is state with more skipped:
	// what the index does in their place.
	skipFilter, skipScore sets.Set[string]
	images                []string
	profiles              numbers
	profileImages         [][]string
	profileKeys           []string
	requiredNode          nodeaffinity.RequiredNodeAffinity
	terms                 terms
	refusals              []*fwk.Status
	// request of the pod, and what plugins say of shapes, if it is simple.
	request request
	simple  bool
	// crowded is what plugins say of a node that would fit without the pods nominated to
	// it, by what it lacks, if the pod is simple.
	crowded                  map[lack]*fwk.Status
	fitWeight, balanceWeight int64
	shapes                   map[index.ShapeID]*shapeVerdict
	spec                     index.Spec
	// agreed is nil if this is the only index.
	agreed *agreement
	// named are the only nodes that the pod can go to, and by are the plugins that say so;
	// that is so for pods only for which each node is looked at by itself.
	named sets.Set[string]
	by    []string
	// hostTerms says that values of the hostname label have to be those of one node.
	hostTerms bool
}

// recorder notes what plugins write into the state of a cycle.
type recorder struct {
	fwk.CycleState
	written map[fwk.StateKey]fwk.StateData
}

func (r recorder) Write(key fwk.StateKey, value fwk.StateData) {
	r.written[key] = value
	r.CycleState.Write(key, value)
}

// newClass prepares what a pod stands for.
func newClass(ctx context.Context, c *cluster, p *profile, pod *framework.PodInfo, agreed *agreement) (*class, error) {
	// The queue changes its own when the pod is updated.
	pod = pod.DeepCopy()
	cl := &class{
		cluster: c, profile: p, pod: pod, agreed: agreed, state: framework.NewCycleState(),
		written:      map[fwk.StateKey]fwk.StateData{},
		profiles:     numbers{},
		shapes:       map[index.ShapeID]*shapeVerdict{},
		crowded:      map[lack]*fwk.Status{},
		requiredNode: nodeaffinity.GetRequiredNodeAffinity(pod.GetPod()),
	}
	if err := cl.prepare(ctx); err != nil {
		return nil, err
	}
	cl.listImages()
	cl.request, cl.simple = newRequest(cl.pod), cl.isSimple()
	cl.fitWeight, cl.balanceWeight = cl.weight(plugins.NodeResourcesFit), cl.weight(plugins.NodeResourcesBalancedAllocation)
	if err := cl.specify(); err != nil {
		return nil, err
	}
	return cl, nil
}

// prepare runs PreFilter and PreScore as for a cluster without nodes. What plugins
// count there is what the index counts in their place.
func (cl *class) prepare(ctx context.Context) (err error) {
	state := recorder{CycleState: cl.state, written: cl.written}
	pod, fw := cl.pod.GetPod(), cl.profile.framework
	walk := cl.agreed != nil && cl.agreed.walk
	if walk && cl.agreed.inUse {
		cl.cluster.countClaims(pod, 1)
		defer cl.cluster.countClaims(pod, -1)
	}
	cl.cluster.snapshot.hidden(walk, func() {
		result, status, unschedulable := fw.RunPreFilterPlugins(ctx, state, pod)
		switch {
		case status.IsRejected():
			err = rejection{status, unschedulable}
		case !status.IsSuccess():
			err = status.AsError()
		case !result.AllNodes() && !walk:
			err = reasonNamedNodes
		default:
			err = fw.RunPreScorePlugins(ctx, state, pod, nil).AsError()
		}
		if !result.AllNodes() {
			cl.named, cl.by = result.NodeNames, sets.List(unschedulable)
		}
	})
	if err != nil {
		return err
	}
	cl.skipFilter, cl.skipScore = cl.state.GetSkipFilterPlugins(), cl.state.GetSkipScorePlugins()
	for name := range optional {
		if !walk && !cl.skipFilter.Has(name) && cl.profile.filters.Has(name) {
			return unranked(name)
		}
	}
	cl.state.SetSkipFilterPlugins(cl.skipFilter.Union(ours))
	cl.state.SetSkipScorePlugins(cl.skipScore.Union(ours))
	return nil
}

// adopt gives the state of a cycle what PreFilter would have written into it.
func (cl *class) adopt(state fwk.CycleState) {
	for key, value := range cl.written {
		state.Write(key, own(value))
	}
	state.SetSkipFilterPlugins(cl.skipFilter)
	state.SetSkipScorePlugins(cl.skipScore)
}

// own is a copy of what a plugin wrote, for one pod. Some plugins return themselves
// as a clone and write to it later, such as VolumeBinding when it reserves; what they
// write for a pod that does not concern them is empty.
func own(value fwk.StateData) fwk.StateData {
	if v := reflect.ValueOf(value); v.Kind() == reflect.Pointer && !v.IsNil() && v.Elem().IsZero() {
		return reflect.New(v.Type().Elem()).Interface().(fwk.StateData)
	}
	return value.Clone()
}

// Verdict says what the plugins say that look at one node.
func (cl *class) Verdict(slot index.Slot, state *index.State) (index.Verdict, error) {
	if cl.agreed != nil && cl.agreed.walk {
		// Each node will be asked, and not its state.
		return index.Verdict{}, nil
	}
	verdict, known, err := cl.quickVerdict(slot, state)
	if known || err != nil {
		return verdict, err
	}
	verdict, refused, err := cl.ask(cl.state, cl.cluster.bySlot[slot].info)
	if refused != nil {
		verdict.Refusal = cl.refusal(refused)
	}
	return verdict, err
}

// ask runs the plugins that look at one node and that a state does not skip; the
// status is that of the one that refuses the node.
func (cl *class) ask(state fwk.CycleState, info *framework.NodeInfo) (index.Verdict, *fwk.Status, error) {
	ctx, pod := context.Background(), cl.pod.GetPod()
	status := cl.profile.framework.RunFilterPlugins(ctx, state, pod, info)
	if status.IsRejected() {
		return index.Verdict{}, status, nil
	}
	if !status.IsSuccess() {
		return index.Verdict{}, nil, status.AsError()
	}
	scores, status := cl.profile.framework.RunRawScorePlugins(ctx, state, pod, info)
	if !status.IsSuccess() {
		return index.Verdict{}, nil, status.AsError()
	}
	verdict := index.Verdict{Fits: true, Raw: make([]int64, len(normalized)), Profile: cl.imageProfile(info)}
	for _, score := range scores {
		if i := normalizedIndex(score.Name); i >= 0 {
			verdict.Raw[i] = score.Score
		} else {
			verdict.Static += cl.profile.weights[score.Name] * score.Score
		}
	}
	return verdict, nil, nil
}

func normalizedIndex(name string) int {
	for i := range normalized {
		if normalized[i].name == name {
			return i
		}
	}
	return -1
}

// normalizedTerms are those that are not skipped for the pod; a term that is
// adds nothing to any node.
func (cl *class) normalizedTerms() []index.Normalized {
	terms := make([]index.Normalized, len(normalized))
	for i, plugin := range normalized {
		if !cl.skipScore.Has(plugin.name) {
			terms[i] = index.Normalized{Weight: cl.profile.weights[plugin.name], Reverse: plugin.reverse}
		}
	}
	return terms
}

// Facts are the values of topology keys on a node, and what counts there.
func (cl *class) Facts(shape index.ShapeID) index.Facts {
	return cl.facts(cl.cluster.names.shapeOf[shape])
}

// FactsAt are the facts about a node, where its name matters.
func (cl *class) FactsAt(slot index.Slot) (index.Facts, bool) {
	if cl.agreed == nil || !cl.agreed.walk || !namesNodes(&cl.pod.GetPod().Spec) {
		return index.Facts{}, false
	}
	return cl.facts(cl.cluster.bySlot[slot].info.Node()), true
}

func (cl *class) facts(node *v1.Node) index.Facts {
	_, host := node.Labels[v1.LabelHostname]
	facts := index.Facts{Host: host, Values: make([]int32, len(cl.spec.Keys))}
	for i, key := range cl.spec.Keys {
		facts.Values[i] = cl.cluster.names.value(node.Labels, key)
	}
	for i := range cl.terms.counters {
		if cl.terms.counters[i].eligible(cl, node) {
			facts.Eligible |= 1 << i
		}
	}
	return facts
}

// listImages notes the images of a pod, once for each place where it has one.
func (cl *class) listImages() {
	spec := &cl.pod.GetPod().Spec
	for i := range spec.InitContainers {
		cl.images = append(cl.images, imageName(spec.InitContainers[i].Image))
	}
	for i := range spec.Containers {
		cl.images = append(cl.images, imageName(spec.Containers[i].Image))
	}
	for i := range spec.Volumes {
		if image := spec.Volumes[i].Image; image != nil {
			cl.images = append(cl.images, imageName(image.Reference))
		}
	}
}

// imageProfile is the number of which images of the pod a node has.
func (cl *class) imageProfile(info *framework.NodeInfo) int32 {
	var there []string
	key := make([]byte, 0, len(cl.images))
	for _, name := range cl.images {
		_, has := info.ImageStates[name]
		key = appendBool(key, has)
		if has {
			there = append(there, name)
		}
	}
	return cl.profileNumber(key, there)
}

// profileNumber is the number of a profile, of which the key has a byte for each image
// of the pod.
func (cl *class) profileNumber(key []byte, there []string) int32 {
	number, fresh := cl.profiles.of(key)
	if fresh {
		cl.profileImages = append(cl.profileImages, there)
		cl.profileKeys = append(cl.profileKeys, string(key))
	}
	return number
}

// Local is the score for images that a node has, which are worth more the more
// nodes have them.
func (cl *class) Local(profile int32) int64 {
	weight := cl.profile.weights[plugins.ImageLocality]
	there := cl.profileImages[profile]
	if weight == 0 || len(there) == 0 {
		return 0
	}
	sum, nodes := int64(0), cl.cluster.size()
	for _, name := range there {
		if image := cl.cluster.images[name]; image != nil {
			spread := float64(image.NumNodes) / float64(nodes)
			sum += int64(float64(image.Size) * spread)
		}
	}
	return weight * imageScore(sum, len(cl.images))
}

// key is the same for pods that every plugin treats alike.
func (c *cluster) classKey(p *profile, pod fwk.PodInfo) ([]byte, error) {
	object := pod.GetPod()
	spec := &object.Spec
	key := appendString(c.names.key[:0], p.framework.ProfileName())
	key = appendString(key, object.Namespace)
	key = binary.AppendVarint(key, int64(c.names.version))
	key = appendRequests(key, pod)
	key = appendLabels(key, spec.NodeSelector)
	for i := range spec.Tolerations {
		key = appendMessage(key, &spec.Tolerations[i])
	}
	key = append(key, 0)
	for _, port := range schedutil.GetHostPorts(object) {
		key = appendMessage(key, &port)
	}
	key = append(key, 0)
	key = appendPodImages(key, spec)
	if affinity := spec.Affinity; affinity != nil {
		key = appendMessage(key, affinity)
	}
	key = append(key, 0)
	for i := range spec.TopologySpreadConstraints {
		key = appendMessage(key, &spec.TopologySpreadConstraints[i])
	}
	key = append(key, 0)
	if selector := p.defaultSelector(object); selector != nil {
		key = appendString(key, selector.String())
	}
	key = append(key, 0)
	key, err := p.appendFeatures(key, spec)
	if err != nil {
		return nil, err
	}
	key = c.appendVisibleLabels(key, object)
	c.names.key = key
	return key, nil
}

// appendRequests adds what a pod requests, as its spec says it: what that comes to is
// the same for all that say the same.
func appendRequests(key []byte, pod fwk.PodInfo) []byte {
	object := pod.GetPod()
	spec := &object.Spec
	key = binary.AppendUvarint(key, uint64(len(spec.InitContainers)))
	for i := range spec.InitContainers {
		policy := spec.InitContainers[i].RestartPolicy
		key = appendBool(key, policy != nil && *policy == v1.ContainerRestartPolicyAlways)
		key = appendList(key, spec.InitContainers[i].Resources.Requests)
	}
	key = binary.AppendUvarint(key, uint64(len(spec.Containers)))
	for i := range spec.Containers {
		key = appendList(key, spec.Containers[i].Resources.Requests)
	}
	key = appendList(key, spec.Overhead)
	key = appendBool(key, spec.Resources != nil)
	if spec.Resources != nil {
		key = appendList(key, spec.Resources.Requests)
	}
	if resized(object) || len(object.Status.NodeAllocatableResourceClaimStatuses) > 0 {
		key = appendResources(key, pod.CalculateResource())
	}
	return append(key, 0)
}

// appendList adds resources and how much of them; first the two that nearly every
// pod requests.
func appendList(key []byte, list v1.ResourceList) []byte {
	others := len(list)
	for _, name := range [2]v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		amount, requested := list[name]
		key = appendBool(key, requested)
		if requested {
			key = appendAmount(key, name, amount)
			others--
		}
	}
	if others > 0 {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			key = appendString(key, string(name))
			key = appendAmount(key, name, list[name])
		}
	}
	return append(key, 0)
}

func appendAmount(key []byte, name v1.ResourceName, amount resource.Quantity) []byte {
	if name == v1.ResourceCPU {
		return binary.AppendVarint(key, amount.MilliValue())
	}
	return binary.AppendVarint(key, amount.Value())
}

func appendResources(key []byte, resources fwk.PodResource) []byte {
	for _, amount := range []int64{
		resources.Resource.GetMilliCPU(), resources.Resource.GetMemory(), resources.Resource.GetEphemeralStorage(),
		resources.Non0CPU, resources.Non0Mem,
	} {
		key = binary.AppendVarint(key, amount)
	}
	return appendScalars(key, resources.Resource.GetScalarResources())
}

func appendPodImages(key []byte, spec *v1.PodSpec) []byte {
	for i := range spec.InitContainers {
		key = appendString(key, spec.InitContainers[i].Image)
	}
	for i := range spec.Containers {
		key = appendString(key, spec.Containers[i].Image)
	}
	for i := range spec.Volumes {
		if image := spec.Volumes[i].Image; image != nil {
			key = appendString(key, image.Reference)
		}
	}
	return append(key, 0)
}

// message is what the types of the API are in protobuf.
type message interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// appendMessage adds an object; maps in it are in order.
func appendMessage(key []byte, m message) []byte {
	size := m.Size()
	key = binary.AppendUvarint(key, uint64(size)+1)
	start := len(key)
	key = append(key, make([]byte, size)...)
	if _, err := m.MarshalToSizedBuffer(key[start:]); err != nil {
		panic(fmt.Sprintf("marshalling to memory: %v", err))
	}
	return key
}

// appendVisibleLabels adds those labels of a pod that a selector looks at: of pods
// that are there, or its own.
func (c *cluster) appendVisibleLabels(key []byte, pod *v1.Pod) []byte {
	own := ownSelectorKeys(pod)
	keys := make([]string, 0, len(pod.Labels))
	for label := range pod.Labels {
		if c.names.visible.Has(label) || own.Has(label) {
			keys = append(keys, label)
		}
	}
	sort.Strings(keys)
	for _, label := range keys {
		key = appendString(key, label)
		key = appendString(key, pod.Labels[label])
	}
	return append(key, 0)
}

// defaultSelector selects what a pod without constraints of its own is spread with;
// nil if it is not.
func (p *profile) defaultSelector(pod *v1.Pod) labels.Selector {
	if len(pod.Spec.TopologySpreadConstraints) > 0 || len(p.spread.defaults) == 0 || !p.spread.filter && !p.spread.score {
		return nil
	}
	s := &p.spread
	selector := helper.DefaultSelector(pod, s.services, s.controllers, s.replicaSets, s.statefulSets)
	if selector.Empty() {
		return nil
	}
	return selector
}

// Sizes between which an image counts (imagelocality/image_locality.go).
const (
	smallImageBytes = 23 << 20
	largeImageBytes = 1000 << 20
)

// imageScore scales a sum of sizes, which belong to so many images, to a score.
func imageScore(sum int64, images int) int64 {
	most := int64(largeImageBytes) * int64(images)
	sum = min(max(sum, smallImageBytes), most)
	return fwk.MaxScore * (sum - smallImageBytes) / (most - smallImageBytes)
}

// imageName is the name of an image as nodes report it.
func imageName(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		name += ":latest"
	}
	return name
}
