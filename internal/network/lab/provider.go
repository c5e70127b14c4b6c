package lab

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/k8s-1m/k8s-1m/internal/network/address"
	"github.com/k8s-1m/k8s-1m/internal/network/agent"
	"github.com/k8s-1m/k8s-1m/internal/network/filter"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

const (
	bridge       = "br0"
	uplink       = "eth0"
	internetPort = "internet"
)

var providerMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}

// provider is the network to which the nodes are attached: a bridge with a router. Its ports are isolated, so that nodes
// reach each other only through the router, as in a cloud.
type provider struct {
	mode   string
	ns     *netns.Namespace
	filter *filter.Provider
}

// quiet sets what all namespaces of the lab have in common: addresses can be used at once, and nobody learns routes by chance.
func quiet(ns *netns.Namespace) error {
	return errors.Join(ns.Sysctl("ipv6/conf/default/accept_dad", "0"), ns.Sysctl("ipv6/conf/default/accept_ra", "0"))
}

// NoBridgeNetfilter keeps frames of a namespace's bridges out of the filters of IP.
func NoBridgeNetfilter(ns *netns.Namespace) error {
	if _, unknown := ns.ReadSysctl(netns.BridgeNetfilter); unknown != nil {
		return nil
	}
	return ns.Sysctl(netns.BridgeNetfilter, "0")
}

// newProvider creates the provider in a namespace, and a server in another one, which is outside the cluster.
func newProvider(ns, internet *netns.Namespace, mode string, mtu int) (*provider, error) {
	p := &provider{mode: mode, ns: ns}
	err := errors.Join(quiet(ns), quiet(internet), ns.Sysctl("ipv6/conf/all/forwarding", "1"))
	if err == nil {
		err = NoBridgeNetfilter(ns)
	}
	if err == nil {
		err = ns.AddBridge(bridge, providerMAC, mtu)
	}
	if err == nil {
		err = ns.AddAddress(bridge, netip.PrefixFrom(router, 64))
	}
	if err == nil {
		err = p.addInternet(internet, mtu)
	}
	if err == nil {
		err = p.addRoutes()
	}
	if err == nil {
		err = ns.Do(func() (err error) {
			p.filter, err = filter.InstallProvider(mode == agent.ModeOneMAC)
			return err
		})
	}
	return p, err
}

func (p *provider) addInternet(internet *netns.Namespace, mtu int) error {
	err := netns.Veth(netns.End{In: p.ns, Name: internetPort}, netns.End{In: internet, Name: uplink}, mtu)
	if err != nil {
		return err
	}
	gateway := address.Host(Internet, 1)
	return errors.Join(
		p.ns.AddAddress(internetPort, netip.PrefixFrom(gateway, Internet.Bits())),
		internet.AddAddress(uplink, netip.PrefixFrom(address.Host(Internet, 2), Internet.Bits())),
		internet.AddRoute(netns.Route{To: netip.MustParsePrefix("::/0"), Via: gateway, Link: uplink}),
	)
}

// addRoutes adds the routes that do not depend on nodes: what nobody has is unreachable, and in the modes with neighbour
// answers the prefixes of nodes are on the link.
func (p *provider) addRoutes() error {
	err := p.ns.AddRoute(netns.Route{To: World, Unreachable: true})
	onLink := map[string][]netip.Prefix{agent.ModeOnLink: {onLinkPool}, agent.ModeOneMAC: {oneMACPool, oneMACNodes}}
	for _, prefix := range onLink[p.mode] {
		err = errors.Join(err, p.ns.AddRoute(netns.Route{To: prefix, Link: bridge}))
	}
	return err
}

func port(number int) string { return fmt.Sprintf("n%d", number) }

// attach connects a node.
func (p *provider) attach(number int, plan NodePlan, node *netns.Namespace, mtu int) error {
	// The kernel sends frames as soon as the link is up.
	if err := p.filter.Allow(port(number), [6]byte(plan.MAC)); err != nil {
		return err
	}
	err := netns.Veth(netns.End{In: p.ns, Name: port(number), Bridge: bridge}, netns.End{In: node, Name: uplink, MAC: plan.MAC}, mtu)
	if err != nil {
		return err
	}
	err = errors.Join(
		p.ns.IsolatePort(port(number)),
		node.AddAddress(uplink, plan.Address),
		node.AddRoute(netns.Route{To: netip.MustParsePrefix("::/0"), Via: router, Link: uplink}),
	)
	if err == nil && p.mode == agent.ModeRouted {
		err = p.ns.AddRoute(p.route(plan))
	}
	return err
}

func (p *provider) route(plan NodePlan) netns.Route {
	return netns.Route{To: plan.Provided, Via: address.LinkLocal(plan.MAC), Link: bridge}
}

// detach removes all that the provider knows of a node.
func (p *provider) detach(number int, plan NodePlan) error {
	err := errors.Join(p.ns.DeleteLink(port(number)), p.filter.Forbid(port(number), [6]byte(plan.MAC)))
	if p.mode == agent.ModeRouted {
		err = errors.Join(err, p.ns.DeleteRoute(p.route(plan)))
	}
	return errors.Join(err, p.forget(plan.MAC))
}

// forget removes the neighbours of a node from the router's table.
func (p *provider) forget(mac net.HardwareAddr) error {
	handle, err := p.ns.Links()
	if err != nil {
		return err
	}
	index, err := p.ns.Index(bridge)
	if err != nil {
		return err
	}
	entries, err := handle.NeighList(index, netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("list the neighbours of the provider: %w", err)
	}
	for _, e := range entries {
		if bytes.Equal(e.HardwareAddr, mac) {
			if err := handle.NeighDel(&e); err != nil {
				return fmt.Errorf("delete neighbour %s of the provider: %w", e.IP, err)
			}
		}
	}
	return nil
}
