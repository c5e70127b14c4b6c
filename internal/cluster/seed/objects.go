package seed

import (
	"bytes"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

// templateName is the name of the node in a template. It has no other meaning.
const templateName = "template"

// template is a node with its Lease and CSINode, from which all others are derived.
type template struct {
	nodes     *bulk.Nodes
	simulator Simulator
	node      *corev1.Node
	lease     *coordinationv1.Lease
	csiNode   *storagev1.CSINode // nil if the simulator creates none
}

// newTemplate returns the template for the nodes of a cluster with the given number of nodes.
func newTemplate(nodes *bulk.Nodes, simulator Simulator, count int, created metav1.Time) (*template, error) {
	// The stored times have no fractions of a second, except renewTime.
	created = metav1.NewTime(created.UTC())
	node, err := settledNode(nodes.Make(templateName, 0), uuid.NewUUID(), ttlSeconds(count), created, simulator)
	if err != nil {
		return nil, err
	}
	lease, err := settledLease(node, uuid.NewUUID(), created, simulator)
	if err != nil {
		return nil, err
	}
	t := &template{nodes: nodes, simulator: simulator, node: node, lease: lease}
	if simulator.isNodeSim {
		t.csiNode, err = createdCSINode(node, uuid.NewUUID(), created)
	}
	return t, err
}

// objects returns a copy of the template for one goroutine.
func (t *template) objects() *objects {
	o := &objects{
		template: template{nodes: t.nodes, simulator: t.simulator, node: t.node.DeepCopy(), lease: t.lease.DeepCopy()},
		encoder:  protobuf.NewSerializer(scheme.Scheme, scheme.Scheme),
	}
	o.owned = append(o.owned, newOwned(o.lease, t.node.UID))
	if t.csiNode != nil {
		o.csiNode = t.csiNode.DeepCopy()
		o.owned = append(o.owned, newOwned(o.csiNode, t.node.UID))
	}
	return o
}

// objects encodes nodes and the objects that they own. It changes the same objects for each node.
type objects struct {
	template
	owned   []owned
	encoder runtime.Encoder
}

// owned is an object that a node owns.
type owned struct {
	object
	// ownership is the managed fields of the template's object. They contain templateUID, the UID of the
	// template's node, in the path of the owner reference.
	ownership, templateUID string
}

func newOwned(o object, templateUID types.UID) owned {
	return owned{object: o, ownership: o.GetManagedFields()[0].FieldsV1.GetRawString(), templateUID: string(templateUID)}
}

// set changes everything in which the object differs from that of the template.
func (o *owned) set(name string, uid, nodeUID types.UID) {
	o.SetName(name)
	o.SetUID(uid)
	owner := &o.GetOwnerReferences()[0]
	owner.Name, owner.UID = name, nodeUID
	o.GetManagedFields()[0].FieldsV1.SetRawString(strings.ReplaceAll(o.ownership, o.templateUID, string(nodeUID)))
}

// stored are the stored bytes of a node and of the objects that it owns.
type stored struct {
	node, lease string
	csiNode     string // empty if there is none
}

// encode returns the stored bytes of a node with a name and a number.
func (o *objects) encode(name string, number int) (stored, error) {
	o.set(name, number, uuid.NewUUID)
	var s stored
	var err error
	if s.node, err = o.bytes(o.node); err != nil {
		return s, err
	}
	if s.lease, err = o.bytes(o.lease); err != nil {
		return s, err
	}
	if o.csiNode != nil {
		s.csiNode, err = o.bytes(o.csiNode)
	}
	return s, err
}

// set changes everything in which the objects differ from those of the template.
func (o *objects) set(name string, number int, newUID func() types.UID) {
	o.nodes.Identify(o.node, name, number)
	o.node.UID = newUID()
	if o.simulator.isNodeSim {
		identifyReported(o.node)
		o.lease.Spec.HolderIdentity = &name
	}
	for i := range o.owned {
		o.owned[i].set(name, newUID(), o.node.UID)
	}
}

// bytes returns what the API server stores for an object.
func (o *objects) bytes(object runtime.Object) (string, error) {
	var encoded bytes.Buffer
	if err := o.encoder.Encode(object, &encoded); err != nil {
		return "", fmt.Errorf("encoding a %s: %w", object.GetObjectKind().GroupVersionKind().Kind, err)
	}
	return encoded.String(), nil
}
