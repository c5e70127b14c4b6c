package component

import (
	"fmt"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

// nodeSim returns the i-th node-sim, which simulates the kubelets of a part of the nodes.
func (b *builder) nodeSim(i int) Component {
	settings := b.config.Settings
	name, count := settings.SimulatorNames()[i], settings.NodeSims
	address := b.config.Ports.Address(name)
	var a args
	a.add("kubeconfig", b.dir.Kubeconfig(pki.NodeSim.File))
	a.add("manage-annotation", kube.SimulatedNodeAnnotation+"="+kube.SimulatedNodeValue)
	a.add("mode", settings.NodeMode)
	if settings.NodeMode != clusterdir.NodesShared {
		a.add("client-ca-cert", b.pki("ca.crt"))
		a.add("client-ca-key", b.pki("ca.key"))
	}
	if settings.NodeMode == clusterdir.NodesMixed {
		// The first nodes with a connection of their own belong to all processes in turn.
		a.addInt("wire-nodes", (settings.WireNodes+count-1-i)/count)
	}
	if count > 1 {
		a.add("shard", fmt.Sprintf("%d/%d", i, count))
		// A kubeconfig has one server.
		urls := ClientURLs(b.config)
		a.add("server", strings.TrimPrefix(urls[i%len(urls)], "https://"))
	}
	a.addInt("node-lease-duration-seconds", NodeLeaseSeconds)
	a.add("node-ip", clusterdir.Loopback)
	a.add("pod-cidr", podCIDR)
	a.add("control-address", address)
	a.addUserArgs(settings.NodeSimArgs)

	return Component{
		Name:      name,
		Binary:    b.binary("node-sim"),
		Args:      a,
		Address:   "http://" + address,
		DependsOn: b.clientDependencies(),
		// Not /readyz: it fails until all nodes have been started, which takes long in a large cluster.
		Ready:     Probe{URL: "http://" + address + "/healthz"},
		StopGrace: statelessStopGrace,
	}
}

// NodeSimAddresses returns the host:port of the pages of each node-sim.
func NodeSimAddresses(config clusterdir.Config) (addresses []string) {
	for _, name := range config.Settings.SimulatorNames() {
		addresses = append(addresses, config.Ports.Address(name))
	}
	return addresses
}
