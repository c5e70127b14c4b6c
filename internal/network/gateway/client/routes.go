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
	found := false
	for _, address := range present {
		if address.IP.Equal(own.AsSlice()) {
			found = true
			continue
		}
		if err := handle.AddrDel(link, &address); err != nil {
			return fmt.Errorf("remove address %v of %s: %w", address.IPNet, t.config.Link, err)
		}
	}
	if found {
		return nil
	}
	return t.host.AddAddress(t.config.Link, netip.PrefixFrom(own, 32))
}

// route routes destinations into the tunnel, and no others of before. The IPv4 default route has a metric,
// so that another one may take precedence.
func (t *tunnel) route(destinations []netip.Prefix) error {
	for _, former := range slices.Clone(t.routed) {
		if slices.Contains(destinations, former) {
			continue
		}
		if err := t.host.DeleteRoute(t.routeTo(former)); err != nil {
			return err
		}
		t.routed = slices.DeleteFunc(t.routed, func(p netip.Prefix) bool { return p == former })
	}
	for _, destination := range destinations {
		if err := t.host.AddRoute(t.routeTo(destination)); err != nil {
			return err
		}
		if !slices.Contains(t.routed, destination) {
			t.routed = append(t.routed, destination)
		}
	}
	return nil
}

func (t *tunnel) routeTo(destination netip.Prefix) netns.Route {
	route := netns.Route{To: destination, Link: t.config.Link}
	if destination.Addr().Is4() {
		route.Metric = t.config.IPv4Metric
	}
	return route
}
