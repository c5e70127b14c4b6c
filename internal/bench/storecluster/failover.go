package storecluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
)

// kills measures how long no write is acknowledged after the leader was killed.
func (b *bench) kills(ctx context.Context) error {
	p99, err := b.failovers(ctx, "kill -9 of the leader", b.options.Kills.N, func(m *storemembers.Member) error {
		m.Kill()
		return nil
	})
	b.judgeRatio(limitKill, storemembers.MemEtcd, storemembers.Etcd, p99, b.options.Kills.N)
	return err
}

// stops measures how long no write is acknowledged while the leader stops.
func (b *bench) stops(ctx context.Context) error {
	p99, err := b.failovers(ctx, "SIGTERM of the leader", b.options.Stops.N, (*storemembers.Member).Stop)
	if own := p99[storemembers.MemEtcd]; own > 0 {
		b.judge(limitTerminate, own, b.options.Stops.N, "")
	} else {
		b.judge(limitTerminate, 0, 0, b.notMeasured())
	}
	return err
}

// failovers ends leaders of each store, and returns the 99th percentiles of the times without a write, in milliseconds.
func (b *bench) failovers(ctx context.Context, what string, times int, end func(*storemembers.Member) error) (map[string]float64, error) {
	table := b.Result.Table("Longest time without an acknowledged write: "+what, "store", "times", "p50, ms", "p99, ms", "least, ms", "most, ms")
	p50, p99 := map[string]float64{}, map[string]float64{}
	err := b.each(ctx, what, func(ctx context.Context, store string, cluster *storemembers.Cluster) (string, error) {
		pauses := experiment.NewLatencies()
		for range times {
			pause, err := b.failover(ctx, cluster, end)
			if err != nil {
				return "", err
			}
			pauses.Record(pause)
		}
		p50[store], p99[store] = pauses.Millis(50), pauses.Millis(99)
		table.Add(store, times, p50[store], p99[store], pauses.Millis(0), pauses.Millis(100))
		return fmt.Sprintf("%s: p50 %s ms, p99 %s ms", what, number.Text(p50[store]), number.Text(p99[store])), nil
	})
	b.compare(experiment.Figure{Name: "no write after " + what + ", p50", Unit: "ms"}, p50)
	b.compare(experiment.Figure{Name: "no write after " + what + ", p99", Unit: "ms"}, p99)
	return p99, err
}

// failover ends the process of the leader, and returns the longest time without an acknowledged write of clients of the
// other members. Then it starts the process again.
func (b *bench) failover(ctx context.Context, cluster *storemembers.Cluster, end func(*storemembers.Member) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, b.options.Timeout)
	defer cancel()
	leader, err := cluster.Leader(ctx)
	if err != nil {
		return 0, err
	}
	others := slices.DeleteFunc(slices.Clone(cluster.Members), func(m *storemembers.Member) bool { return m == leader })
	p, err := startProber(ctx, others)
	if err != nil {
		return 0, err
	}
	defer p.close()
	p.begin()
	if err := end(leader); err != nil {
		return 0, err
	}
	if err := p.await(ctx, settledAcks); err != nil {
		return 0, err
	}
	pause := p.pause()
	if err := leader.Start(); err != nil {
		return 0, err
	}
	return pause, cluster.AwaitHealthy(ctx)
}
