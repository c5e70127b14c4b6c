package seed

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// Simulator is the program that simulates the nodes, with those of its settings that are in the objects that it
// writes.
type Simulator struct {
	// isNodeSim means node-sim, otherwise it is kwok.
	isNodeSim bool
	// leaseSeconds is leaseDurationSeconds of the Leases.
	leaseSeconds int32
	// nodeIP is the address of all nodes.
	nodeIP string
}

// Kwok returns kwok with the settings of component/kwok.go.
func Kwok() Simulator {
	return Simulator{leaseSeconds: component.NodeLeaseSeconds, nodeIP: clusterdir.Loopback}
}

// NodeSim returns node-sim whose Leases are valid for leaseSeconds after a renewal, and whose nodes have the
// address nodeIP.
func NodeSim(leaseSeconds int32, nodeIP string) Simulator {
	return Simulator{isNodeSim: true, leaseSeconds: leaseSeconds, nodeIP: nodeIP}
}

// manager returns the name of the simulator in managedFields.
func (s Simulator) manager() string {
	if s.isNodeSim {
		return nodeSimManager
	}
	return kwokManager
}

// readyNode returns a copy of a node after the simulator has made it Ready.
func (s Simulator) readyNode(node *corev1.Node, created metav1.Time) (*corev1.Node, error) {
	if s.isNodeSim {
		return reportedNode(node, s.nodeIP, created), nil
	}
	return playedNode(node, s.nodeIP)
}

// keysPerNode returns the number of objects of a node, with the node itself.
func (s Simulator) keysPerNode() int {
	if s.isNodeSim {
		return 3 // Node, Lease and CSINode
	}
	return 2 // Node and Lease
}
