package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/vishvananda/netlink"

	"github.com/k8s-1m/k8s-1m/internal/network/cni"
	"github.com/k8s-1m/k8s-1m/internal/network/filter"
)

const (
	// settle is the time for which events are collected before they are handled together.
	settle = 2 * time.Millisecond
	// resync is the time after which everything is compared again, in case an event was lost.
	resync = 30 * time.Second
)

// pods keeps the filter and the permanent neighbours of the bridge equal to the pods of the node.
type pods struct {
	options *Options
	prefix  netip.Prefix
	filter  *filter.Pods
	log     *slog.Logger

	ports    []string
	bindings []filter.Binding

	count, stale atomic.Int64
}

// read returns the ports of the bridge, and the bindings of pods whose port exists and whose address is in the prefix. stale is
// the number of pods with another address, which have no network any more.
func (p *pods) read() (ports []string, bindings []filter.Binding, stale int, err error) {
	bridge, err := netlink.LinkByName(p.options.Bridge)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("bridge %s: %w", p.options.Bridge, err)
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, nil, 0, fmt.Errorf("list links: %w", err)
	}
	for _, link := range links {
		if link.Attrs().MasterIndex == bridge.Attrs().Index {
			ports = append(ports, link.Attrs().Name)
		}
	}
	slices.Sort(ports)
	attachments, damaged, err := cni.Attachments(p.options.ResultsDir, p.options.Bridge)
	if err != nil {
		return nil, nil, 0, err
	}
	if damaged != nil {
		p.log.Warn("some pods have no network", "error", damaged)
	}
	for _, a := range attachments {
		if _, exists := slices.BinarySearch(ports, a.Port); !exists {
			continue
		}
		if !p.prefix.Contains(a.Address) {
			stale++
			continue
		}
		bindings = append(bindings, filter.Binding{Port: a.Port, MAC: a.MAC, Address: a.Address})
	}
	slices.SortFunc(bindings, func(a, b filter.Binding) int { return a.Address.Compare(b.Address) })
	return ports, bindings, stale, nil
}

// update applies changes since the last call.
func (p *pods) update() error {
	ports, bindings, stale, err := p.read()
	if err != nil {
		return err
	}
	if int64(stale) != p.stale.Swap(int64(stale)) && stale > 0 {
		p.log.Warn("pods have addresses outside the prefix of this node and no network; delete them", "pods", stale, "prefix", p.prefix)
	}
	if !slices.Equal(ports, p.ports) || !slices.Equal(bindings, p.bindings) {
		if err := p.filter.Set(ports, bindings); err != nil {
			return err
		}
		p.ports, p.bindings = ports, bindings
		p.count.Store(int64(len(bindings)))
	}
	return p.setNeighbours(bindings)
}

// setNeighbours makes the neighbours of the bridge permanent. Such entries do not count for the limit of the kernel's
// table, and are not taken away by other ones.
func (p *pods) setNeighbours(bindings []filter.Binding) error {
	bridge, err := netlink.LinkByName(p.options.Bridge)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", p.options.Bridge, err)
	}
	index := bridge.Attrs().Index
	entries, err := netlink.NeighList(index, netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("list the neighbours of %s: %w", p.options.Bridge, err)
	}
	wanted := map[netip.Addr]net.HardwareAddr{}
	for _, b := range bindings {
		wanted[b.Address] = b.MAC[:]
	}
	for _, e := range entries {
		a, ok := netip.AddrFromSlice(e.IP)
		mac, isPod := wanted[a]
		switch {
		case !ok || e.State&netlink.NUD_PERMANENT == 0:
		case isPod && slices.Equal(mac, e.HardwareAddr):
			delete(wanted, a)
		case !isPod:
			if err := netlink.NeighDel(&e); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("delete neighbour %s: %w", a, err)
			}
		}
	}
	for a, mac := range wanted {
		entry := &netlink.Neigh{LinkIndex: index, Family: netlink.FAMILY_V6, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
		if err := netlink.NeighSet(entry); err != nil {
			return fmt.Errorf("set neighbour %s: %w", a, err)
		}
	}
	return nil
}

// watch calls update after each change of a result of CNI or of a link, until ctx ends. Failures are logged and tried again.
func (p *pods) watch(ctx context.Context) error {
	files, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the results of CNI: %w", err)
	}
	defer files.Close()
	if err := files.Add(p.options.ResultsDir); err != nil {
		return fmt.Errorf("watch %s: %w", p.options.ResultsDir, err)
	}
	links, done := make(chan netlink.LinkUpdate, 256), make(chan struct{})
	defer close(done)
	if err := netlink.LinkSubscribe(links, done); err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err, open := <-files.Errors:
			if !open {
				return errors.New("watch the results of CNI: ended")
			}
			p.log.Warn("events of CNI results were lost", "error", err)
			timer.Reset(settle)
		case <-files.Events:
			timer.Reset(settle)
		case _, open := <-links:
			if !open {
				return errors.New("watch links: ended")
			}
			timer.Reset(settle)
		case <-timer.C:
			next := resync
			if err := p.update(); err != nil {
				p.log.Error("the filter of pods is not up to date; trying again", "error", err)
				next = time.Second
			}
			timer.Reset(next)
		}
	}
}
