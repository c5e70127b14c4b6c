package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

var storeRange = experiment.Experiment{
	Name:  "store-range",
	Short: "Read the keys of a store: in one request, in pages, streamed, counted, at old revisions",
	Long: `Fill a store with --keys objects of 1.5 KiB, and read them one after the other in several ways:
all objects in one request, in pages, with RangeStream and at an old revision; all keys without
values; the number of keys; and the first 100 objects.`,
	Example: `  k1m bench store-range
  k1m bench store-range --keys 1000000 --stores mem_etcd-buffered`,
	New: func() experiment.Options {
		return &rangeOptions{stores: defaultStores("mem_etcd-buffered", "etcd"), Keys: experiment.ByScale(50_000, 1000)}
	},
}

type rangeOptions struct {
	stores
	Keys experiment.Count
}

// AddFlags binds the options to flags.
func (o *rangeOptions) AddFlags(fs *pflag.FlagSet) {
	o.stores.AddFlags(fs)
	fs.Var(&o.Keys, "keys", o.Keys.Usage("objects in the store"))
}

const (
	rangePrefix = "/registry/pods/default/pod-"
	rangeBytes  = 1536
	pageSize    = 10_000
)

// read is one way to read the keys. do reads them once in this way, and returns the number of keys. old is
// an old revision.
type read struct {
	name string
	do   func(ctx context.Context, client *clientv3.Client, old int64) (keys int, err error)
}

var reads = []read{
	{"all in one request", func(ctx context.Context, client *clientv3.Client, _ int64) (int, error) {
		return get(ctx, client)
	}},
	{"all, in pages of 10,000", readPages},
	{"all, streamed", readStream},
	{"all, at an old revision", func(ctx context.Context, client *clientv3.Client, old int64) (int, error) {
		return get(ctx, client, clientv3.WithRev(old))
	}},
	{"keys only", func(ctx context.Context, client *clientv3.Client, _ int64) (int, error) {
		return get(ctx, client, clientv3.WithKeysOnly())
	}},
	{"count", func(ctx context.Context, client *clientv3.Client, _ int64) (int, error) {
		answer, err := client.Get(ctx, rangePrefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		return int(answer.Count), nil
	}},
	{"first 100", func(ctx context.Context, client *clientv3.Client, _ int64) (int, error) {
		return get(ctx, client, clientv3.WithLimit(100))
	}},
}

func get(ctx context.Context, client *clientv3.Client, options ...clientv3.OpOption) (int, error) {
	answer, err := client.Get(ctx, rangePrefix, append(options, clientv3.WithPrefix())...)
	if err != nil {
		return 0, err
	}
	return len(answer.Kvs), nil
}

func readPages(ctx context.Context, client *clientv3.Client, _ int64) (keys int, err error) {
	from, end, revision := rangePrefix, clientv3.GetPrefixRangeEnd(rangePrefix), int64(0)
	for {
		answer, err := client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
		if err != nil {
			return keys, err
		}
		keys += len(answer.Kvs)
		if !answer.More {
			return keys, nil
		}
		revision = answer.Header.Revision
		from = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
}

func readStream(ctx context.Context, client *clientv3.Client, _ int64) (keys int, err error) {
	stream, err := client.GetStream(ctx, rangePrefix, clientv3.WithPrefix())
	if err != nil {
		return 0, err
	}
	for part := range stream {
		if err := part.Err(); err != nil {
			return keys, err
		}
		keys += len(part.Kvs)
	}
	return keys, ctx.Err()
}

// Run implements experiment.Options.
func (o *rangeOptions) Run(ctx context.Context, run *experiment.Run) error {
	table := run.Result.Table("Sequential reads", "store", "read", "keys", "reads", "p50, ms", "p99, ms", "keys/s at p50", "server's CPU per read, ms")
	return o.each(ctx, run, func(ctx context.Context, b *bench, c contender) (figures []experiment.Figure, err error) {
		err = b.withNewServer(ctx, c, func(server *storeserver.Server) error {
			client, old, err := o.fill(ctx, b, server)
			if err != nil {
				return err
			}
			defer client.Close()
			for _, r := range reads {
				m, err := o.measure(ctx, b, server, client, r, old)
				if err != nil {
					return fmt.Errorf("%s: %w", r.name, err)
				}
				table.Add(c.name, r.name, m.keys, m.latencies.Count(), m.latencies.Millis(50), m.latencies.Millis(99),
					float64(m.keys)/m.latencies.Seconds(50), m.cpuMillis)
				figures = append(figures,
					experiment.Figure{Name: "p50, " + r.name, Unit: "ms", Value: m.latencies.Millis(50)},
					experiment.Figure{Name: "server's CPU, " + r.name, Unit: "µs", Value: 1000 * m.cpuMillis})
			}
			return nil
		})
		return figures, err
	})
}

// fill writes every key twice. It returns a client, and the revision after the keys were written once.
func (o *rangeOptions) fill(ctx context.Context, b *bench, server *storeserver.Server) (client *clientv3.Client, old int64, err error) {
	if client, err = clientv3.New(clientv3.Config{Endpoints: []string{server.URL}, Logger: zap.NewNop(), MaxCallRecvMsgSize: 1 << 31}); err != nil {
		return nil, 0, err
	}
	keys := fmt.Sprintf("%s=%dx%d", rangePrefix, o.Keys.N, rangeBytes)
	for i := range 2 {
		if _, _, err = b.lab.Run(ctx, server, "fill", "--clients", "64", "--connections", "4", "--key-size", "40", "--keys", keys); err != nil {
			break
		}
		if i == 0 {
			var answer *clientv3.GetResponse
			if answer, err = client.Get(ctx, rangePrefix, clientv3.WithCountOnly()); err != nil {
				break
			}
			old = answer.Header.Revision
		}
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("filling the store: %w", err), client.Close())
	}
	return client, old, nil
}

// readMeasured is the result of measuring one way to read.
type readMeasured struct {
	keys      int
	latencies *experiment.Latencies
	cpuMillis float64
}

// measure measures one way to read for --duration, with at least three reads.
func (o *rangeOptions) measure(ctx context.Context, b *bench, server *storeserver.Server, client *clientv3.Client, r read, old int64) (m readMeasured, err error) {
	const minReads = 3
	task := b.Display.Task(server.Store, 0)
	task.Say(r.name)
	m.latencies = experiment.NewLatencies()
	before, err := server.CPU()
	if err != nil {
		return m, err
	}
	for begun := time.Now(); m.latencies.Count() < minReads || time.Since(begun) < o.Duration.D; {
		start := time.Now()
		m.keys, err = r.do(ctx, client, old)
		if err != nil && ctx.Err() == nil {
			b.Result.Errors.Add("range", err)
		}
		if err != nil {
			task.Interrupt()
			return m, err
		}
		b.Result.Errors.Add("", nil) // counts a read without error
		m.latencies.Record(time.Since(start))
	}
	after, err := server.CPU()
	m.cpuMillis = (after - before).Seconds() * 1000 / float64(m.latencies.Count())
	task.Done(fmt.Sprintf("%s: p50 %s ms", r.name, number.Text(m.latencies.Millis(50))))
	return m, err
}
