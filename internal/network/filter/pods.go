// Package filter has the nftables rules of the network. It talks to the kernel through netlink, so no nft program is
// needed, and each change is one transaction: no packet passes between the old and the new rules.
//
// pods.go has the rules of a node, which bind pods to their addresses, and provider.go those of the lab's provider.
// expression.go and table.go are what both are made of.
package filter

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/k8s-1m/k8s-1m/internal/network/address"
)

// Node is what the rules of a node depend on.
type Node struct {
	// Bridge connects the pods, Uplink is the link to the provider.
	Bridge, Uplink string
	// Pods is the prefix of the pods.
	Pods netip.Prefix
	// NoTrack keeps the packets of pods out of connection tracking.
	NoTrack bool
}

// Binding is the address of a pod.
type Binding struct {
	Port    string
	MAC     [6]byte
	Address netip.Addr
}

// The named counters of a node, of packets that were dropped or rejected.
const (
	// CounterMAC: frames from a port with another Ethernet address than that of its pod.
	CounterMAC = "wrong_mac"
	// CounterSource: packets with another source than the address of the pod.
	CounterSource = "wrong_source"
	// CounterNeighbour: router advertisements and redirects of pods, and neighbour advertisements for other addresses.
	CounterNeighbour = "wrong_neighbour"
	// CounterUnknown: packets to addresses of the prefix that no pod has.
	CounterUnknown = "unknown_target"
	// CounterOutside: packets from the provider's link with a source of this node's pods.
	CounterOutside = "outside_source"
)

var (
	bridgeCounters = []string{CounterMAC, CounterSource, CounterNeighbour}
	ipCounters     = []string{CounterSource, CounterUnknown, CounterOutside}
	linkLocal      = netip.MustParsePrefix("fe80::/10")
	multicast      = netip.MustParsePrefix("ff00::/8")
	unspecified    = netip.MustParsePrefix("::/128")
)

const (
	routerAdvertisement    = 134
	neighbourAdvertisement = 136
	redirect               = 137
	// errorsPerSecond bounds the ICMPv6 errors for addresses that no pod has.
	errorsPerSecond = 100
)

// Pods are the rules of a node. Its methods may be called by several goroutines.
type Pods struct {
	mu   sync.Mutex
	conn *nftables.Conn
	node Node

	bridge, ip                           *nftables.Table
	ports, owned, macs, sources, targets *nftables.Set // of the bridge
	pods, addresses                      *nftables.Set // of IPv6
	chains                               []chain       // of both
}

// Install replaces the rules of the node in the namespace of the calling thread. ports are the ports of the bridge: one without a
// binding may send nothing. A port that is not among them, because it is new, is heard by no pod with a binding, nor by the node.
func Install(node Node, ports []string, bindings []Binding) (*Pods, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	p := &Pods{conn: conn, node: node}
	if err := p.Reinstall(ports, bindings); err != nil {
		return nil, errors.Join(err, conn.CloseLasting())
	}
	return p, nil
}

// Reinstall replaces all rules, also those that somebody else has changed or removed. Counters begin at 0.
func (p *Pods) Reinstall(ports []string, bindings []Binding) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chains = nil
	err := errors.Join(p.addBridge(), p.addIP(), p.fill(ports, bindings))
	if err == nil {
		err = p.conn.Flush()
	}
	if err != nil {
		return fmt.Errorf("install nftables rules: %w", err)
	}
	return nil
}

// Intact reports whether all chains have their rules. `nft flush ruleset` removes them, for example.
func (p *Pods) Intact() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.chains {
		// Those of a chain that does not exist are an empty list.
		rules, err := p.conn.GetRules(c.Table, c.Chain)
		if err != nil {
			return false, fmt.Errorf("read nftables rules: %w", err)
		}
		if len(rules) != c.rules {
			return false, nil
		}
	}
	return true, nil
}

