package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// ErrSettingsDiffer says that a running cluster cannot take a setting.
var ErrSettingsDiffer = errors.New("the cluster runs with other settings")

// ErrInterrupted says that `up` was told to stop before it was done.
var ErrInterrupted = errors.New("interrupted before the cluster was complete")

// ErrNotRunning says that a cluster is not up.
var ErrNotRunning = errors.New("not running")

// RequireRunning reports a cluster that nobody supervises.
func RequireRunning(dir clusterdir.Dir) error {
	if state, err := supervisor.ReadState(dir); err == nil && state.Supervisor.Alive() {
		return nil
	}
	return fmt.Errorf("cluster %q: %w; start it with `k1m up --name %s`", dir.Name(), ErrNotRunning, dir.Name())
}

// UpOptions are what `up` is asked to do.
type UpOptions struct {
	Dir   clusterdir.Dir
	Flags *pflag.FlagSet // those that were given win over what is remembered
	// Timeout bounds how long the control plane may take to get ready, and how
	// long nodes may make no progress.
	Timeout time.Duration
	MinFree resource.Quantity
	Display progress.Display
}

// UpResult is what `up` found and did.
type UpResult struct {
	AlreadyRan bool
	Config     clusterdir.Config
	Nodes      int // all that exist, not only those that were asked for
}

// Up makes the cluster run with at least its number of nodes. When it fails,
// or its process dies, before a cluster that it started is complete, nothing
// keeps running; data that existed stays.
func Up(ctx context.Context, o UpOptions) (result UpResult, err error) {
	// Before the lock, whose file would stay after a mistake.
	if _, err := settle(o.Dir, o.Flags); err != nil {
		return UpResult{}, err
	}
	lock, err := lockOperation(o.Dir)
	if err != nil {
		return UpResult{}, err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()

	config, err := settle(o.Dir, o.Flags)
	if err != nil {
		return UpResult{}, err
	}
	alone, err := o.Dir.LockSupervisor()
	if errors.Is(err, clusterdir.ErrBusy) && leaving(o.Dir) {
		if err = o.Dir.AwaitSupervisorExit(supervisorStopTimeout); err == nil {
			alone, err = o.Dir.LockSupervisor()
		}
	}
	switch {
	case err == nil:
		return start(ctx, o, config, alone)
	case errors.Is(err, clusterdir.ErrBusy):
		return refresh(ctx, o, config)
	}
	return UpResult{}, err
}

// settle decides the settings: the flags given, over those remembered, over
// the defaults.
func settle(dir clusterdir.Dir, flags *pflag.FlagSet) (clusterdir.Config, error) {
	config, err := clusterdir.Load(dir)
	if errors.Is(err, clusterdir.ErrUnknown) {
		config, err = clusterdir.NewConfig(dir.Name(), clusterdir.DefaultSettings()), nil
	}
	if err != nil {
		return clusterdir.Config{}, err
	}
	if config.Settings, err = clusterdir.Overlay(config.Settings, flags); err != nil {
		return clusterdir.Config{}, err
	}
	config.Settings.Complete()
	return config, config.Settings.Validate()
}

// leaving says whether the supervisor that holds the lock is on its way out:
// the `up` that started it was killed, or it never got to write its state.
func leaving(dir clusterdir.Dir) bool {
	state, err := supervisor.ReadState(dir)
	return err != nil || state.Stopping || !state.Supervisor.Alive()
}

// start brings up a cluster that does not run.
func start(ctx context.Context, o UpOptions, config clusterdir.Config, alone *clusterdir.Lock) (result UpResult, err error) {
	release := func() { err = errors.Join(err, alone.Release()) }
	fresh := !hasFolder(o.Dir)
	components, config, err := prepare(ctx, o, config)
	if err != nil {
		release()
		if fresh {
			err = errors.Join(err, o.Dir.Remove())
		}
		return UpResult{}, err
	}
	leash, err := launch(o.Dir, alone)
	release()
	if err != nil {
		return UpResult{}, err
	}
	nodes := 0
	err = awaitReady(ctx, o, components)
	if err == nil {
		nodes, err = ensureNodes(ctx, o, config)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w; nothing keeps running, `k1m up --name %s` continues", ErrInterrupted, o.Dir.Name())
		}
		return UpResult{}, errors.Join(err, leash.Close(), o.Dir.AwaitSupervisorExit(supervisorStopTimeout))
	}
	return UpResult{Config: config, Nodes: nodes}, supervisor.Commit(leash)
}

