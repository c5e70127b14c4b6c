package component

import (
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

// nodeSim returns node-sim, which simulates the kubelets of the nodes.
func (b *builder) nodeSim() Component {
	settings, address := b.config.Settings, b.config.Ports.Address(NodeSim)
	var a args
	a.add("kubeconfig", b.dir.Kubeconfig(pki.NodeSim.File))
	a.add("manage-annotation", kube.SimulatedNodeAnnotation+"="+kube.SimulatedNodeValue)
	a.add("mode", settings.NodeMode)
	if settings.NodeMode != clusterdir.NodesShared {
		a.add("client-ca-cert", b.pki("ca.crt"))
		a.add("client-ca-key", b.pki("ca.key"))
	}
	if settings.NodeMode == clusterdir.NodesMixed {
		a.addInt("wire-nodes", settings.WireNodes)
	}
	a.addInt("node-lease-duration-seconds", NodeLeaseSeconds)
	a.add("node-ip", clusterdir.Loopback)
	a.add("pod-cidr", podCIDR)
	a.add("control-address", address)
	a.addUserArgs(settings.NodeSimArgs)

	return Component{
		Name:      NodeSim,
		Binary:    b.binary("node-sim"),
		Args:      a,
		Address:   "http://" + address,
		DependsOn: b.clientDependencies(),
		// Not /readyz: it fails until all nodes have been started, which takes long in a large cluster.
		Ready:     Probe{URL: "http://" + address + "/healthz"},
		StopGrace: statelessStopGrace,
	}
}
