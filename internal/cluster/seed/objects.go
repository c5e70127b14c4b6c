package seed

import (
	"bytes"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
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

// template is a node and its Lease, from which all others are derived.
type template struct {
	nodes *bulk.Nodes
	node  *corev1.Node
	lease *coordinationv1.Lease
}

// newTemplate returns the template for the nodes of a cluster with the given number of nodes.
func newTemplate(nodes *bulk.Nodes, count int, created metav1.Time) (*template, error) {
	// The stored times have no fractions of a second, except renewTime.
	created = metav1.NewTime(created.UTC())
	node, err := settledNode(nodes.Make(templateName, 0), uuid.NewUUID(), ttlSeconds(count), created)
	if err != nil {
		return nil, err
	}
	lease, err := releasedLease(node, uuid.NewUUID(), created)
	if err != nil {
		return nil, err
	}
	return &template{nodes, node, lease}, nil
}

// objects returns a copy of the template for one goroutine.
func (t *template) objects() *objects {
	return &objects{
		nodes: t.nodes, node: t.node.DeepCopy(), lease: t.lease.DeepCopy(),
		ownership: t.lease.ManagedFields[0].FieldsV1.GetRawString(), templateUID: string(t.node.UID),
		encoder: protobuf.NewSerializer(scheme.Scheme, scheme.Scheme),
	}
}

// objects encodes nodes and their Leases. It changes the same two objects for each of them.
type objects struct {
	nodes *bulk.Nodes
	node  *corev1.Node
	lease *coordinationv1.Lease
	// ownership is the managed fields of the template's Lease. They contain templateUID, the UID of the
	// template's node, in the path of the owner reference.
	ownership, templateUID string
	encoder                runtime.Encoder
}

// encode returns the stored bytes of a node and of its Lease.
func (o *objects) encode(name string, number int) (node, lease string, err error) {
	o.set(name, number, uuid.NewUUID(), uuid.NewUUID())
	if node, err = o.bytes(o.node); err != nil {
		return "", "", err
	}
	lease, err = o.bytes(o.lease)
	return node, lease, err
}

// set changes everything in which the node and its Lease differ from the template.
func (o *objects) set(name string, number int, nodeUID, leaseUID types.UID) {
	o.nodes.Identify(o.node, name, number)
	o.node.UID = nodeUID
	o.lease.Name, o.lease.UID = name, leaseUID
	o.lease.OwnerReferences[0].Name, o.lease.OwnerReferences[0].UID = name, nodeUID
	o.lease.ManagedFields[0].FieldsV1.SetRawString(strings.ReplaceAll(o.ownership, o.templateUID, string(nodeUID)))
}

// bytes returns what the API server stores for an object.
func (o *objects) bytes(object runtime.Object) (string, error) {
	var encoded bytes.Buffer
	if err := o.encoder.Encode(object, &encoded); err != nil {
		return "", fmt.Errorf("encoding a %s: %w", object.GetObjectKind().GroupVersionKind().Kind, err)
	}
	return encoded.String(), nil
}
