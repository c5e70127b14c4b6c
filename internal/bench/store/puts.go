package store

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

var storePut = experiment.Experiment{
	Name:  "store-put",
	Short: "Put random keys with an increasing number of clients",
	Long: `Put random keys of 48 bytes with values of 1 KiB from 1, 4, 16, … up to --clients clients. Each
client has one put in flight. Each measurement uses a new store. The server uses half of the
cores, and the clients the other half. etcd syncs every put to disk, as mem_etcd does in the mode
fsync. The default directory is on tmpfs, where a sync costs little.`,
	Example: `  k1m bench store-put
  k1m bench store-put --clients 16384 --disk target --stores mem_etcd-fsync,etcd`,
	New: func() experiment.Options {
		return &clientsOptions{
			stores: defaultStores(contenderNames()...), Clients: experiment.ByScale(4096, 64), Keys: 10_000_000, noun: "puts",
			args: func(o *clientsOptions) []string {
				return []string{"put", "--key-size", "48", "--val-size", "1024", "--key-space-size", strconv.Itoa(o.Keys)}
			},
		}
	},
}

var leaseFlood = experiment.Experiment{
	Name:  "lease-flood",
	Short: "Create Kubernetes Leases and update them continuously with an increasing number of clients",
	Long: `Create Leases in the encoding of Kubernetes, and update them with the transactions of an API
server, from 1, 4, 16, … up to --clients clients. Each client updates its Leases one after the
other. Each measurement uses a new store. The server uses half of the cores, and the clients the
other half.`,
	Example: `  k1m bench lease-flood
  k1m bench lease-flood --clients 16384 --leases 100`,
	New: func() experiment.Options {
		return &clientsOptions{
			stores: defaultStores("mem_etcd-none", "mem_etcd-buffered", "etcd"), Clients: experiment.ByScale(4096, 64), Leases: 10, noun: "updates",
			args: func(o *clientsOptions) []string { return []string{"lease-flood", "--leases", strconv.Itoa(o.Leases)} },
		}
	},
}

// clientsOptions are the options of an experiment that increases the number of clients.
type clientsOptions struct {
	stores
	Clients experiment.Count
	// Keys is an option of store-put, and Leases one of lease-flood; it is 0 in the other experiment.
	Keys   int
	Leases int

	noun string // what an operation is, in the plural
	// args returns the arguments of etcd-bench that select the load.
	args func(*clientsOptions) []string
}

// AddFlags binds the options to flags.
func (o *clientsOptions) AddFlags(fs *pflag.FlagSet) {
	o.stores.AddFlags(fs)
	fs.Var(&o.Clients, "clients", o.Clients.Usage("largest number of clients"))
	if o.Keys > 0 {
		fs.IntVar(&o.Keys, "keys", o.Keys, "number of different keys")
	} else {
		fs.IntVar(&o.Leases, "leases", o.Leases, "Leases per client")
	}
}

// Validate returns the first invalid option as a usage error.
func (o *clientsOptions) Validate() error {
	switch {
	case o.Clients.N > maxClients:
		return usage.Errorf("--clients %d: choose 1 to %d", o.Clients.N, maxClients)
	case o.Keys < 0 || o.Leases < 0 || o.Keys+o.Leases < 1:
		return usage.Errorf("--keys or --leases: choose 1 or more")
	}
	return o.stores.Validate()
}

// Run implements experiment.Options.
func (o *clientsOptions) Run(ctx context.Context, run *experiment.Run) error {
	table := run.Result.Table("Throughput and latency by clients", "store", "clients", o.noun+", /s",
		"p50, ms", "p90, ms", "p99, ms", "p99.9, ms", "server's CPU per operation, µs", "client's CPU per operation, µs", "errors")
	return o.each(ctx, run, func(ctx context.Context, b *bench, c contender) ([]experiment.Figure, error) {
		var last storeserver.Report
		for _, clients := range powersOfFour(1, o.Clients.N) {
			args := append(o.args(o), "--clients", strconv.Itoa(clients), "--connections", connectionCount(clients), "--duration", o.Duration.D.String())
			r, err := b.runOnNewServer(ctx, c, fmt.Sprintf("%d clients", clients), args...)
			if err != nil {
				return nil, err
			}
			l := r.LatencyMicros
			table.Add(c.name, clients, r.OpsPerSecond, ms(l.P50), ms(l.P90), ms(l.P99), ms(l.P999), r.ServerCPUMicrosPerOp, r.ClientCPUMicrosPerOp, r.Errors)
			run.Result.Line(experiment.Series{Plot: "throughput by clients", Name: c.name, X: "clients", Unit: o.noun + "/s", LogX: true, LogY: true}, float64(clients), r.OpsPerSecond)
			run.Result.Line(experiment.Series{Plot: "latency by clients, p50", Name: c.name, X: "clients", Unit: "ms", LogX: true, LogY: true}, float64(clients), ms(l.P50))
			run.Result.Line(experiment.Series{Plot: "latency by clients, p99", Name: c.name, X: "clients", Unit: "ms", LogX: true, LogY: true}, float64(clients), ms(l.P99))
			last = r
		}
		return []experiment.Figure{
			{Name: o.noun + ", most clients", Unit: "/s", Value: last.OpsPerSecond, MoreIsBetter: true},
			{Name: "p99, most clients", Unit: "ms", Value: ms(last.LatencyMicros.P99)},
			{Name: "server's CPU per operation, most clients", Unit: "µs", Value: last.ServerCPUMicrosPerOp},
		}, nil
	})
}

// ms converts microseconds to milliseconds.
func ms(micros int64) float64 { return float64(micros) / 1000 }
