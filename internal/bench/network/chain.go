package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/k8s-1m/k8s-1m/internal/network/lab"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

// chain is what a packet between two pods of the lab passes, made of routes only: two hosts, each behind a router, and a
// router between these, which is the provider.
type chain struct {
	spaces []*netns.Namespace // a host, its router, the provider, the other router, its host
	// bridge connects the provider with the routers; empty if it has a link to each.
	bridge string
}

const (
	left, right = "left", "right"
	chainMTU    = 1500
	vxlanID     = 42
	vxlanPort   = 4789
	vxlanLink   = "vxlan0"
	provider    = 2 // its index in chain.spaces
)

var (
	anywhere = netip.MustParsePrefix("::/0")
	// segments are the prefixes of the links of the chain, and overlay those of the hosts in the overlay.
	segments = []string{"2001:db8:a0::", "2001:db8:a1::", "2001:db8:a2::", "2001:db8:a3::"}
	// overlayHosts are the addresses of the hosts in the overlay, overlayRouters those of their routers at the VXLAN link.
	overlayHosts   = []string{"2001:db8:b0::1", "2001:db8:b1::1"}
	overlayRouters = []string{"2001:db8:b2::1", "2001:db8:b2::2"}
)

// newChain builds a chain. With bridged set, the routers are ports of a bridge of the provider, as the nodes of a lab are; then the
// difference to a lab is what is on its nodes.
func newChain(name string, bridged bool) (c *chain, err error) {
	c = &chain{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.remove())
		}
	}()
	for i := range len(segments) + 1 {
		ns, err := netns.Create(fmt.Sprintf("k1mb-%d-%s%d", os.Getpid(), name, i))
		if err != nil {
			return c, err
		}
		c.spaces = append(c.spaces, ns)
		err = errors.Join(ns.Sysctl("ipv6/conf/default/accept_dad", "0"), ns.Sysctl("ipv6/conf/all/forwarding", "1"))
		if err != nil {
			return c, err
		}
	}
	if bridged {
		c.bridge = "br0"
		if err := errors.Join(lab.NoBridgeNetfilter(c.spaces[provider]), c.spaces[provider].AddBridge(c.bridge, nil, chainMTU)); err != nil {
			return c, err
		}
	}
	for i := range segments {
		if err := c.addLink(i); err != nil {
			return c, err
		}
	}
	return c, c.addRoutes()
}

// addLink connects a namespace with the next one.
func (c *chain) addLink(segment int) error {
	a, b := netns.End{In: c.spaces[segment], Name: right}, netns.End{In: c.spaces[segment+1], Name: left}
	linkA, linkB := a.Name, b.Name // those that get the addresses
	switch provider {
	case segment:
		a.Bridge, linkA = c.bridge, c.providerLink(right)
	case segment + 1:
		b.Bridge, linkB = c.bridge, c.providerLink(left)
	}
	return errors.Join(
		netns.Veth(a, b, chainMTU),
		a.In.AddAddress(linkA, netip.MustParsePrefix(segments[segment]+"1/64")), b.In.AddAddress(linkB, netip.MustParsePrefix(segments[segment]+"2/64")),
	)
}

// providerLink returns the link with the addresses of the provider on one side.
func (c *chain) providerLink(side string) string {
	if c.bridge != "" {
		return c.bridge
	}
	return side
}

// addRoutes lets each host use its router, and each router the one between.
func (c *chain) addRoutes() error {
	at := func(segment int, host string) netip.Addr { return netip.MustParseAddr(segments[segment] + host) }
	return errors.Join(
		c.spaces[0].AddRoute(netns.Route{To: anywhere, Via: at(0, "2"), Link: right}),
		c.spaces[1].AddRoute(netns.Route{To: anywhere, Via: at(1, "2"), Link: right}),
		c.spaces[provider].AddRoute(netns.Route{To: netip.MustParsePrefix(segments[0] + "/64"), Via: at(1, "1"), Link: c.providerLink(left)}),
		c.spaces[provider].AddRoute(netns.Route{To: netip.MustParsePrefix(segments[3] + "/64"), Via: at(2, "2"), Link: c.providerLink(right)}),
		c.spaces[3].AddRoute(netns.Route{To: anywhere, Via: at(2, "1"), Link: left}),
		c.spaces[4].AddRoute(netns.Route{To: anywhere, Via: at(3, "1"), Link: left}),
	)
}

// addOverlay connects the routers of the two hosts by VXLAN, and gives the hosts addresses whose packets pass it.
func (c *chain) addOverlay() error {
	routers := []*netns.Namespace{c.spaces[1], c.spaces[3]}
	hosts := []*netns.Namespace{c.spaces[0], c.spaces[4]}
	own := []netip.Addr{netip.MustParseAddr(segments[1] + "1"), netip.MustParseAddr(segments[2] + "2")}
	underlay, toHost, toRouter := []string{right, left}, []string{left, right}, []string{right, left}
	hostRouter := []netip.Addr{netip.MustParseAddr(segments[0] + "1"), netip.MustParseAddr(segments[3] + "2")}
	var err error
	for i, router := range routers {
		err = errors.Join(err, addVXLAN(router, underlay[i], own[i], own[1-i]))
		if err != nil {
			return err
		}
		mine, other := netip.MustParsePrefix(overlayHosts[i]+"/128"), netip.MustParsePrefix(overlayHosts[1-i]+"/128")
		err = errors.Join(
			router.AddAddress(vxlanLink, netip.MustParsePrefix(overlayRouters[i]+"/64")),
			router.AddRoute(netns.Route{To: other, Via: netip.MustParseAddr(overlayRouters[1-i]), Link: vxlanLink}),
			router.AddRoute(netns.Route{To: mine, Via: hostRouter[i], Link: toHost[i]}),
			hosts[i].AddAddress(toRouter[i], mine),
		)
	}
	return err
}

// addVXLAN adds a VXLAN link between two addresses.
func addVXLAN(ns *netns.Namespace, underlay string, own, peer netip.Addr) error {
	handle, err := ns.Links()
	if err != nil {
		return err
	}
	index, err := ns.Index(underlay)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = vxlanLink
	link := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: vxlanID, VtepDevIndex: index, SrcAddr: net.IP(own.AsSlice()), Port: vxlanPort, UDP6ZeroCSumTx: true, UDP6ZeroCSumRx: true}
	if err := handle.LinkAdd(link); err != nil {
		return fmt.Errorf("create %s in %s: %w", vxlanLink, ns.Name(), err)
	}
	added, err := ns.Index(vxlanLink)
	if err != nil {
		return err
	}
	// Frames for addresses that are not known go to the peer.
	flood := &netlink.Neigh{
		LinkIndex: added, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT | netlink.NUD_NOARP, Flags: netlink.NTF_SELF,
		IP: net.IP(peer.AsSlice()), HardwareAddr: make(net.HardwareAddr, 6),
	}
	if err := handle.NeighAppend(flood); err != nil {
		return fmt.Errorf("set the peer of %s in %s: %w", vxlanLink, ns.Name(), err)
	}
	return ns.Up(vxlanLink)
}

func (c *chain) remove() (err error) {
	for _, ns := range c.spaces {
		err = errors.Join(err, ns.Delete())
	}
	return err
}

// route returns the ends of the way with routes only, overlay those of the way through VXLAN.
func (c *chain) route() way {
	return way{c.spaces[0], c.spaces[4], netip.MustParseAddr(segments[3] + "2")}
}

func (c *chain) overlay() way {
	return way{c.spaces[0], c.spaces[4], netip.MustParseAddr(overlayHosts[1])}
}
