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

// Names gives numbers to what many nodes or pods have in common.
type Names struct {
	shapes intern.Numbers
	extras intern.Numbers
	kinds  intern.Numbers
	values intern.Numbers
	// valueOf are the values of topology keys, by number.
	ValueOf []string
	// shapeOf are nodes with what matters of labels and taints, by number of shape.
	ShapeOf []*v1.Node
	// kindOf are the pods that kinds were made for, by number.
	KindOf []Kind
	// withTerms are the kinds that say something of other pods, and visible the
	// labels of other pods that they look at; version counts how often it grew.
	WithTerms []index.KindID
	Visible   sets.Set[string]
	Version   int
	// labels are the keys of node labels that something refers to. All others are
	// not part of a shape: with them each node would have one of its own.
	labels []string
	Key    []byte
}

// kind is what a pod on a node is like for the pods to come.
type Kind struct {
	Info        fwk.PodInfo
	Terminating bool
}

// newNames has no names yet but knows labels that are part of shapes.
func newNames(labels ...string) Names {
	// The values of topology keys have 0 for none and 1 for the empty one.
	values := intern.Numbers{wire.NoValue: 0, "": index.EmptyValue}
	return Names{
		shapes: intern.Numbers{}, extras: intern.Numbers{"": 0}, kinds: intern.Numbers{}, values: values, ValueOf: []string{wire.NoValue, ""},
		Visible: sets.New[string](),
		labels:  slices.Clone(labels),
	}
}

// usualLabels are labels of nodes that pods often refer to.
var usualLabels = []string{
	v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelArchStable, v1.LabelOSStable, v1.LabelInstanceTypeStable,
}

// len is how many names were given. They are never taken back one by one, because
// changes that classes have yet to read may speak of them.
func (n *Names) len() int { return len(n.shapes) + len(n.extras) + len(n.kinds) + len(n.values) }

// state is what a node is in as far as one cannot tell nodes apart.
func (n *Names) State(node *Node) index.State {
	requested, nonZero := node.Info.Requested, node.Info.NonZeroRequested
	return index.State{
		Shape:    node.Shape,
		MilliCPU: requested.MilliCPU, Memory: requested.Memory, EphemeralStorage: requested.EphemeralStorage,
		NonZeroMilliCPU: nonZero.MilliCPU, NonZeroMemory: nonZero.Memory,
		Pods: int32(len(node.Info.Pods)), Extra: n.extra(node.Info),
	}
}

// extra is the number of extended resources requested, and ports used, on a node.
func (n *Names) extra(info *framework.NodeInfo) int32 {
	if len(info.Requested.ScalarResources) == 0 && len(info.UsedPorts) == 0 {
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
	n.Key = key
	number, _ := n.extras.Of(key)
	return number
}

// shape is the number of what a node is like without its pods.
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
	for number, label := range n.labels {
		// A label that a node does not have is no part of its shape: so most shapes stay
		// what they are when something refers to one more.
		if value, labelled := node.Labels[label]; labelled {
			key = binary.AppendUvarint(key, uint64(number)+1)
			key = intern.AppendString(key, value)
		}
	}
	key = append(key, 0)
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

// example is a node of the shape of another, with no more than that.
func (n *Names) example(node *v1.Node) *v1.Node {
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
		key = intern.AppendString(key, name)
	}
	return append(key, 0)
}

// kind is the number of what a pod on a node is like.
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
		n.KindOf = append(n.KindOf, Kind{Info: info, Terminating: pod.DeletionTimestamp != nil})
		if terms {
			n.WithTerms = append(n.WithTerms, index.KindID(number))
			n.addVisibleLabels(pod)
		}
	}
	return index.KindID(number)
}

// see notes which labels the terms of a pod look at.
func (n *Names) addVisibleLabels(pod *v1.Pod) {
	keys := OwnSelectorKeys(pod)
	if !n.Visible.IsSuperset(keys) {
		n.Visible = n.Visible.Union(keys)
		n.Version++
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
	key = intern.AppendString(key, term.TopologyKey)
	key = intern.AppendString(key, strings.Join(sets.List(term.Namespaces), ","))
	key = intern.AppendString(key, term.NamespaceSelector.String())
	key = intern.AppendBool(key, term.NamespaceSelector.Empty())
	key = intern.AppendString(key, term.Selector.String())
	return intern.AppendBool(key, term.Selector.Empty())
}

// value is the number of a value of a topology key.
func (n *Names) Value(labels map[string]string, key string) int32 {
	value, labelled := labels[key]
	if !labelled {
		return 0
	}
	return n.ValueNumber(value)
}

// valueNumber is the number of a value of a topology key.
func (n *Names) ValueNumber(value string) int32 {
	number, fresh := n.values.Of([]byte(value))
	if fresh {
		n.ValueOf = append(n.ValueOf, value)
	}
	return number
}

// refer makes label keys part of shapes, and returns those that were not.
func (n *Names) referToLabels(keys []string) []string {
	var added []string
	for _, key := range keys {
		if key != v1.LabelHostname && !slices.Contains(n.labels, key) {
			n.labels = append(n.labels, key)
			added = append(added, key)
		}
	}
	return added
}
