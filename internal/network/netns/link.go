package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Links returns a handle for requests to the kernel about links, addresses, routes and neighbours of the namespace. It is
// closed by Close. Its requests are serialized.
func (n *Namespace) Links() (*netlink.Handle, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links == nil {
		handle, err := netlink.NewHandleAt(n.fd, unix.NETLINK_ROUTE)
		if err != nil {
			return nil, fmt.Errorf("open netlink in %s: %w", n.name, err)
		}
		n.links = handle
	}
	return n.links, nil
}

// End is one end of a veth pair.
type End struct {
	In   *Namespace
	Name string
	// MAC is the hardware address; the kernel chooses one if it is nil.
	MAC net.HardwareAddr
	// Bridge is a bridge of the namespace that gets the end as its port; empty for none.
	Bridge string
}

// Veth creates a veth pair, attaches its ends to their bridges and sets both up. mtu is 0 for the default.
func Veth(a, b End, mtu int) error {
	handle, err := a.In.Links()
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = a.Name, a.MAC, mtu
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: b.Name, PeerTxQLen: -1, PeerHardwareAddr: b.MAC, PeerNamespace: netlink.NsFd(b.In.fd)}
	if err := handle.LinkAdd(pair); err != nil {
		return fmt.Errorf("create veth %s in %s, %s in %s: %w", a.Name, a.In.name, b.Name, b.In.name, err)
	}
	return errors.Join(a.ready(mtu), b.ready(mtu))
}

// ready attaches an end and sets it up.
func (e End) ready(mtu int) error {
	link, handle, err := e.In.link(e.Name)
	if err != nil {
		return err
	}
	if mtu != 0 && link.Attrs().MTU != mtu {
		err = handle.LinkSetMTU(link, mtu)
	}
	if e.Bridge != "" && err == nil {
		var bridge netlink.Link
		if bridge, err = handle.LinkByName(e.Bridge); err == nil {
			err = handle.LinkSetMaster(link, bridge)
		}
	}
	if err == nil {
		err = handle.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("set up %s in %s: %w", e.Name, e.In.name, err)
	}
	return nil
}

// AddBridge creates a bridge and sets it up. The bridge has no spanning tree, and does not look into multicast.
func (n *Namespace) AddBridge(name string, mac net.HardwareAddr, mtu int) error {
	handle, err := n.Links()
	if err != nil {
		return err
	}
	snooping := false
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = name, mac, mtu
	bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
	if err := handle.LinkAdd(bridge); err != nil {
		return fmt.Errorf("create bridge %s in %s: %w", name, n.name, err)
	}
	return n.Up(name)
}

// IsolatePort makes a port of a bridge unable to reach other isolated ports of it.
func (n *Namespace) IsolatePort(name string) error {
	link, handle, err := n.link(name)
	if err == nil {
		err = handle.LinkSetIsolated(link, true)
	}
	if err != nil {
		return fmt.Errorf("isolate the bridge port %s in %s: %w", name, n.name, err)
	}
	return nil
}

// Up sets a link up.
func (n *Namespace) Up(name string) error {
	link, handle, err := n.link(name)
	if err == nil {
		err = handle.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("set %s up in %s: %w", name, n.name, err)
	}
	return nil
}

// SetMTU sets the MTU of a link.
func (n *Namespace) SetMTU(name string, mtu int) error {
	link, handle, err := n.link(name)
	if err == nil {
		err = handle.LinkSetMTU(link, mtu)
	}
	if err != nil {
		return fmt.Errorf("set the MTU of %s in %s: %w", name, n.name, err)
	}
	return nil
}

// DeleteLink removes a link. It is not an error if there is none.
func (n *Namespace) DeleteLink(name string) error {
	link, handle, err := n.link(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil
	}
	if err == nil {
		err = handle.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("delete %s in %s: %w", name, n.name, err)
	}
	return nil
}

// Index returns the number of a link.
func (n *Namespace) Index(name string) (int, error) {
	link, _, err := n.link(name)
	if err != nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}

// MAC returns the hardware address of a link.
func (n *Namespace) MAC(name string) (net.HardwareAddr, error) {
	link, _, err := n.link(name)
	if err != nil {
		return nil, err
	}
	return link.Attrs().HardwareAddr, nil
}

func (n *Namespace) link(name string) (netlink.Link, *netlink.Handle, error) {
	handle, err := n.Links()
	if err != nil {
		return nil, nil, err
	}
	link, err := handle.LinkByName(name)
	if err != nil {
		return nil, nil, fmt.Errorf("find %s in %s: %w", name, n.name, err)
	}
	return link, handle, nil
}

// AddAddress adds an address with the length of its prefix to a link. Duplicate address detection is off, so the address
// can be used at once.
func (n *Namespace) AddAddress(link string, address netip.Prefix) error {
	l, handle, err := n.link(link)
	if err != nil {
		return err
	}
	flags := 0
	if address.Addr().Is6() {
		flags = unix.IFA_F_NODAD
	}
	if err := handle.AddrAdd(l, &netlink.Addr{IPNet: IPNet(address), Flags: flags}); err != nil {
		return fmt.Errorf("add address %s to %s in %s: %w", address, link, n.name, err)
	}
	return nil
}

// Route is a route of a namespace.
type Route struct {
	To netip.Prefix
	// Via is the gateway; the zero value for destinations on the link.
	Via  netip.Addr
	Link string
	// Metric orders routes with the same destination, the least first; 0 for the default of the kernel.
	Metric int
	// Unreachable rejects packets with an ICMP error. Link and Via are then not used.
	Unreachable bool
}

// AddRoute adds a route, or replaces the one with the same destination and metric.
func (n *Namespace) AddRoute(r Route) error {
	return n.changeRoute(r, "add", (*netlink.Handle).RouteReplace)
}

// DeleteRoute removes a route. It is not an error if there is none.
func (n *Namespace) DeleteRoute(r Route) error {
	return n.changeRoute(r, "delete", func(handle *netlink.Handle, route *netlink.Route) error {
		if err := handle.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		return nil
	})
}

func (n *Namespace) changeRoute(r Route, verb string, change func(*netlink.Handle, *netlink.Route) error) error {
	handle, err := n.Links()
	if err != nil {
		return err
	}
	route := &netlink.Route{Dst: IPNet(r.To), Priority: r.Metric}
	if r.Unreachable {
		route.Type = unix.RTN_UNREACHABLE
	} else {
		link, err := handle.LinkByName(r.Link)
		if err != nil {
			return fmt.Errorf("find %s in %s: %w", r.Link, n.name, err)
		}
		route.LinkIndex = link.Attrs().Index
	}
	if r.Via.IsValid() {
		route.Gw, route.Flags = r.Via.AsSlice(), int(netlink.FLAG_ONLINK)
	}
	if err := change(handle, route); err != nil {
		return fmt.Errorf("%s route to %s in %s: %w", verb, r.To, n.name, err)
	}
	return nil
}

// IPNet converts a prefix. Its address may have bits behind the prefix.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
