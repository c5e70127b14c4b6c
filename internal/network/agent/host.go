package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/k8s-1m/k8s-1m/internal/network/address"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

// prepareHost turns on forwarding, raises limits of the kernel and creates the bridge with the gateway of the pods.
func (o *Options) prepareHost(pods netip.Prefix, mtu int, log *slog.Logger) error {
	if err := netns.SetSysctl("ipv6/conf/all/forwarding", "1"); err != nil {
		return err
	}
	// A kernel that forwards ignores router advertisements, from which the node may have its default route.
	acceptRA := "ipv6/conf/" + o.Uplink + "/accept_ra"
	if readNumber(acceptRA) == 1 {
		if err := netns.SetSysctl(acceptRA, "2"); err != nil {
			return err
		}
	}
	if o.NoBridgeNetfilter && readNumber(netns.BridgeNetfilter) > 0 {
		if err := netns.SetSysctl(netns.BridgeNetfilter, "0"); err != nil {
			return err
		}
	}
	o.raiseNeighbourLimits(log)
	return o.prepareBridge(pods, mtu)
}

// raiseNeighbourLimits raises the limits of the table of neighbours, from which the kernel takes entries away. They
// can be set only in the first namespace of a machine.
func (o *Options) raiseNeighbourLimits(log *slog.Logger) {
	for _, limit := range []struct {
		name  string
		least int
	}{{"gc_thresh3", o.NeighbourEntries}, {"gc_thresh2", o.NeighbourEntries / 2}, {"gc_thresh1", o.NeighbourEntries / 4}} {
		key := "ipv6/neigh/default/" + limit.name
		if now := readNumber(key); now >= 0 && now < limit.least {
			if err := netns.SetSysctl(key, strconv.Itoa(limit.least)); err != nil {
				log.Warn("the limit of the table of neighbours cannot be raised", "error", err)
			}
		}
	}
}

// readNumber returns a kernel parameter, or -1 if it cannot be read.
func readNumber(key string) int {
	content, err := os.ReadFile(filepath.Join("/proc/sys/net", key))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return -1
	}
	return n
}

// prepareBridge creates the bridge, and gives it the gateway's address and no other one of an earlier prefix. The plugin
// bridge would create it, too, but then its address could be used only after the detection of duplicates, and its Ethernet address
// would change with its ports.
func (o *Options) prepareBridge(pods netip.Prefix, mtu int) error {
	bridge, err := netlink.LinkByName(o.Bridge)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		snooping := false
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = o.Bridge, mtu, bridgeMAC(o.Node, o.Bridge)
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
			return fmt.Errorf("create bridge %s: %w", o.Bridge, err)
		}
		bridge, err = netlink.LinkByName(o.Bridge)
	}
	if err != nil {
		return fmt.Errorf("bridge %s: %w", o.Bridge, err)
	}
	if bridge.Type() != "bridge" {
		return fmt.Errorf("link %s is a %s, not a bridge; choose another name with --bridge", o.Bridge, bridge.Type())
	}
	gateway := netip.PrefixFrom(address.Gateway(pods), pods.Bits())
	if err := removeOtherAddresses(bridge, gateway); err != nil {
		return err
	}
	if err := netlink.AddrReplace(bridge, &netlink.Addr{IPNet: netns.IPNet(gateway), Flags: unix.IFA_F_NODAD}); err != nil {
		return fmt.Errorf("add %s to bridge %s: %w", gateway, o.Bridge, err)
	}
	return netlink.LinkSetUp(bridge)
}

func removeOtherAddresses(bridge netlink.Link, keep netip.Prefix) error {
	addresses, err := netlink.AddrList(bridge, netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("addresses of bridge %s: %w", bridge.Attrs().Name, err)
	}
	for _, a := range addresses {
		ip, _ := netip.AddrFromSlice(a.IP)
		if ip.IsGlobalUnicast() && ip != keep.Addr() {
			if err := netlink.AddrDel(bridge, &a); err != nil {
				return fmt.Errorf("remove %s from bridge %s: %w", ip, bridge.Attrs().Name, err)
			}
		}
	}
	return nil
}

// bridgeMAC returns an Ethernet address that is the same after each start of a node.
func bridgeMAC(node, bridge string) net.HardwareAddr {
	hash := sha256.Sum256([]byte(node + "/" + bridge))
	mac := net.HardwareAddr(hash[:6])
	mac[0] = mac[0]&^1 | 2 // one link, locally administered
	return mac
}

// removeHost removes the bridge.
func (o *Options) removeHost() error {
	bridge, err := netlink.LinkByName(o.Bridge)
	var none netlink.LinkNotFoundError
	switch {
	case errors.As(err, &none):
		return nil
	case err != nil:
		return fmt.Errorf("bridge %s: %w", o.Bridge, err)
	case bridge.Type() != "bridge":
		return fmt.Errorf("link %s is not a bridge", o.Bridge)
	}
	return netlink.LinkDel(bridge)
}
