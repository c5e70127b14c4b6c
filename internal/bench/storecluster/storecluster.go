// Package storecluster contains the experiment `k1m bench store-cluster`: stores of three members, mem_etcd beside etcd, on
// the loopback interface.
//
// Each figure has a file: puts.go the CPU of a put, failover.go the time without writes after a leader was killed or
// stopped, rejoin.go the return of a member that has lost its data, and leases.go the CPU of a Lease update with one
// member. limits.go has what the figures must meet.
package storecluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Experiments returns the experiments of this package.
func Experiments() []experiment.Experiment { return []experiment.Experiment{storeCluster} }

var storeCluster = experiment.Experiment{
	Name:  "store-cluster",
	Short: "Measure stores of three members: CPU of a put, and writes after the loss of a leader",
	Long: `Measure a mem_etcd of three members that keep nothing on a disk (--replication-log memory) beside an
etcd of three members, on the loopback interface. Data of etcd is in --disk, by default on tmpfs, where a
sync costs little. Both have etcd's default timings (heartbeat 100 ms, election timeout 1 s). The members
use half of the cores, and the clients the other half.

Parts (--parts):
  puts       the CPU of all members for a put of 1 KiB, with as many puts as the members can do
  kill       kill -9 of the leader, --kills times: the longest time without an acknowledged write
  terminate  SIGTERM of the leader, --stops times: the same
  rejoin     a follower is killed, and started again without its data, in a store of --rejoin-mib with
             --rejoin-rate puts a second: the time until it is a voter and serves, and the longest time
             without an acknowledged write. etcd's member is removed and added as an operator does it, in
             a store of a sixteenth of the size, with a tenth of the rate.
  leases     the CPU of one member for a Lease update, at 200, 1,000 and 5,000 updates a second

Each objective that mem_etcd must meet is a verdict. The run fails if one is missed, or was not measured,
with a scale of medium or more. What this mem_etcd cannot do is not measured; the verdict says why.`,
	Example: `  k1m bench store-cluster
  k1m bench store-cluster --parts kill,terminate --kills 100
  k1m bench store-cluster --stores etcd --scale small`,
	New: func() experiment.Options { return defaultOptions() },
}

// Parts of the experiment.
const (
	partPuts      = "puts"
	partKill      = "kill"
	partTerminate = "terminate"
	partRejoin    = "rejoin"
	partLeases    = "leases"
)

var (
	partNames  = []string{partPuts, partKill, partTerminate, partRejoin, partLeases}
	storeNames = []string{storemembers.MemEtcd, storemembers.Etcd}
)

// options are the options of the experiment.
type options struct {
	Parts, Stores         []string
	Members, Clients      int
	Duration              experiment.Span
	Kills, Stops          experiment.Count
	RejoinMiB, RejoinRate experiment.Count
	Disk                  string
	Timeout               time.Duration
}

const (
	// tmpfs is the default directory for data. It is in memory, so that no disk limits etcd.
	tmpfs      = "/dev/shm"
	maxMembers = 7
)

func defaultOptions() *options {
	return &options{
		Parts: partNames, Stores: storeNames, Members: 3, Clients: 256, Duration: experiment.SpanByScale(10*time.Second, 2*time.Second),
		Kills: experiment.ByScale(30, 2), Stops: experiment.ByScale(30, 2),
		RejoinMiB: experiment.ByScale(4096, 64), RejoinRate: experiment.ByScale(20_000, 1000), Disk: tmpfs, Timeout: 3 * time.Minute,
	}
}

// AddFlags binds the options to flags.
func (o *options) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Parts, "parts", o.Parts, "parts to run: "+strings.Join(partNames, ", "))
	fs.StringSliceVar(&o.Stores, "stores", o.Stores, "stores to measure: "+strings.Join(storeNames, ", "))
	fs.IntVar(&o.Members, "members", o.Members, "number of members")
	fs.IntVar(&o.Clients, "clients", o.Clients, "number of clients of the part puts, each with one put in flight")
	fs.Var(&o.Duration, "duration", o.Duration.Usage("duration of each measurement of CPU"))
	fs.Var(&o.Kills, "kills", o.Kills.Usage("how many times the leader is killed"))
	fs.Var(&o.Stops, "stops", o.Stops.Usage("how many times the leader is stopped with SIGTERM"))
	fs.Var(&o.RejoinMiB, "rejoin-mib", o.RejoinMiB.Usage("size of the store that a member rejoins, in MiB"))
	fs.Var(&o.RejoinRate, "rejoin-rate", o.RejoinRate.Usage("puts a second while a member rejoins"))
	fs.StringVar(&o.Disk, "disk", o.Disk, "directory for the data of etcd; the default is on tmpfs, so that no disk limits it")
	fs.DurationVar(&o.Timeout, "timeout", o.Timeout, "time limit for the start of a store, and for a member until it serves again, beyond what the objective allows")
}

