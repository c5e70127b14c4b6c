package network

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/network/ipv4gateway"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// The limits of the IPv4 gateway. Its connections and the CPU for a packet have an aim only.
var (
	limitGatewayMemory = experiment.Limit{Name: "memory of the gateway for 10,000 peers", Unit: "MiB", Must: 200, Aim: 50}
	limitGatewayLeave  = experiment.Limit{Name: "a node that leaves is gone from the gateway after", Unit: "s", Must: 30, Aim: 5}
)

// gatewayRows are the rows of the IPv4 gateway.
var gatewayRows = []row{
	{"gateway", "IPv4 connections a second and CPU for a packet: network-gateway, the kernel's masquerading and tayga", (*bench).gatewayPaths},
	{"gateway-memory", "memory of network-gateway for 10,000 nodes that are connected", (*bench).gatewayMemory},
	{"gateway-leave", "the time until a node that leaves is gone from network-gateway, with its tunnel and routes", (*bench).gatewayLeave},
}

const (
	gatewayPeers     = 10_000
	gatewayFewPeers  = 500 // below medium scale
	kernelMasquerade = "kernel masquerade"
	gatewayProgram   = "network-gateway"
)

// gatewayOptions returns the options of a measurement with names of its own.
func (b *bench) gatewayOptions() (ipv4gateway.Options, error) {
	program, err := component.FindBinary(gatewayProgram)
	b.labs++
	return ipv4gateway.Options{
		Program: program, Duration: b.options.Duration.D, Timeout: b.options.Timeout, Name: fmt.Sprintf("k1mb-%d-%d", os.Getpid(), b.labs),
	}, err
}

// gatewayPaths measures the row gateway.
func (b *bench) gatewayPaths(ctx context.Context) error {
	measured := map[string][]ipv4gateway.Path{}
	var names []string
	for range b.options.Rounds.N {
		o, err := b.gatewayOptions()
		if err != nil {
			return err
		}
		paths, err := ipv4gateway.Paths(ctx, o)
		if err != nil {
			return err
		}
		names = nil
		for _, p := range paths {
			names = append(names, p.Name)
			measured[p.Name] = append(measured[p.Name], p)
		}
	}
	b.reportPaths(names, measured)
	return nil
}

// pathMedians are medians of the measurements of a path.
type pathMedians struct{ connections, cpu float64 }

func mediansOf(paths []ipv4gateway.Path) pathMedians {
	var connections, cpu []float64
	for _, p := range paths {
		connections = append(connections, p.Connections)
		cpu = append(cpu, float64(p.PacketCPU)/float64(time.Microsecond))
	}
	return pathMedians{connections: median(connections), cpu: median(cpu)}
}

func (b *bench) reportPaths(names []string, measured map[string][]ipv4gateway.Path) {
	table := b.Result.Table("IPv4 through a gateway", "path", "measurements", "connections, /s", "CPU for a packet, all programs, µs")
	figures := map[string][]experiment.Figure{}
	for _, name := range names {
		paths := measured[name]
		if paths[0].Skipped != "" {
			b.Result.Note("%s was not measured: %s", name, paths[0].Skipped)
			continue
		}
		m := mediansOf(paths)
		table.Add(name, len(paths), m.connections, m.cpu)
		figures[name] = []experiment.Figure{
			{Name: "IPv4 connections", Unit: "/s", Value: m.connections, MoreIsBetter: true},
			{Name: "CPU for an IPv4 packet", Unit: "µs", Value: m.cpu},
		}
	}
	for _, name := range names {
		if name != kernelMasquerade && figures[name] != nil {
			b.Result.Compare(name, kernelMasquerade, figures[name], figures[kernelMasquerade])
		}
	}
	b.Result.Note("Connections are opened, used for one byte in each direction and reset, 8 at a time. Packets are datagrams of 1,200 bytes to an echo server, " +
		"32 under way. The CPU time is that of this process, which is client and server and in which the kernel forwards, and of the programs of the path. " +
		"Packets of network-gateway are encrypted and decrypted on the way, in network-gateway and at the node; the others are not.")
}

// gatewayMemory measures the row gateway-memory.
func (b *bench) gatewayMemory(ctx context.Context) error {
	o, err := b.gatewayOptions()
	if err != nil {
		return err
	}
	peers := gatewayPeers
	if b.Scale.Factor < 1 {
		peers = gatewayFewPeers
	}
	result, err := ipv4gateway.Memory(ctx, o, peers)
	if err != nil {
		return err
	}
	const mib = 1 << 20
	table := b.Result.Table("Memory of network-gateway", "nodes", "before, MiB", "registered, MiB", "connected, MiB")
	table.Add(peers, float64(result.Started)/mib, float64(result.Registered)/mib, float64(result.Connected)/mib)
	b.Judge(limitGatewayMemory, float64(result.Connected)/mib, peers, fmt.Sprintf("%d nodes, each with a handshake and a connection", peers))
	return nil
}

// gatewayLeave measures the row gateway-leave.
func (b *bench) gatewayLeave(ctx context.Context) error {
	o, err := b.gatewayOptions()
	if err != nil {
		return err
	}
	gone, err := ipv4gateway.Leave(ctx, o, b.options.Leaves.N)
	if err != nil {
		return err
	}
	var seconds []float64
	for _, g := range gone {
		seconds = append(seconds, g.Seconds())
	}
	middle := median(seconds)
	longest := seconds[len(seconds)-1]
	b.Result.Table("A node leaves the gateway", "nodes that left", "gone after, median, s", "gone after, longest, s").Add(len(seconds), middle, longest)
	b.Judge(limitGatewayLeave, longest, len(seconds), "")
	b.Result.Note("Half of the nodes are removed from the nodes of the gateway, which reads its file once a second; the others are told to leave.")
	return nil
}
