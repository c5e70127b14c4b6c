package nodesim

import "github.com/k8s-1m/k8s-1m/internal/bench/experiment"

// The limits of node-sim, by the mode of its nodes.
var (
	limitHeartbeat = map[string]experiment.Limit{
		shared: {Name: "CPU for a heartbeat, shared", Unit: "µs", Must: 15, Aim: 8},
		wire:   {Name: "CPU for a heartbeat, wire", Unit: "µs", Must: 40, Aim: 25},
	}
	limitMemory = map[string]experiment.Limit{
		shared: {Name: "memory of a node, shared", Unit: "KiB", Must: 2, Aim: 1},
		wire:   {Name: "memory of a node, wire", Unit: "KiB", Must: 60, Aim: 35},
	}
	limitPod = experiment.Limit{Name: "CPU for a pod's life, kwok ÷ node-sim", Unit: "×", Must: 5, Aim: 15, AtLeast: true}
)