// Validate returns the first invalid option as a usage error.
func (o *options) Validate() error {
	for _, list := range []struct {
		flag          string
		values, known []string
	}{{"parts", o.Parts, partNames}, {"stores", o.Stores, storeNames}} {
		if len(list.values) == 0 {
			return usage.Errorf("--%s: the list is empty; choose one of %s", list.flag, strings.Join(list.known, ", "))
		}
		for _, value := range list.values {
			if !slices.Contains(list.known, value) {
				return usage.Errorf("--%s %q: choose one of %s", list.flag, value, strings.Join(list.known, ", "))
			}
		}
	}
	switch {
	case o.Members < 3 || o.Members > maxMembers || o.Members%2 == 0:
		return usage.Errorf("--members %d: choose 3, 5 or 7", o.Members)
	case o.Clients < 1:
		return usage.Errorf("--clients %d: choose 1 or more", o.Clients)
	case o.Timeout <= 0:
		return usage.Errorf("--timeout %s: must be more than 0", o.Timeout)
	}
	return nil
}

// bench is a run of the experiment.
type bench struct {
	*experiment.Run
	options *options
	lab     storeserver.Lab
}

// Run implements experiment.Options.
func (o *options) Run(ctx context.Context, run *experiment.Run) error {
	program, err := component.FindBinary("etcd-bench")
	if err != nil {
		return err
	}
	b := &bench{Run: run, options: o, lab: storeserver.Lab{Bin: filepath.Dir(program)}}
	b.lab.ServerCores, b.lab.ClientCores = storeserver.SplitCores(run.Result.Machine.Cores)
	run.Result.Note("The members run on cores %s, the load generator on %s. Data of etcd is on %s; mem_etcd's members have no disk.",
		b.lab.ServerCores, b.lab.ClientCores, machine.FileSystem(o.Disk))
	parts := map[string]func(context.Context) error{
		partPuts: b.puts, partKill: b.kills, partTerminate: b.stops, partRejoin: b.rejoins, partLeases: b.leases,
	}
	for _, name := range partNames {
		if !slices.Contains(o.Parts, name) {
			continue
		}
		if err := parts[name](ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// each calls measure for each store, with the members of a new, empty store. It displays what is measured, and the text that
// measure returns.
func (b *bench) each(ctx context.Context, what string, measure func(context.Context, string, *storemembers.Cluster) (string, error)) error {
	for _, store := range b.options.Stores {
		task := b.Display.Task(store, 0)
		task.Say(what)
		text := ""
		err := b.with(ctx, store, func(ctx context.Context, cluster *storemembers.Cluster) (err error) {
			text, err = measure(ctx, store, cluster)
			return err
		})
		if err != nil {
			progress.Fail(ctx, task, what)
			return fmt.Errorf("%s: %w", store, err)
		}
		task.Done(text)
	}
	return nil
}

// with starts the members of a new store, calls use, and removes the store.
func (b *bench) with(ctx context.Context, store string, use func(context.Context, *storemembers.Cluster) error) error {
	dir, err := os.MkdirTemp(b.options.Disk, "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	options := storemembers.Options{
		Program: b.lab.Program(store), Dir: dir, Members: b.options.Members, ReplicationLog: storemembers.LogMemory,
		Prefix: []string{"taskset", "-c", b.lab.ServerCores},
	}
	if store == storemembers.Etcd {
		options.Args = []string{"--quota-backend-bytes", "8589934592"}
	}
	startCtx, cancel := context.WithTimeout(ctx, b.options.Timeout)
	defer cancel()
	cluster, err := storemembers.Start(startCtx, options)
	if err != nil {
		return err
	}
	defer cluster.Close()
	return use(ctx, cluster)
}

// compare appends the ratios of a figure of mem_etcd and etcd.
func (b *bench) compare(figure experiment.Figure, values map[string]float64) {
	ours, peers := figure, figure
	ours.Value, peers.Value = values[storemembers.MemEtcd], values[storemembers.Etcd]
	b.Result.Compare(storemembers.MemEtcd, storemembers.Etcd, []experiment.Figure{ours}, []experiment.Figure{peers})
}
