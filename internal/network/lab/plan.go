package lab

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/k8s-1m/k8s-1m/internal/network/address"
	"github.com/k8s-1m/k8s-1m/internal/network/agent"
)

// Prefixes of the lab, all in the range for documentation.
var (
	// World is everything that the provider knows.
	World = netip.MustParsePrefix("2001:db8::/32")
	// Internet has a server outside the cluster.
	Internet = netip.MustParsePrefix("2001:db8:ffff::/64")

	routedPool  = netip.MustParsePrefix("2001:db8:1::/48") // a /64 for each node
	onLinkPool  = netip.MustParsePrefix("2001:db8:2::/64") // a /96 for each node, with its address
	oneMACPool  = netip.MustParsePrefix("2001:db8:4::/64") // an /80 for each node
	oneMACNodes = netip.MustParsePrefix("2001:db8:3::/64") // the addresses of these nodes
	// router is the address of the provider's router on each link.
	router = netip.MustParseAddr("fe80::1")
)

// MaxNodes is the number of ports that a bridge of Linux can have.
const MaxNodes = 1000

// NodePlan are the addresses that the provider gives to a node.
type NodePlan struct {
	Name string
	MAC  net.HardwareAddr
	// Address is that of the uplink.
	Address netip.Prefix
	// Provided is the prefix of the node, Pods the /96 that the agent takes from it.
	Provided, Pods netip.Prefix
	// AgentPrefix is the value of the agent's flag --prefix.
	AgentPrefix string
}

// planNode returns the addresses of a node. number is 1 to MaxNodes for new nodes; each number has addresses of its own.
func planNode(mode string, number int) (p NodePlan, err error) {
	p.Name = fmt.Sprintf("node-%04d", number)
	p.MAC = net.HardwareAddr{2, 0x10, 0, 0, byte(number >> 8), byte(number)}
	n := uint64(number)
	switch mode {
	case agent.ModeRouted:
		if p.Provided, err = address.Subnet(routedPool, 64, n); err == nil {
			p.Address, p.AgentPrefix = netip.PrefixFrom(address.Host(p.Provided, 1), 64), agent.PrefixFromUplink
		}
	case agent.ModeOnLink:
		if p.Provided, err = address.Subnet(onLinkPool, 96, n); err == nil {
			// The provider chooses an address anywhere in the prefix.
			hash := sha256.Sum256([]byte(p.Name))
			host := uint64(binary.BigEndian.Uint32(hash[:]))
			p.Address, p.AgentPrefix = netip.PrefixFrom(address.Host(p.Provided, host), 128), p.Provided.String()
		}
	case agent.ModeOneMAC:
		if p.Provided, err = address.Subnet(oneMACPool, 80, n); err == nil {
			p.Address, p.AgentPrefix = netip.PrefixFrom(address.Host(oneMACNodes, n), 128), p.Provided.String()
		}
	default:
		err = fmt.Errorf("mode %q is unknown", mode)
	}
	if err == nil {
		p.Pods, err = address.Pods(p.Provided)
	}
	return p, err
}
