package main

import (
	"context"
	"fmt"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Key prefixes of nodes, Leases and pods, as in Kubernetes.
const (
	registry = "/registry/"
	nodes    = registry + "minions/node-"
	leases   = registry + "leases/kube-node-lease/node-"
	pods     = registry + "pods/default/pod-"
)

// largeStore is a mem_etcd filled with nodes, Leases and pods. Its data is on a disk: on tmpfs, the log would
// use as much memory as the store.
type largeStore struct {
	title string
	// each is the number of nodes, of Leases and of pods.
	each   int
	server *storeserver.Server
	// commands are the commands that filled the store.
	commands []string
	// residentBytes is the resident memory after filling and compaction.
	residentBytes int64
	// failure is the error that occurred while the store was filled. Every row that needs the store
	// returns it.
	failure error
}

// largeStore returns the large store of this run, which may not be filled yet.
func (l *lab) largeStore() *largeStore {
	if l.large == nil {
		l.large = &largeStore{title: "1M nodes, 1M Leases, 1M pods", each: 1_000_000}
		if l.quick {
			l.large = &largeStore{title: "33k nodes, 33k Leases, 33k pods", each: 33_333}
		}
	}
	return l.large
}

// filledLargeStore returns the large store of this run. The first call fills it.
func (l *lab) filledLargeStore(ctx context.Context) (*largeStore, error) {
	p := l.largeStore()
	if p.commands == nil {
		p.failure = p.fill(ctx, l)
	}
	return p, p.failure
}

// fill starts the store, fills and compacts it, and measures its memory.
func (p *largeStore) fill(ctx context.Context, l *lab) error {
	var err error
	if p.server, err = l.Fresh(ctx, ours, l.disk); err != nil {
		return err
	}
	p.commands = []string{p.server.Command}
	_, command, err := l.Run(ctx, p.server, fillArgs(p.nodes(), p.leases(), p.pods())...)
	if err != nil {
		return err
	}
	p.commands = append(p.commands, command)
	if err := compact(ctx, p.server); err != nil {
		return err
	}
	p.residentBytes, err = p.server.Settled(ctx)
	return err
}

func (p *largeStore) nodes() string  { return group(nodes, p.each, 1229) }
func (p *largeStore) leases() string { return group(leases, p.each, 410) }
func (p *largeStore) pods() string   { return group(pods, p.each, 1536) }

// group returns a key group as an argument of etcd-bench fill.
func group(prefix string, count, bytes int) string {
	return fmt.Sprintf("%s=%dx%d", prefix, count, bytes)
}

// fillArgs returns arguments of etcd-bench that write groups of keys.
func fillArgs(groups ...string) []string {
	args := []string{"fill", "--clients", "256", "--connections", "10", "--key-size", "8"}
	for _, group := range groups {
		args = append(args, "--keys", group)
	}
	return args
}

// restart kills the store, starts it again with its data, and checks that no key is missing.
func (p *largeStore) restart(ctx context.Context, l *lab, args ...string) error {
	p.server.Kill()
	s, err := l.Start(ctx, ours, p.server.Folder, args...)
	if err != nil {
		return err
	}
	p.server = s
	found, err := countKeys(ctx, s, registry)
	if err != nil {
		return err
	}
	if want := int64(3 * p.each); found != want {
		return fmt.Errorf("the store has %d keys after the restart; want %d", found, want)
	}
	return nil
}

// discard stops the store and removes its data.
func (p *largeStore) discard() {
	if p.server != nil {
		p.server.Discard()
	}
}

// residentGiB measures the resident memory of the large store after filling and compaction.
func residentGiB(ctx context.Context, l *lab, _ string) (sample, error) {
	p, err := l.filledLargeStore(ctx)
	return sample{Value: float64(p.residentBytes) / gibibyte, Commands: p.commands}, err
}

// restartSeconds kills the large store and measures the time from its restart until it is healthy.
func restartSeconds(ctx context.Context, l *lab, _ string) (sample, error) {
	p, err := l.filledLargeStore(ctx)
	if err != nil {
		return sample{}, err
	}
	data := filepath.Join(p.server.Folder, "data")
	snapshot, log := directoryBytes(filepath.Join(data, "snap")), directoryBytes(filepath.Join(data, "wal"))
	if err := p.restart(ctx, l); err != nil {
		return sample{}, err
	}
	return sample{
		Value:    p.server.Startup.Seconds(),
		Details:  map[string]float64{"snapshotBytes": snapshot, "logBytes": log},
		Note:     fmt.Sprintf("snapshot %.1f GiB, log %.1f GiB", snapshot/gibibyte, log/gibibyte),
		Commands: append(p.commands, "kill -9 $PID", p.server.Command),
	}, nil
}

// overhead measures the resident memory per key, without the bytes of key and value.
func overhead(ctx context.Context, l *lab, store string) (sample, error) {
	s, err := l.Fresh(ctx, store, memory)
	if err != nil {
		return sample{}, err
	}
	defer s.Discard()
	empty, err := s.Settled(ctx)
	if err != nil {
		return sample{}, err
	}
	keys := "/bench/=" + l.count(1_000_000) + "x100-1000"
	r, command, err := l.Run(ctx, s, "fill", "--clients", "256", "--connections", "10", "--key-size", "48", "--keys", keys)
	if err != nil {
		return sample{}, err
	}
	if err := compact(ctx, s); err != nil {
		return sample{}, err
	}
	full, err := s.Settled(ctx)
	return sample{
		Value:    float64(full-empty-r.FilledBytes) / float64(r.Ops),
		Details:  map[string]float64{"emptyBytes": float64(empty), "residentBytes": float64(full), "keyAndValueBytes": float64(r.FilledBytes)},
		Commands: []string{s.Command, command},
	}, err
}

// directoryBytes returns the total size of the files in a directory, without files that are removed meanwhile.
func directoryBytes(folder string) (bytes float64) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return 0
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			bytes += float64(info.Size())
		}
	}
	return bytes
}

func connect(s *storeserver.Server) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{s.URL}, Logger: zap.NewNop()})
}

// compact compacts the store at its current revision, and waits until the history is removed.
func compact(ctx context.Context, s *storeserver.Server) error {
	c, err := connect(s)
	if err != nil {
		return err
	}
	defer c.Close()
	now, err := c.Get(ctx, "/")
	if err != nil {
		return err
	}
	_, err = c.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
	return err
}

func countKeys(ctx context.Context, s *storeserver.Server, prefix string) (int64, error) {
	c, err := connect(s)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	found, err := c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return found.Count, nil
}
