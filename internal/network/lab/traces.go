package lab

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

// Traces returns what the provider and the other nodes know of a node: its port, routes to its prefix, and neighbours with its
// Ethernet address or addresses of its prefix.
func (l *Lab) Traces(number int, plan NodePlan) (found []string, err error) {
	spaces := []*netns.Namespace{l.Provider}
	for _, n := range l.Nodes() {
		if n.Number != number {
			spaces = append(spaces, n.NS)
		}
	}
	for _, ns := range spaces {
		neighbours, neighboursErr := neighbourTraces(ns, plan)
		routes, routesErr := routeTraces(ns, plan)
		found, err = append(append(found, neighbours...), routes...), errors.Join(err, neighboursErr, routesErr)
	}
	if _, noPort := l.Provider.Index(port(number)); noPort == nil {
		found = append(found, "port "+port(number))
	}
	return found, err
}

func neighbourTraces(ns *netns.Namespace, plan NodePlan) (found []string, err error) {
	handle, err := ns.Links()
	if err != nil {
		return nil, err
	}
	entries, err := handle.NeighList(0, netlink.FAMILY_V6)
	if err != nil {
		return nil, fmt.Errorf("list the neighbours of %s: %w", ns.Name(), err)
	}
	for _, e := range entries {
		a, _ := netip.AddrFromSlice(e.IP)
		// An entry that failed says that the address is not there.
		failed := e.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) != 0
		if bytes.Equal(e.HardwareAddr, plan.MAC) || !failed && plan.Provided.Contains(a) {
			found = append(found, fmt.Sprintf("%s: neighbour %s at %s", ns.Name(), e.IP, e.HardwareAddr))
		}
	}
	return found, nil
}

func routeTraces(ns *netns.Namespace, plan NodePlan) (found []string, err error) {
	handle, err := ns.Links()
	if err != nil {
		return nil, err
	}
	routes, err := handle.RouteList(nil, netlink.FAMILY_V6)
	if err != nil {
		return nil, fmt.Errorf("list the routes of %s: %w", ns.Name(), err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		ones, _ := r.Dst.Mask.Size()
		if a, _ := netip.AddrFromSlice(r.Dst.IP); ones >= plan.Provided.Bits() && plan.Provided.Contains(a) {
			found = append(found, fmt.Sprintf("%s: route %s", ns.Name(), r.Dst))
		}
	}
	return found, nil
}
