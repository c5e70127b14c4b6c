package seed

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	leaseNamespace = corev1.NamespaceNodeLease
	// anyHolder stands for the identity of a kwok process. The seeded Lease has no holder.
	anyHolder = "holder"
)

var leaseWrites = endpoint{kind: coordinationv1.SchemeGroupVersion.WithKind("Lease")}

// settledLease returns what the API server stores for the Lease of a node when the simulator is not running.
func settledLease(node *corev1.Node, uid types.UID, created metav1.Time, simulator Simulator) (*coordinationv1.Lease, error) {
	holder := anyHolder
	if simulator.isNodeSim {
		holder = node.Name
	}
	renewed := metav1.NewMicroTime(created.Time)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Namespace: leaseNamespace, OwnerReferences: ownedBy(node)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &simulator.leaseSeconds, RenewTime: &renewed},
	}
	lease.SetGroupVersionKind(leaseWrites.kind)
	lease, err := write(leaseWrites, &coordinationv1.Lease{}, lease, simulator.manager())
	if err != nil {
		return nil, err
	}
	lease.UID, lease.CreationTimestamp = uid, created
	if !simulator.isNodeSim {
		if lease, err = released(lease); err != nil {
			return nil, err
		}
	}
	setTimes(lease, created)
	return lease, nil
}

// released returns a Lease of kwok after k1m has released it, as it does when kwok is restarted
// (kube.ReleaseNodeLeases). The identity of the kwok process that will hold the Lease is random and not known yet; it
// takes a Lease without holder at once.
func released(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	changed := lease.DeepCopy()
	changed.Spec.HolderIdentity = nil
	return write(leaseWrites, lease, changed, k1mManager)
}

// ownedBy returns the owner references of the objects of a node.
func ownedBy(node *corev1.Node) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: nodeKind.Version, Kind: nodeKind.Kind, Name: node.Name, UID: node.UID}}
}