// refresh makes sure that a cluster that runs has what is asked of it.
func refresh(ctx context.Context, o UpOptions, config clusterdir.Config) (UpResult, error) {
	running, err := clusterdir.Load(o.Dir)
	if err != nil {
		return UpResult{}, err
	}
	// Only these may change while it runs.
	same := config.Settings
	same.Nodes, same.Zones = running.Settings.Nodes, running.Settings.Zones
	if changed := differing(same, running.Settings); len(changed) > 0 {
		return UpResult{}, fmt.Errorf("cluster %q: %w (%s); stop it with `k1m down --keep-data --name %s` first",
			config.Name, ErrSettingsDiffer, strings.Join(changed, ", "), config.Name)
	}
	state, err := supervisor.ReadState(o.Dir)
	if err != nil {
		return UpResult{}, err
	}
	var components []component.Component
	for _, c := range state.Components {
		components = append(components, component.Component{Name: c.Name})
	}
	if err := awaitReady(ctx, o, components); err != nil {
		return UpResult{}, err
	}
	config.Ports = running.Ports
	remembered := config
	// Nodes are never deleted here, so fewer would be forgotten, not gone.
	remembered.Settings.Nodes = max(config.Settings.Nodes, running.Settings.Nodes)
	if err := remembered.Save(o.Dir); err != nil {
		return UpResult{}, err
	}
	nodes, err := ensureNodes(ctx, o, config)
	if ctx.Err() != nil {
		err = fmt.Errorf("%w; what ran goes on running, `k1m up --name %s` continues", ErrInterrupted, o.Dir.Name())
	}
	return UpResult{AlreadyRan: true, Config: config, Nodes: nodes}, err
}

// prepare checks all that can be checked before a process starts, and writes
// the files that the processes will read.
func prepare(ctx context.Context, o UpOptions, config clusterdir.Config) ([]component.Component, clusterdir.Config, error) {
	if state, err := supervisor.ReadState(o.Dir); err == nil {
		if err := sweep(o.Dir, state); err != nil {
			return nil, config, err
		}
	}
	settings, err := absolutePaths(config.Settings)
	if err != nil {
		return nil, config, err
	}
	config.Settings = settings
	err = checkSpace(o.Dir.Root(), o.MinFree)
	if err == nil {
		err = checkSpace(config.DataDir(o.Dir), o.MinFree)
	}
	if err == nil {
		err = checkStoreAddress(ctx, settings)
	}
	if err != nil {
		return nil, config, err
	}
	wanted := map[string]int{}
	if settings.APIServerPort != 0 {
		wanted[clusterdir.APIServerName(0)] = settings.APIServerPort
	}
	if config.Ports, err = config.Ports.Assign(config.Name, settings.PortNames(), wanted); err != nil {
		return nil, config, err
	}
	components, err := component.Plan(config, o.Dir, component.FindBinary)
	if err != nil {
		return nil, config, err
	}
	return components, config, writeFiles(o.Dir, config)
}

func writeFiles(dir clusterdir.Dir, config clusterdir.Config) error {
	if err := dir.Create(); err != nil {
		return explain(err)
	}
	if config.Settings.KeepsData() {
		if err := claimData(dir, config); err != nil {
			return explain(err)
		}
	}
	authority, err := pki.Ensure(dir.PKI(), config.Name, component.ServiceCIDR(), net.ParseIP(clusterdir.Loopback))
	if err != nil {
		return explain(err)
	}
	if err := component.WriteKubeconfigs(config, dir, authority); err != nil {
		return explain(err)
	}
	if err := component.WriteConfigFiles(config, dir); err != nil {
		return explain(err)
	}
	if err := os.Remove(dir.StateFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return explain(config.Save(dir))
}

// claimData makes sure that the data is ours to use; the supervisor then holds
// the lock for as long as it runs.
func claimData(dir clusterdir.Dir, config clusterdir.Config) error {
	dataDir := config.DataDir(dir)
	if err := clusterdir.PrepareData(dataDir, config.Settings.Store); err != nil {
		return err
	}
	lock, err := clusterdir.LockData(dataDir)
	if err != nil {
		return err
	}
	return lock.Release()
}

func differing(a, b clusterdir.Settings) []string {
	var names []string
	fsA, fsB := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	a.AddFlags(fsA)
	b.AddFlags(fsB)
	fsA.VisitAll(func(flag *pflag.Flag) {
		if other := fsB.Lookup(flag.Name).Value.String(); other != flag.Value.String() {
			names = append(names, fmt.Sprintf("--%s is %s", flag.Name, other))
		}
	})
	slices.Sort(names)
	return names
}
