package cache

import (
	"encoding/binary"
	"slices"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Names assigns numbers to node shapes, sets of extra resources ([index.State.Extra]), pod kinds, and values
// of topology keys.
type Names struct {
	shapes intern.Numbers
	extras intern.Numbers
	// RoomOf has the room for volumes of each set of extra resources, by number.
	RoomOf [][]VolumeRoom
	// room returns the room for volumes on a node; nil if there are no limits.
	room   func(*Node) []VolumeRoom
	kinds  intern.Numbers
	values intern.Numbers
	// ValueOf are the values of topology keys, by number.
	ValueOf []string
	// ShapeOf has a node object with the labels and taints of each shape, by number.
	ShapeOf []*v1.Node
	// KindOf are the pod kinds, by number.
	KindOf []Kind
	active activeTerms
	// Visible are the keys of the pod labels to which the selectors of affinity terms refer that count, or that
	// have counted. Version is incremented when Visible grows, or AllVisible becomes true.
	Visible sets.Set[string]
	Version int
	// AllVisible is true if other replicas refer to too many labels, so that all labels of a pod count as referred to.
	AllVisible bool
	// labels are the numbers of the keys of the node labels to which some pod refers. Other labels are
	// not part of a shape, because otherwise each node would have its own shape.
	labels intern.Numbers
	// Key is a buffer in which keys are built.
	Key []byte
}

// Kind is a pod kind: running pods with equal namespace, labels, affinity terms and termination
// state.
type Kind struct {
	Info        fwk.PodInfo
	Terminating bool
	// terms is true if the pods have affinity terms. Then pods is their number on nodes, plus 1 if there are
	// nominated ones.
	terms bool
	pods  int
	// visible is true if the selectors' labels are in [Names.Visible].
	visible bool
}

// newNames returns empty names. labels are the keys of node labels that are part of shapes from the start.
func newNames(labels ...string) Names {
	// The number 0 represents a missing label, and 1 the empty value.
	values := intern.Numbers{wire.NoValue: 0, "": index.EmptyValue}
	names := Names{
		shapes: intern.Numbers{}, extras: intern.Numbers{"": 0}, RoomOf: [][]VolumeRoom{nil}, kinds: intern.Numbers{}, values: values, ValueOf: []string{wire.NoValue, ""},
		active: newActiveTerms(), Visible: sets.New[string](), labels: intern.Numbers{},
	}
	for _, label := range labels {
		names.labels.Of([]byte(label))
	}
	return names
}

// usualLabels are node labels to which pods often refer.
var usualLabels = []string{
	v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelArchStable, v1.LabelOSStable, v1.LabelInstanceTypeStable,
}

// isUsual returns whether a label is part of shapes from the start, or is the hostname.
func isUsual(label string) bool {
	return label == v1.LabelHostname || slices.Contains(usualLabels, label)
}

// len returns the number of names. Single names are never removed, because the change log may contain their
// numbers.
func (n *Names) len() int {
	return len(n.shapes) + len(n.extras) + len(n.kinds) + len(n.values) + len(n.labels) + len(n.Visible) + len(n.active.awaited) + len(n.active.remote)
}

// State returns the node state of a node.
func (n *Names) State(node *Node) index.State {
	requested, nonZero := node.Info.Requested, node.Info.NonZeroRequested
	return index.State{
		Shape:    node.Shape,
		MilliCPU: requested.MilliCPU, Memory: requested.Memory, EphemeralStorage: requested.EphemeralStorage,
		NonZeroMilliCPU: nonZero.MilliCPU, NonZeroMemory: nonZero.Memory,
		Pods: int32(len(node.Info.Pods)), Extra: n.extra(node),
	}
}

// extra returns the number of the set of extended resources and host ports that the pods of a node request, and of the room that
// the node has for volumes.
func (n *Names) extra(node *Node) int32 {
	info := node.Info
	var room []VolumeRoom
	if n.room != nil {
		room = n.room(node)
	}
	if len(info.Requested.ScalarResources) == 0 && len(info.UsedPorts) == 0 && len(room) == 0 {
		return 0
	}
	key := intern.AppendScalars(n.Key[:0], info.Requested.ScalarResources)
	var ports []string
	for ip, used := range info.UsedPorts {
		for port := range used {
			ports = append(ports, string(binary.AppendVarint([]byte(ip+"/"+port.Protocol+"/"), int64(port.Port))))
		}
	}
	sort.Strings(ports)
	for _, port := range ports {
		key = intern.AppendString(key, port)
	}
	if len(room) > 0 {
		key = append(key, 0)
		for i := range room {
			key = binary.AppendVarint(intern.AppendString(key, room[i].Driver), int64(room[i].Volumes))
		}
	}
	n.Key = key
	number, fresh := n.extras.Of(key)
	if fresh {
		n.RoomOf = append(n.RoomOf, room)
	}
	return number
}

// shape returns the number of a node's shape: the part of its state that does not depend on pods.
func (n *Names) shape(info *framework.NodeInfo) index.ShapeID {
	node := info.Node()
	key := n.Key[:0]
	_, named := node.Labels[v1.LabelHostname]
	key = intern.AppendBool(key, node.Spec.Unschedulable)
	key = intern.AppendBool(key, named)
	allocatable := info.Allocatable
	for _, amount := range []int64{
		allocatable.MilliCPU, allocatable.Memory, allocatable.EphemeralStorage, int64(allocatable.AllowedPodNumber),
	} {
		key = binary.AppendVarint(key, amount)
	}
	key = intern.AppendScalars(key, allocatable.ScalarResources)
	for _, taint := range node.Spec.Taints {
		key = intern.AppendString(key, taint.Key)
		key = intern.AppendString(key, taint.Value)
		key = intern.AppendString(key, string(taint.Effect))
	}
	key = append(key, 0)
	key = n.appendReferencedLabels(key, node.Labels)
	key = appendImages(key, node.Status.Images)
	for _, feature := range node.Status.DeclaredFeatures {
		key = intern.AppendString(key, feature)
	}
	n.Key = key
	number, fresh := n.shapes.Of(key)
	if fresh {
		n.ShapeOf = append(n.ShapeOf, n.example(node))
	}
	return index.ShapeID(number)
}

// appendReferencedLabels appends those labels of a node that are part of its shape, sorted by number. A missing
// label is not part of the shape. So nodes without the label keep their shape when a pod refers to one more
// label. The cost depends only on the labels of the node, because pods may refer to any number of keys.
func (n *Names) appendReferencedLabels(key []byte, labels map[string]string) []byte {
	type label struct {
		number int32
		value  string
	}
	referenced := make([]label, 0, 16)
	for name, value := range labels {
		if number, known := n.labels[name]; known {
			referenced = append(referenced, label{number, value})
		}
	}
	slices.SortFunc(referenced, func(a, b label) int { return int(a.number - b.number) })
	for _, label := range referenced {
		key = binary.AppendUvarint(key, uint64(label.number)+1)
		key = intern.AppendString(key, label.value)
	}
	return append(key, 0)
}

// example returns a node object with only the hostname label, the labels and the taints of a node that are
// part of its shape.
func (n *Names) example(node *v1.Node) *v1.Node {
	example := &v1.Node{}
	example.Labels = map[string]string{}
	for label, value := range node.Labels {
		if n.refersTo(label) {
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
		key = intern.AppendString(key, name)
	}
	return append(key, 0)
}

// Kind returns the number of a pod's kind. The affinity terms of a kind count only if there is a pod on a node or a
// nominated one.
func (n *Names) Kind(info fwk.PodInfo) index.KindID {
	pod := info.GetPod()
	key := intern.AppendString(n.Key[:0], pod.Namespace)
	key = intern.AppendLabels(key, pod.Labels)
	key = intern.AppendBool(key, pod.DeletionTimestamp != nil)
	affinity := pod.Spec.Affinity
	terms := affinity != nil && (affinity.PodAffinity != nil || affinity.PodAntiAffinity != nil)
	if terms {
		key = appendTerms(key, info)
	}
	n.Key = key
	number, fresh := n.kinds.Of(key)
	if fresh {
		n.KindOf = append(n.KindOf, Kind{Info: info, Terminating: pod.DeletionTimestamp != nil, terms: terms})
	}
	return index.KindID(number)
}

// addVisibleLabels adds the keys of the pod labels to which the selectors of a pod refer to Visible.
func (n *Names) addVisibleLabels(pod *v1.Pod) {
	keys := OwnSelectorKeys(pod)
	if !n.Visible.IsSuperset(keys) {
		n.Visible = n.Visible.Union(keys)
		n.Version++
	}
}

// appendTerms appends the affinity terms of a pod.
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
	key = intern.AppendString(key, term.TopologyKey)
	key = intern.AppendString(key, strings.Join(sets.List(term.Namespaces), ","))
	key = intern.AppendString(key, term.NamespaceSelector.String())
	key = intern.AppendBool(key, term.NamespaceSelector.Empty())
	key = intern.AppendString(key, term.Selector.String())
	return intern.AppendBool(key, term.Selector.Empty())
}

// Value returns the number of the value of a topology key in labels; 0 if the label is missing.
func (n *Names) Value(labels map[string]string, key string) int32 {
	value, labelled := labels[key]
	if !labelled {
		return 0
	}
	return n.ValueNumber(value)
}

// ValueNumber returns the number of a value of a topology key.
func (n *Names) ValueNumber(value string) int32 {
	number, fresh := n.values.Of([]byte(value))
	if fresh {
		n.ValueOf = append(n.ValueOf, value)
	}
	return number
}

// refersTo returns whether the label with a key is part of shapes.
func (n *Names) refersTo(key string) bool {
	_, referenced := n.labels[key]
	return referenced || key == v1.LabelHostname
}

// referToLabels makes label keys part of shapes. It returns those that were not part of them before.
func (n *Names) referToLabels(keys []string) []string {
	var added []string
	for _, key := range keys {
		if key == v1.LabelHostname {
			continue
		}
		if _, fresh := n.labels.Of([]byte(key)); fresh {
			added = append(added, key)
		}
	}
	return added
}
