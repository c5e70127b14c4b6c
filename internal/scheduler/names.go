package scheduler

import (
	"encoding/binary"
	"maps"
	"slices"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// names gives numbers to what many nodes or pods have in common.
type names struct {
	shapes numbers
	extras numbers
	kinds  numbers
	values numbers
	// valueOf are the values of topology keys, by number.
	valueOf []string
	// shapeOf are nodes with what matters of labels and taints, by number of shape.
	shapeOf []*v1.Node
	// kindOf are the pods that kinds were made for, by number.
	kindOf []kind
	// withTerms are the kinds that say something of other pods, and visible the
	// labels of other pods that they look at; version counts how often it grew.
	withTerms []index.KindID
	visible   sets.Set[string]
	version   int
	// labels are the keys of node labels that something refers to. All others are
	// not part of a shape: with them each node would have one of its own.
	labels []string
	key    []byte
}

// kind is what a pod on a node is like for the pods to come.
type kind struct {
	info        fwk.PodInfo
	terminating bool
}

type numbers map[string]int32

// of is the number of a key, counted from 0; whether it is new.
func (n numbers) of(key []byte) (int32, bool) {
	if number, known := n[string(key)]; known {
		return number, false
	}
	number := int32(len(n))
	n[string(key)] = number
	return number, true
}

// newNames has no names yet but knows labels that are part of shapes.
func newNames(labels ...string) names {
	// The values of topology keys have 0 for none and 1 for the empty one.
	values := numbers{wire.NoValue: 0, "": index.EmptyValue}
	return names{
		shapes: numbers{}, extras: numbers{"": 0}, kinds: numbers{}, values: values, valueOf: []string{wire.NoValue, ""},
		visible: sets.New[string](),
		labels:  slices.Clone(labels),
	}
}

// usualLabels are labels of nodes that pods often refer to.
var usualLabels = []string{
	v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelArchStable, v1.LabelOSStable, v1.LabelInstanceTypeStable,
}

// len is how many names were given. They are never taken back one by one, because
// changes that classes have yet to read may speak of them.
func (n *names) len() int { return len(n.shapes) + len(n.extras) + len(n.kinds) + len(n.values) }

// state is what a node is in as far as one cannot tell nodes apart.
func (n *names) state(node *node) index.State {
	requested, nonZero := node.info.Requested, node.info.NonZeroRequested
	return index.State{
		Shape:    node.shape,
		MilliCPU: requested.MilliCPU, Memory: requested.Memory, EphemeralStorage: requested.EphemeralStorage,
		NonZeroMilliCPU: nonZero.MilliCPU, NonZeroMemory: nonZero.Memory,
		Pods: int32(len(node.info.Pods)), Extra: n.extra(node.info),
	}
}

// extra is the number of extended resources requested, and ports used, on a node.
func (n *names) extra(info *framework.NodeInfo) int32 {
	if len(info.Requested.ScalarResources) == 0 && len(info.UsedPorts) == 0 {
		return 0
	}
	key := appendScalars(n.key[:0], info.Requested.ScalarResources)
	var ports []string
	for ip, used := range info.UsedPorts {
		for port := range used {
			ports = append(ports, string(binary.AppendVarint([]byte(ip+"/"+port.Protocol+"/"), int64(port.Port))))
		}
	}
	sort.Strings(ports)
	for _, port := range ports {
		key = appendString(key, port)
	}
	n.key = key
	number, _ := n.extras.of(key)
	return number
}

// shape is the number of what a node is like without its pods.
func (n *names) shape(info *framework.NodeInfo) index.ShapeID {
	node := info.Node()
	key := n.key[:0]
	_, named := node.Labels[v1.LabelHostname]
	key = appendBool(key, node.Spec.Unschedulable)
	key = appendBool(key, named)
	allocatable := info.Allocatable
	for _, amount := range []int64{
		allocatable.MilliCPU, allocatable.Memory, allocatable.EphemeralStorage, int64(allocatable.AllowedPodNumber),
	} {
		key = binary.AppendVarint(key, amount)
	}
	key = appendScalars(key, allocatable.ScalarResources)
	for _, taint := range node.Spec.Taints {
		key = appendString(key, taint.Key)
		key = appendString(key, taint.Value)
		key = appendString(key, string(taint.Effect))
	}
	key = append(key, 0)
	for number, label := range n.labels {
		// A label that a node does not have is no part of its shape: so most shapes stay
		// what they are when something refers to one more.
		if value, labelled := node.Labels[label]; labelled {
			key = binary.AppendUvarint(key, uint64(number)+1)
			key = appendString(key, value)
		}
	}
	key = append(key, 0)
	key = appendImages(key, node.Status.Images)
	for _, feature := range node.Status.DeclaredFeatures {
		key = appendString(key, feature)
	}
	n.key = key
	number, fresh := n.shapes.of(key)
	if fresh {
		n.shapeOf = append(n.shapeOf, n.example(node))
	}
	return index.ShapeID(number)
}

// example is a node of the shape of another, with no more than that.
func (n *names) example(node *v1.Node) *v1.Node {
	example := &v1.Node{}
	example.Labels = map[string]string{}
	for _, label := range append([]string{v1.LabelHostname}, n.labels...) {
		if value, labelled := node.Labels[label]; labelled {
			example.Labels[label] = value
		}
	}
	example.Spec.Taints = node.Spec.Taints
	return example
}

func appendImages(key []byte, images []v1.ContainerImage) []byte {
	var all []string
	for _, image := range images {
		all = append(all, image.Names...)
	}
	sort.Strings(all)
	for _, name := range all {
		key = appendString(key, name)
	}
	return append(key, 0)
}

func appendScalars(key []byte, scalars map[v1.ResourceName]int64) []byte {
	resources := make([]string, 0, len(scalars))
	for resource, amount := range scalars {
		if amount != 0 {
			resources = append(resources, string(resource))
		}
	}
	sort.Strings(resources)
	for _, resource := range resources {
		key = appendString(key, resource)
		key = binary.AppendVarint(key, scalars[v1.ResourceName(resource)])
	}
	return append(key, 0)
}

// appendString adds a string so that no other list of strings looks the same; an
// empty one differs from the end of a list.
func appendString(key []byte, s string) []byte {
	key = binary.AppendUvarint(key, uint64(len(s))+1)
	return append(key, s...)
}

func appendBool(key []byte, yes bool) []byte {
	if yes {
		return append(key, 1)
	}
	return append(key, 0)
}

func appendLabels(key []byte, labels map[string]string) []byte {
	keys := make([]string, 0, len(labels))
	for label := range labels {
		keys = append(keys, label)
	}
	sort.Strings(keys)
	for _, label := range keys {
		key = appendString(key, label)
		key = appendString(key, labels[label])
	}
	return append(key, 0)
}

// kind is the number of what a pod on a node is like.
func (n *names) kind(info fwk.PodInfo) index.KindID {
	pod := info.GetPod()
	key := appendString(n.key[:0], pod.Namespace)
	key = appendLabels(key, pod.Labels)
	key = appendBool(key, pod.DeletionTimestamp != nil)
	affinity := pod.Spec.Affinity
	terms := affinity != nil && (affinity.PodAffinity != nil || affinity.PodAntiAffinity != nil)
	if terms {
		key = appendTerms(key, info)
	}
	n.key = key
	number, fresh := n.kinds.of(key)
	if fresh {
		n.kindOf = append(n.kindOf, kind{info: info, terminating: pod.DeletionTimestamp != nil})
		if terms {
			n.withTerms = append(n.withTerms, index.KindID(number))
			n.see(pod)
		}
	}
	return index.KindID(number)
}

// see notes which labels the terms of a pod look at.
func (n *names) see(pod *v1.Pod) {
	keys := ownSelectorKeys(pod)
	if !n.visible.IsSuperset(keys) {
		n.visible = n.visible.Union(keys)
		n.version++
	}
}

// appendTerms adds all that a pod says of other pods.
func appendTerms(key []byte, info fwk.PodInfo) []byte {
	for _, terms := range [][]fwk.AffinityTerm{info.GetRequiredAffinityTerms(), info.GetRequiredAntiAffinityTerms()} {
		for i := range terms {
			key = appendTerm(key, &terms[i])
		}
		key = append(key, 0)
	}
	for _, terms := range [][]fwk.WeightedAffinityTerm{info.GetPreferredAffinityTerms(), info.GetPreferredAntiAffinityTerms()} {
		for i := range terms {
			key = binary.AppendVarint(key, int64(terms[i].Weight))
			key = appendTerm(key, &terms[i].AffinityTerm)
		}
		key = append(key, 0)
	}
	return key
}

func appendTerm(key []byte, term *fwk.AffinityTerm) []byte {
	key = appendString(key, term.TopologyKey)
	key = appendString(key, strings.Join(sets.List(term.Namespaces), ","))
	key = appendString(key, term.NamespaceSelector.String())
	key = appendBool(key, term.NamespaceSelector.Empty())
	key = appendString(key, term.Selector.String())
	return appendBool(key, term.Selector.Empty())
}

// value is the number of a value of a topology key.
func (n *names) value(labels map[string]string, key string) int32 {
	value, labelled := labels[key]
	if !labelled {
		return 0
	}
	return n.valueNumber(value)
}

// valueNumber is the number of a value of a topology key.
func (n *names) valueNumber(value string) int32 {
	number, fresh := n.values.of([]byte(value))
	if fresh {
		n.valueOf = append(n.valueOf, value)
	}
	return number
}

// refer makes label keys part of shapes, and returns those that were not.
func (n *names) refer(keys []string) []string {
	var added []string
	for _, key := range keys {
		if key != v1.LabelHostname && !slices.Contains(n.labels, key) {
			n.labels = append(n.labels, key)
			added = append(added, key)
		}
	}
	return added
}

// sameForScheduling says whether no plugin can tell two versions of a node apart.
func sameForScheduling(before, after *v1.Node) bool {
	return before.Spec.Unschedulable == after.Spec.Unschedulable &&
		maps.EqualFunc(before.Status.Allocatable, after.Status.Allocatable, sameQuantity) &&
		maps.Equal(before.Labels, after.Labels) &&
		slices.EqualFunc(before.Spec.Taints, after.Spec.Taints, sameTaint) &&
		slices.EqualFunc(before.Status.Images, after.Status.Images, sameImage) &&
		slices.Equal(before.Status.DeclaredFeatures, after.Status.DeclaredFeatures)
}

// sameOnNode says whether neither a node nor other pods can tell two versions of a
// pod apart.
func sameOnNode(before, after *v1.Pod) bool {
	return before.UID == after.UID && before.Spec.NodeName == after.Spec.NodeName &&
		(before.DeletionTimestamp == nil) == (after.DeletionTimestamp == nil) &&
		maps.Equal(before.Labels, after.Labels) &&
		sameTake(before, after)
}

// sameTake says whether a pod takes the same from its node as before.
func sameTake(before, after *v1.Pod) bool {
	return sameRequests(before, after) &&
		len(before.Status.NodeAllocatableResourceClaimStatuses) == 0 && len(after.Status.NodeAllocatableResourceClaimStatuses) == 0
}

// sameRequests compares what can change of what a pod takes from its node, once it
// is bound: it can be resized.
func sameRequests(before, after *v1.Pod) bool {
	return slices.EqualFunc(before.Spec.Containers, after.Spec.Containers, sameContainer) &&
		slices.EqualFunc(before.Spec.InitContainers, after.Spec.InitContainers, sameContainer) &&
		(before.Spec.Resources == nil) == (after.Spec.Resources == nil) &&
		(before.Spec.Resources == nil || equality.Semantic.DeepEqual(before.Spec.Resources, after.Spec.Resources)) &&
		!resized(before) && !resized(after)
}

func sameContainer(a, b v1.Container) bool {
	return maps.EqualFunc(a.Resources.Requests, b.Resources.Requests, sameQuantity)
}

// resized says whether what a pod takes may differ from what its spec says.
func resized(pod *v1.Pod) bool {
	for _, statuses := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range statuses {
			if statuses[i].Resources != nil || len(statuses[i].AllocatedResources) > 0 {
				return true
			}
		}
	}
	return pod.Status.Resources != nil || len(pod.Status.AllocatedResources) > 0
}

func sameQuantity(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }

func sameTaint(a, b v1.Taint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect
}

func sameImage(a, b v1.ContainerImage) bool {
	return a.SizeBytes == b.SizeBytes && slices.Equal(a.Names, b.Names)
}
