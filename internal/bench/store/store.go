// Package store contains the experiments that load a store without a cluster. Each run measures mem_etcd
// in its WAL modes, and etcd.
//
// store-put and lease-flood increase the number of clients (puts.go), store-range compares ways to read
// all keys (ranges.go), and store-watch increases the number of watchers (watches.go). Package
// storeserver runs servers and load generators on separate cores. The program test/bench also compares
// mem_etcd with etcd, and requires certain limits.
package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Experiments returns the experiments of this package.
func Experiments() []experiment.Experiment {
	return []experiment.Experiment{storePut, leaseFlood, storeWatch, storeRange}
}

const (
	// tmpfs is the default directory for data. It is in memory, so that no disk limits the store.
	tmpfs = "/dev/shm"

	maxClients = 100_000
)

// contender is a store in one of its modes.
type contender struct {
	name, store string
	args        []string
}

// contenders are the stores that --stores accepts.
var contenders = []contender{
	{"mem_etcd-none", storeserver.MemEtcd, []string{"--wal-mode", "none"}},
	{"mem_etcd-buffered", storeserver.MemEtcd, []string{"--wal-mode", "buffered"}},
	{"mem_etcd-fsync", storeserver.MemEtcd, []string{"--wal-mode", "fsync"}},
	{"etcd", storeserver.Etcd, nil},
}

// peer is the contender with which each mode of mem_etcd is compared. etcd syncs each write to disk, as
// the mode fsync does. The other modes show the cost of durability.
const peer = "etcd"

// stores are the options that all experiments of this package share.
type stores struct {
	Names    []string
	Duration experiment.Span
	Disk     string
}

func defaultStores(names ...string) stores {
	return stores{Names: names, Duration: experiment.SpanByScale(5*time.Second, time.Second), Disk: tmpfs}
}

// AddFlags binds the options to flags.
func (s *stores) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&s.Names, "stores", s.Names,
		"stores to measure, in this order: "+strings.Join(contenderNames(), ", "))
	fs.Var(&s.Duration, "duration", s.Duration.Usage("duration of each measurement"))
	fs.StringVar(&s.Disk, "disk", s.Disk,
		"directory for the data of the stores; the default is on tmpfs, so that no disk limits a store")
}

// Validate returns the first invalid option as a usage error.
func (s *stores) Validate() error {
	for i, name := range s.Names {
		if !slices.Contains(contenderNames(), name) {
			return usage.Errorf("--stores %q: no such store; choose one of %s",
				name, strings.Join(contenderNames(), ", "))
		}
		if slices.Contains(s.Names[:i], name) {
			return usage.Errorf("--stores: %s is given twice; list each once", name)
		}
	}
	if len(s.Names) == 0 {
		return usage.Errorf("--stores: the list is empty; choose one of %s", strings.Join(contenderNames(), ", "))
	}
	return nil
}

func contenderNames() (names []string) {
	for _, c := range contenders {
		names = append(names, c.name)
	}
	return names
}

// bench is a run of an experiment, with what it needs to start servers and load generators.
type bench struct {
	*experiment.Run
	lab  storeserver.Lab
	disk string
}

// each calls measure for every selected store, and compares the figures of mem_etcd with those of etcd.
func (s *stores) each(ctx context.Context, run *experiment.Run, measure func(context.Context, *bench, contender) ([]experiment.Figure, error)) error {
	program, err := component.FindBinary("etcd-bench")
	if err != nil {
		return err
	}
	b := &bench{Run: run, lab: storeserver.Lab{Bin: filepath.Dir(program)}, disk: s.Disk}
	cores := run.Result.Machine.Cores
	b.lab.ServerCores, b.lab.ClientCores = storeserver.SplitCores(cores)
	if cores == 1 {
		run.Result.Note("The server and the clients share the only core of the machine.")
	} else {
		run.Result.Note("The server runs on cores %s, the clients on %s. The data is on %s.", b.lab.ServerCores, b.lab.ClientCores, machine.FileSystem(s.Disk))
	}
	figures := map[string][]experiment.Figure{}
	for _, c := range contenders {
		if !slices.Contains(s.Names, c.name) {
			continue
		}
		if figures[c.name], err = measure(ctx, b, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	for _, name := range s.Names {
		if name != peer && len(figures[peer]) > 0 {
			run.Result.Compare(name, peer, figures[name], figures[peer])
		}
	}
	return nil
}

// runOnNewServer runs etcd-bench with these arguments on a new, empty server, and shows the progress.
func (b *bench) runOnNewServer(ctx context.Context, c contender, label string, args ...string) (storeserver.Report, error) {
	return b.measure(ctx, c, label, func() (report storeserver.Report, err error) {
		err = b.withNewServer(ctx, c, func(server *storeserver.Server) error {
			report, _, err = b.lab.Run(ctx, server, args...)
			return err
		})
		return report, err
	})
}

// measure runs one step and shows its progress. If operations of the step failed, it counts them in the
// result and returns no error, so that the following steps are still measured.
func (b *bench) measure(ctx context.Context, c contender, label string, do func() (storeserver.Report, error)) (storeserver.Report, error) {
	task := b.Display.Task(c.name, 0)
	task.Say(label)
	report, err := do()
	if ctx.Err() != nil {
		task.Interrupt()
		return report, ctx.Err()
	}
	if err != nil && !errors.Is(err, storeserver.ErrOperations) {
		task.Fail(label)
		return report, err
	}
	b.Result.Errors.AddMany(report.Ops+report.Errors, report.ErrorsByKind)
	text := fmt.Sprintf("%s: %s/s", label, number.Text(report.OpsPerSecond))
	if report.Errors > 0 {
		text += fmt.Sprintf(", %d errors", report.Errors)
	}
	task.Done(text)
	return report, nil
}

// withNewServer starts a new, empty server, calls use, and stops the server and removes its data.
func (b *bench) withNewServer(ctx context.Context, c contender, use func(*storeserver.Server) error) error {
	server, err := b.lab.Fresh(ctx, c.store, b.disk, c.args...)
	if err != nil {
		return err
	}
	defer server.Discard()
	return use(server)
}

// powersOfFour returns first × 4ⁿ up to half of last, and last.
func powersOfFour(first, last int) (all []int) {
	for n := first; n <= last/2; n *= 4 {
		all = append(all, n)
	}
	return append(all, last)
}

// connectionCount returns the number of connections for a number of clients: one for each 100 clients, at
// least 1 and at most 64.
func connectionCount(clients int) string { return strconv.Itoa(max(1, min(clients/100, 64))) }
