// Package nodes tells the gateway which nodes exist and which IPv6 prefixes they have: from the API server,
// or from a file for networks without a cluster.
package nodes

import (
	"log/slog"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/registry"
)

// Sink receives nodes.
type Sink interface {
	SetNode(registry.Node) error
	DeleteNode(name string)
	// Names returns the nodes that the sink has, those of before a restart included.
	Names() []string
}

// set gives a node to a sink. A conflict concerns this node alone, so it is logged and the others go on.
func set(sink Sink, node registry.Node, log *slog.Logger) {
	if err := sink.SetNode(node); err != nil {
		log.Warn("node disconnected", "node", node.Name, "err", err)
	}
}

// keep deletes the nodes of a sink that no longer exist.
func keep(sink Sink, exists func(name string) bool) {
	for _, name := range sink.Names() {
		if !exists(name) {
			sink.DeleteNode(name)
		}
	}
}
