package seed

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

const (
	leaseNamespace = corev1.NamespaceNodeLease
	// anyHolder stands for the identity of a kwok process. The seeded Lease has no holder.
	anyHolder = "holder"
)

var leaseWrites = endpoint{kind: coordinationv1.SchemeGroupVersion.WithKind("Lease")}

// releasedLease returns what the API server stores for the Lease of a node that kwok has created and k1m has
// released, as it does when kwok is restarted (kube.ReleaseNodeLeases). The identity of the kwok process that
// will hold the Lease is random and not known yet; it takes a Lease without holder at once.
func releasedLease(node *corev1.Node, uid types.UID, created metav1.Time) (*coordinationv1.Lease, error) {
	renewed := metav1.NewMicroTime(created.Time)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, Namespace: leaseNamespace,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: nodeKind.Version, Kind: nodeKind.Kind, Name: node.Name, UID: node.UID}},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(anyHolder), LeaseDurationSeconds: new(int32(component.NodeLeaseSeconds)), RenewTime: &renewed,
		},
	}
	lease.SetGroupVersionKind(leaseWrites.kind)
	lease, err := write(leaseWrites, &coordinationv1.Lease{}, lease, kwokManager)
	if err != nil {
		return nil, err
	}
	lease.UID, lease.CreationTimestamp = uid, created
	released := lease.DeepCopy()
	released.Spec.HolderIdentity = nil
	if lease, err = write(leaseWrites, lease, released, k1mManager); err != nil {
		return nil, err
	}
	setTimes(lease, created)
	return lease, nil
}
