package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
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
	// rulesInterval is the time after which the agent looks whether somebody has removed the rules of the filter.
	rulesInterval = 5 * time.Second
	// watchAgain is the time after which a source of events that has ended is opened again.
	watchAgain = time.Second
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

// install installs the filter, and the neighbours of the pods that run.
func (p *pods) install() error {
	if err := p.makeResultsDir(); err != nil {
		return err
	}
	ports, bindings, stale, err := p.read()
	if err != nil {
		return err
	}
	node := filter.Node{Bridge: p.options.Bridge, Uplink: p.options.Uplink, Pods: p.prefix, NoTrack: p.options.NoTrack}
	if p.filter, err = filter.Install(node, ports, bindings); err != nil {
		return err
	}
	p.record(ports, bindings, stale)
	if err := p.setNeighbours(bindings); err != nil {
		return errors.Join(err, p.filter.Close())
	}
	return nil
}

// update applies changes since the last call, or since install.
func (p *pods) update() error {
	ports, bindings, stale, err := p.read()
	if err != nil {
		return err
	}
	if !slices.Equal(ports, p.ports) || !slices.Equal(bindings, p.bindings) {
		if err := p.filter.Set(ports, bindings); err != nil {
			return err
		}
	}
	p.record(ports, bindings, stale)
	return p.setNeighbours(bindings)
}

// record remembers what the filter has.
func (p *pods) record(ports []string, bindings []filter.Binding, stale int) {
	p.ports, p.bindings = ports, bindings
	p.count.Store(int64(len(bindings)))
	if int64(stale) != p.stale.Swap(int64(stale)) && stale > 0 {
		p.log.Warn("pods have addresses outside the prefix of this node and no network; delete them", "pods", stale, "prefix", p.prefix)
	}
}

// repair installs the filter again if somebody has removed rules of it.
func (p *pods) repair() {
	intact, err := p.filter.Intact()
	if err == nil && !intact {
		p.log.Warn("another program has removed rules of the filter of pods; installing them again")
		err = p.filter.Reinstall(p.ports, p.bindings)
	}
	if err != nil {
		p.log.Error("the rules of the filter of pods cannot be checked; trying again", "error", err, "after", rulesInterval)
	}
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

// watch keeps the filter up to date until ctx ends. Events that are lost, and sources of events that end, are logged; then everything is
// compared again.
func (p *pods) watch(ctx context.Context) error {
	for {
		err := p.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		p.log.Error("the events of pods have ended; watching again", "error", err, "after", watchAgain)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchAgain):
		}
	}
}

func (p *pods) makeResultsDir() error {
	if err := os.MkdirAll(p.options.ResultsDir, 0o700); err != nil {
		return fmt.Errorf("create the directory of CNI results: %w", err)
	}
	return nil
}

// watchResults watches the directory of the results of CNI, which is created.
func (p *pods) watchResults() (*fsnotify.Watcher, error) {
	if err := p.makeResultsDir(); err != nil {
		return nil, err
	}
	files, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch the results of CNI: %w", err)
	}
	if err := files.Add(p.options.ResultsDir); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", p.options.ResultsDir, err), files.Close())
	}
	return files, nil
}

// follow calls update after each change of a result of CNI or of a link, until ctx ends or a source of events does.
func (p *pods) follow(ctx context.Context) error {
	files, err := p.watchResults()
	if err != nil {
		return err
	}
	defer files.Close()
	links, done := make(chan netlink.LinkUpdate, 256), make(chan struct{})
	defer close(done)
	if err := netlink.LinkSubscribe(links, done); err != nil {
		return fmt.Errorf("watch links: %w", err)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	rules := time.NewTicker(rulesInterval)
	defer rules.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-rules.C:
			p.repair()
		case err, open := <-files.Errors:
			if !open {
				return errors.New("watch the results of CNI: ended")
			}
			p.log.Warn("events of CNI results were lost", "error", err)
			timer.Reset(settle)
		case event := <-files.Events:
			if event.Name == filepath.Clean(p.options.ResultsDir) && (event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename)) {
				return fmt.Errorf("directory %s was removed", event.Name)
			}
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
				p.repair()
				next = time.Second
			}
			timer.Reset(next)
		}
	}
}