// addBridge adds the rules for frames from the ports of pods: what a pod sends has its own addresses, and it speaks for no other
// one, also towards pods of the same node. The chains see the frames of all bridges of the node, and not every kernel can match the
// bridge (nft_meta_bridge). So frames from a port that is not known are not dropped as such, but if they have the Ethernet address of
// a pod, from which the bridge would learn, or if they go to the port of a pod.
func (p *Pods) addBridge() (err error) {
	t := replace(p.conn, nftables.TableFamilyBridge)
	p.bridge = t.Table
	for _, s := range []struct {
		set   **nftables.Set
		name  string
		types []nftables.SetDatatype
	}{
		{&p.ports, "ports", []nftables.SetDatatype{nftables.TypeIFName}},
		{&p.owned, "owned", []nftables.SetDatatype{nftables.TypeEtherAddr}},
		{&p.macs, "macs", []nftables.SetDatatype{nftables.TypeIFName, nftables.TypeEtherAddr}},
		{&p.sources, "sources", []nftables.SetDatatype{nftables.TypeIFName, nftables.TypeEtherAddr, nftables.TypeIP6Addr}},
		{&p.targets, "targets", []nftables.SetDatatype{nftables.TypeIFName, nftables.TypeIP6Addr}},
	} {
		if *s.set, err = t.set(s.name, s.types...); err != nil {
			return err
		}
	}
	for _, name := range bridgeCounters {
		t.counter(name)
	}
	t.chain("from_pods", nftables.ChainHookPrerouting, priorityRaw,
		// Nearly all frames are data of a pod with its own addresses: one look-up in place of four (docs/network.md#measured).
		rule(isIPv6(), notICMP6(), in(p.sources, false, inputLink, sourceMAC, sourceAddress), accept()),
		rule(in(p.ports, true, inputLink), in(p.owned, false, sourceMAC), count(CounterMAC), drop()),
		rule(in(p.ports, true, inputLink), accept()),
		rule(in(p.macs, true, inputLink, sourceMAC), count(CounterMAC), drop()),
		rule(notIPv6(), accept()),
		rule(icmp6(routerAdvertisement), count(CounterNeighbour), drop()),
		rule(icmp6(redirect), count(CounterNeighbour), drop()),
		rule(icmp6(neighbourAdvertisement), in(p.targets, true, inputLink, ndAddress), count(CounterNeighbour), drop()),
		// Detection of duplicate addresses, and membership of multicast groups.
		rule(sourceIn(unspecified), accept()),
		rule(in(p.sources, false, inputLink, sourceMAC, sourceAddress), accept()),
		rule(count(CounterSource), drop()),
	)
	t.chain("between_pods", nftables.ChainHookForward, priorityRaw,
		rule(in(p.ports, false, outputLink), in(p.macs, true, inputLink, sourceMAC), count(CounterMAC), drop()),
	)
	p.chains = append(p.chains, t.chains...)
	return nil
}

