package storecluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
)

const (
	rejoinValueBytes = 4096
	// etcd's store and load are smaller by these factors, because it needs minutes to be filled.
	etcdSizeDivisor, etcdRateDivisor = 16, 10
)

// rejoins measures how long a member needs to come back without its data.
func (b *bench) rejoins(ctx context.Context) error {
	table := b.Result.Table("A member rejoins without its data, under puts", "store", "data, MiB", "puts wanted, /s", "puts, /s", "time, s", "longest time without a write, ms")
	measured := false
	err := b.each(ctx, "rejoin", func(ctx context.Context, store string, cluster *storemembers.Cluster) (string, error) {
		mib, rate := b.options.RejoinMiB.N, b.options.RejoinRate.N
		if store == storemembers.Etcd {
			mib, rate = max(1, mib/etcdSizeDivisor), max(1, rate/etcdRateDivisor)
		}
		took, pause, achieved, err := b.rejoin(ctx, cluster, mib, rate)
		if err != nil {
			return "", err
		}
		table.Add(store, mib, rate, achieved, took.Seconds(), millis(pause))
		if store == storemembers.MemEtcd {
			measured = true
			b.judge(limitRejoin, took.Seconds(), 1, "")
			b.judge(limitRejoinGap, millis(pause), 1, "")
		}
		return fmt.Sprintf("a member rejoined %d MiB within %s s", mib, number.Text(took.Seconds())), nil
	})
	if !measured && err == nil {
		b.judge(limitRejoin, 0, 0, b.notMeasured())
		b.judge(limitRejoinGap, 0, 0, b.notMeasured())
	}
	return err
}

func millis(d time.Duration) float64 { return d.Seconds() * 1000 }

// rejoin fills the store, kills a follower under load, and starts it again without its data. It returns the time until the
// member serves, the longest time without an acknowledged write meanwhile, and the puts a second of the load.
func (b *bench) rejoin(ctx context.Context, cluster *storemembers.Cluster, mib, rate int) (took, pause time.Duration, achieved float64, err error) {
	if err := b.fill(ctx, cluster, mib); err != nil {
		return 0, 0, 0, err
	}
	leader, err := cluster.Leader(ctx)
	if err != nil {
		return 0, 0, 0, err
	}
	i := slices.IndexFunc(cluster.Members, func(m *storemembers.Member) bool { return m != leader })
	victim := cluster.Members[i]
	others := slices.Delete(slices.Clone(cluster.Members), i, i+1)
	load, err := b.lab.BenchAt(ctx, endpoints(others), "put", "--rate", strconv.Itoa(rate), "--clients", strconv.Itoa(b.options.Clients), "--connections", "4",
		"--duration", loadLimit.String(), "--val-size", "1024", "--key-space-size", "100000")
	if err != nil {
		return 0, 0, 0, err
	}
	took, pause, err = b.measureRejoin(ctx, cluster, victim, others)
	report, loadErr := stopped(ctx, load)
	if errors.Is(loadErr, storeserver.ErrOperations) {
		loadErr = nil
	}
	b.Result.Errors.AddMany(report.Ops+report.Errors, report.ErrorsByKind)
	return took, pause, report.OpsPerSecond, errors.Join(err, loadErr)
}

// loadLimit ends the load if it is not stopped before.
const loadLimit = time.Hour

func (b *bench) measureRejoin(ctx context.Context, cluster *storemembers.Cluster, victim *storemembers.Member, others []*storemembers.Member) (took, pause time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.options.Timeout+time.Duration(limitRejoin.must)*time.Second)
	defer cancel()
	p, err := startProber(ctx, others)
	if err != nil {
		return 0, 0, err
	}
	defer p.close()
	victim.Kill()
	if err := p.await(ctx, settledAcks); err != nil {
		return 0, 0, err
	}
	p.begin()
	start := time.Now()
	if err := comeBack(ctx, cluster, victim); err != nil {
		return 0, 0, err
	}
	if err := victim.AwaitHealthy(ctx); err != nil {
		return 0, 0, err
	}
	return time.Since(start), p.pause(), nil
}

// comeBack replaces a member that has lost its data, which the cluster may refuse for some seconds after a fault.
func comeBack(ctx context.Context, cluster *storemembers.Cluster, m *storemembers.Member) error {
	for {
		err := cluster.Replace(ctx, m)
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// fill puts values of 4 KiB.
func (b *bench) fill(ctx context.Context, cluster *storemembers.Cluster, mib int) error {
	client, err := b.lab.BenchAt(ctx, cluster.Endpoints(), "fill", "--clients", "128", "--connections", "6",
		"--keys", fmt.Sprintf("/rejoin/=%dx%d", mib<<20/rejoinValueBytes, rejoinValueBytes))
	if err != nil {
		return err
	}
	if _, err := client.Report(ctx); err != nil {
		return fmt.Errorf("filling the store: %w", err)
	}
	return nil
}

// stopped interrupts the load and returns its report.
func stopped(ctx context.Context, load *storeserver.Client) (storeserver.Report, error) {
	if err := load.Stop(); err != nil {
		return storeserver.Report{}, err
	}
	return load.Report(ctx)
}

func endpoints(members []*storemembers.Member) (urls []string) {
	for _, m := range members {
		urls = append(urls, m.ClientURL)
	}
	return urls
}
