package client

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

// setAddress makes an address the only IPv4 address of the tunnel device.
func (t *tunnel) setAddress(own netip.Addr) error {
	handle, err := t.host.Links()
	if err != nil {
		return err
	}
	link, err := handle.LinkByName(t.config.Link)
	if err != nil {
		return fmt.Errorf("tunnel device %s: %w", t.config.Link, err)
	}
	present, err := handle.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", t.config.Link, err)
	}
	for _, address := range present {
		if address.IP.Equal(own.AsSlice()) {
			return nil
		}
		if err := handle.AddrDel(link, &address); err != nil {
			return fmt.Errorf("remove address %v of %s: %w", address.IPNet, t.config.Link, err)
		}
	}
	return t.host.AddAddress(t.config.Link, netip.PrefixFrom(own, 32))
}

// route routes destinations into the tunnel, and no others of before. The IPv4 default route has a metric,
// so that another one may take precedence.
func (t *tunnel) route(destinations []netip.Prefix) error {
	handle, err := t.host.Links()
	if err != nil {
		return err
	}
	link, err := handle.LinkByName(t.config.Link)
	if err != nil {
		return fmt.Errorf("tunnel device %s: %w", t.config.Link, err)
	}
	for _, former := range t.routed {
		if !slices.Contains(destinations, former) {
			if err := handle.RouteDel(t.routeTo(former, link)); err != nil {
				return fmt.Errorf("remove route to %v through %s: %w", former, t.config.Link, err)
			}
		}
	}
	t.routed = nil
	for _, destination := range destinations {
		if err := handle.RouteReplace(t.routeTo(destination, link)); err != nil {
			return fmt.Errorf("route to %v through %s: %w", destination, t.config.Link, err)
		}
		t.routed = append(t.routed, destination)
	}
	return nil
}

func (t *tunnel) routeTo(destination netip.Prefix, link netlink.Link) *netlink.Route {
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: netns.IPNet(destination)}
	if destination.Addr().Is4() {
		route.Priority = t.config.IPv4Metric
	}
	return route
}