// addIP adds the rules for packets that leave and reach the bridge. They repeat the check of sources, so that ports which are
// not known yet reach neither the node nor anything outside.
func (p *Pods) addIP() (err error) {
	t := replace(p.conn, nftables.TableFamilyIPv6)
	p.ip = t.Table
	if p.pods, err = t.set("pods", nftables.TypeIP6Addr, nftables.TypeEtherAddr); err != nil {
		return err
	}
	if p.addresses, err = t.set("addresses", nftables.TypeIP6Addr); err != nil {
		return err
	}
	for _, name := range ipCounters {
		t.counter(name)
	}
	bridge, uplink := p.node.Bridge, p.node.Uplink
	var noTrack [][]expr.Any
	if p.node.NoTrack {
		untracked := statement{&expr.Notrack{}}
		noTrack = append(noTrack, rule(from(bridge), untracked), rule(in(p.addresses, false, targetAddress), untracked))
		t.chain("from_node", nftables.ChainHookOutput, priorityRaw, rule(in(p.addresses, false, targetAddress), untracked))
	}
	t.chain("arriving", nftables.ChainHookPrerouting, priorityRaw, append(noTrack,
		rule(from(uplink), sourceIn(p.node.Pods), count(CounterOutside), drop()),
		rule(notFrom(bridge), accept()),
		rule(in(p.pods, false, sourceAddress, sourceMAC), accept()),
		// Multicast that the node sends at the bridge comes back to it without an Ethernet header, so the rule before does not match.
		rule(sourceIn(linkLocal), in(p.pods, true, sourceAddress, sourceMAC), count(CounterSource), drop()),
		rule(sourceIn(linkLocal), accept()),
		rule(sourceIn(unspecified), accept()),
		rule(count(CounterSource), drop()),
	)...)
	// A packet for an address that no pod has would make the kernel ask for it, and keep an entry in its table of neighbours.
	t.chain("to_pods", nftables.ChainHookForward, priorityFilter,
		rule(notTo(bridge), accept()),
		rule(in(p.addresses, false, targetAddress), accept()),
		// With bridge-nf-call-ip6tables, which kube-proxy sets, frames between pods pass this chain, too.
		rule(targetIn(multicast), accept()),
		rule(targetIn(linkLocal), accept()),
		rule(count(CounterUnknown)),
		rule(unreachable(errorsPerSecond)),
		rule(drop()),
	)
	p.chains = append(p.chains, t.chains...)
	return nil
}

// Set replaces the ports and the bindings.
func (p *Pods) Set(ports []string, bindings []Binding) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.fill(ports, bindings)
	if err == nil {
		err = p.conn.Flush()
	}
	if err != nil {
		return fmt.Errorf("change nftables sets: %w", err)
	}
	return nil
}

func (p *Pods) fill(ports []string, bindings []Binding) error {
	names, owned, macs, sources, targets := [][]byte{}, [][]byte{}, [][]byte{}, [][]byte{}, [][]byte{}
	pods, addresses := [][]byte{}, [][]byte{}
	for _, port := range ports {
		names = append(names, linkName(port))
	}
	for _, b := range bindings {
		port, mac, a := linkName(b.Port), paddedMAC(b.MAC), addressBytes(b.Address)
		owned, macs = append(owned, b.MAC[:]), append(macs, join(port, mac))
		local := addressBytes(address.LinkLocal(net.HardwareAddr(b.MAC[:])))
		for _, own := range [][]byte{a, local} {
			sources, targets = append(sources, join(port, mac, own)), append(targets, join(port, own))
			pods = append(pods, join(own, mac))
		}
		addresses = append(addresses, a)
	}
	return errors.Join(
		fill(p.conn, p.ports, names), fill(p.conn, p.owned, owned), fill(p.conn, p.macs, macs), fill(p.conn, p.sources, sources), fill(p.conn, p.targets, targets),
		fill(p.conn, p.pods, pods), fill(p.conn, p.addresses, addresses),
	)
}

func join(parts ...[]byte) (all []byte) {
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}

// Counters returns the packets of each counter. wrong_source is the sum of both tables.
func (p *Pods) Counters() (map[string]uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sums := map[string]uint64{}
	for _, t := range []*nftables.Table{p.bridge, p.ip} {
		objects, err := p.conn.GetObjects(t)
		if err != nil {
			return nil, fmt.Errorf("read nftables counters: %w", err)
		}
		for _, o := range objects {
			if c, ok := o.(*nftables.CounterObj); ok && c.Table.Name == TableName {
				sums[c.Name] += c.Packets
			}
		}
	}
	return sums, nil
}

// Close closes the connection to the kernel. The rules stay, so that pods keep their filter while the agent is replaced.
func (p *Pods) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn.CloseLasting()
}

// Remove removes all tables of this package from the namespace of the calling thread.
func Remove() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	remove(conn, nftables.TableFamilyBridge)
	remove(conn, nftables.TableFamilyIPv6)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove nftables rules: %w", err)
	}
	return nil
}
