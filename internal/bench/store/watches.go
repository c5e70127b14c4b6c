package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

var storeWatch = experiment.Experiment{
	Name:  "store-watch",
	Short: "Put keys with an increasing number of watchers, and measure event delivery",
	Long: `Put keys at --rate while 1, 4, 16, … up to --watchers watchers watch the whole key space. Each
measurement uses a new store. A probe measures the latency: it puts a key of its own every 20 ms
during the load, and measures the time from the put until its own watch receives the event. The
result shows whether every watcher received every event. The wait for missing events ends when no
watcher has received an event for 10 s.`,
	Example: `  k1m bench store-watch
  k1m bench store-watch --rate 5000 --watchers 1000`,
	New: func() experiment.Options {
		return &watchOptions{stores: defaultStores("mem_etcd-buffered", "etcd"), Watchers: experiment.ByScale(256, 16), Rate: 1000}
	},
}

type watchOptions struct {
	stores
	Watchers experiment.Count
	Rate     int
}

// AddFlags binds the options to flags.
func (o *watchOptions) AddFlags(fs *pflag.FlagSet) {
	o.stores.AddFlags(fs)
	fs.Var(&o.Watchers, "watchers", o.Watchers.Usage("largest number of watchers"))
	fs.IntVar(&o.Rate, "rate", o.Rate, "puts per second; 0 means as fast as possible")
}

// Validate returns the first invalid option as a usage error.
func (o *watchOptions) Validate() error {
	if o.Rate < 0 {
		return usage.Errorf("--rate %d: choose 0 or more", o.Rate)
	}
	return o.stores.Validate()
}

// Run implements experiment.Options.
func (o *watchOptions) Run(ctx context.Context, run *experiment.Run) error {
	table := run.Result.Table("Events by number of watchers", "store", "watchers", "puts, /s", "events, /s", "probes", "p50, ms", "p99, ms", "p99.9, ms",
		"server's CPU per event, µs", "all delivered")
	return o.each(ctx, run, func(ctx context.Context, b *bench, c contender) ([]experiment.Figure, error) {
		var last storeserver.Report
		var lastLatencies *experiment.Latencies
		for _, watchers := range powersOfFour(1, o.Watchers.N) {
			r, latencies, err := o.step(ctx, b, c, watchers)
			if err != nil {
				return nil, err
			}
			w := r.Watch
			table.Add(c.name, watchers, r.OpsPerSecond, w.EventsPerSecond,
				latencies.Count(), latencies.Millis(50), latencies.Millis(99), latencies.Millis(99.9),
				cpuPerEvent(r), w.Complete)
			run.Result.Line(experiment.Series{Plot: "events delivered by watchers", Name: c.name, X: "watchers", Unit: "events/s", LogX: true, LogY: true}, float64(watchers), w.EventsPerSecond)
			run.Result.Line(experiment.Series{Plot: "put-to-event latency by watchers, p99", Name: c.name, X: "watchers", Unit: "ms", LogX: true, LogY: true}, float64(watchers), latencies.Millis(99))
			last, lastLatencies = r, latencies
		}
		return []experiment.Figure{
			{Name: "events, most watchers", Unit: "/s", Value: last.Watch.EventsPerSecond, MoreIsBetter: true},
			{Name: "put-to-event p99, most watchers", Unit: "ms", Value: lastLatencies.Millis(99)},
			{Name: "server's CPU per event, most watchers", Unit: "µs", Value: cpuPerEvent(last)},
		}, nil
	})
}

// step measures one number of watchers on a new store. It returns the report of etcd-bench, and the
// latencies that a concurrent probe measured.
func (o *watchOptions) step(ctx context.Context, b *bench, c contender, watchers int) (storeserver.Report, *experiment.Latencies, error) {
	latencies := experiment.NewLatencies()
	report, err := b.measure(ctx, c, fmt.Sprintf("%d watchers", watchers), func() (report storeserver.Report, err error) {
		err = b.withNewServer(ctx, c, func(server *storeserver.Server) error {
			probing, stop := context.WithCancel(ctx)
			defer stop()
			probed := make(chan error, 1)
			go func() { probed <- probe(probing, server.URL, latencies) }()
			report, _, err = b.lab.Run(ctx, server, "watch", "--watchers", strconv.Itoa(watchers),
				"--watch-connections", connectionCount(watchers*10), "--clients", "10", "--rate", strconv.Itoa(o.Rate),
				"--duration", o.Duration.D.String(), "--key-space-size", "1000", "--val-size", "1024")
			stop()
			return errors.Join(err, <-probed)
		})
		return report, err
	})
	return report, latencies, err
}

// probe repeatedly puts a key and waits for the watch event of this key, until ctx ends. It records the
// time of each put from the request until the event.
func probe(ctx context.Context, url string, latencies *experiment.Latencies) error {
	const key, interval = "probe", 20 * time.Millisecond
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	events := client.Watch(ctx, key, clientv3.WithCreatedNotify())
	<-events
	for {
		begun := time.Now()
		if _, err := client.Put(ctx, key, ""); err != nil && ctx.Err() == nil {
			return fmt.Errorf("putting the probe's key: %w", err)
		}
		if _, ok := <-events; !ok || ctx.Err() != nil {
			return nil
		}
		latencies.Record(time.Since(begun))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// cpuPerEvent returns the CPU time of the server per event, including the put that caused it.
func cpuPerEvent(r storeserver.Report) float64 {
	return r.ServerCPUMicrosPerOp * float64(r.Ops) / float64(max(r.Watch.Events, 1))
}
