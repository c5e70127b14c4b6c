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

// Key prefixes of a population, as in Kubernetes.
const (
	registry = "/registry/"
	nodes    = registry + "minions/node-"
	leases   = registry + "leases/kube-node-lease/node-"
	pods     = registry + "pods/default/pod-"
)

// population is a store filled with nodes, Leases and pods. Its data is on the disk, because the
// log on tmpfs would need as much memory as the store.
type population struct {
	title string
	// each is the number of nodes, which is also the number of Leases and of pods.
	each   int
	server *storeserver.Server
	// commands are the commands that filled it.
	commands []string
	// residentBytes is the memory after filling and compaction.
	residentBytes int64
	// failure is the error of filling, which every row that needs the population returns.
	failure error
}

// population returns the population of this run, which may not be filled yet.
func (l *lab) population() *population {
	if l.people == nil {
		l.people = &population{title: "1M nodes, 1M Leases, 1M pods", each: 1_000_000}
		if l.quick {
			l.people = &population{title: "33k nodes, 33k Leases, 33k pods", each: 33_333}
		}
	}
	return l.people
}

// populated returns the population, and fills it on the first call.
func (l *lab) populated(ctx context.Context) (*population, error) {
	p := l.population()
	if p.commands == nil {
		p.failure = p.fill(ctx, l)
	}
	return p, p.failure
}

func (p *population) fill(ctx context.Context, l *lab) error {
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

func (p *population) nodes() string  { return group(nodes, p.each, 1229) }
func (p *population) leases() string { return group(leases, p.each, 410) }
func (p *population) pods() string   { return group(pods, p.each, 1536) }

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

// restart kills the store, as a crash would, and starts it with the remaining data.
func (p *population) restart(ctx context.Context, l *lab, args ...string) error {
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
		return fmt.Errorf("%d of %d keys exist after the restart", found, want)
	}
	return nil
}

func (p *population) discard() {
	if p.server != nil {
		p.server.Discard()
	}
}

// residentGiB measures the memory of a filled and compacted population.
func residentGiB(ctx context.Context, l *lab, _ string) (sample, error) {
	p, err := l.populated(ctx)
	return sample{Value: float64(p.residentBytes) / gibibyte, Commands: p.commands}, err
}

// restartSeconds measures the time from the start of the process until it is healthy.
func restartSeconds(ctx context.Context, l *lab, _ string) (sample, error) {
	p, err := l.populated(ctx)
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

// overhead measures the memory of a key beyond the bytes of key and value.
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

// directoryBytes returns the size of the files in a directory; files that are removed meanwhile are
// skipped.
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

// compact compacts all history, and waits until that is done.
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
