package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/profile"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// ErrSettingsDiffer means that a setting cannot be changed while the cluster is running.
var ErrSettingsDiffer = errors.New("the cluster is running with other settings")

// ErrInterrupted means that the context of [Up] was cancelled before the cluster was complete.
var ErrInterrupted = errors.New("interrupted before the cluster was complete")

// UpOptions are the options of [Up].
type UpOptions struct {
	Dir   clusterdir.Dir
	Flags *pflag.FlagSet // flags that the user set override the saved settings
	// Timeout limits the time until the control plane is ready, and the time during which no further
	// node becomes Ready.
	Timeout time.Duration
	MinFree resource.Quantity // minimum free disk space, in bytes
	// SeedStore means that the nodes are written directly into the store, which must be empty.
	SeedStore bool
	// AnnounceProfile, if not nil, is called before a cluster is started with a profile.
	AnnounceProfile func(clusterdir.AppliedProfile)
	Display         progress.Display
}

// UpResult is the result of [Up].
type UpResult struct {
	AlreadyRan bool // the cluster was running before Up was called
	Config     clusterdir.Config
	Nodes      int // number of all nodes of the cluster, which can be more than in the settings
	// OtherProfile is the profile for this number of nodes if the running cluster has another one; otherwise empty.
	OtherProfile string
}

// Up starts the cluster, if it is not running, and creates missing nodes. If Up starts the cluster but
// fails, or its process exits, before the cluster is complete, then all processes of the cluster are
// stopped. Data that existed before is kept.
func Up(ctx context.Context, o UpOptions) (result UpResult, err error) {
	// Check before the lock is taken, because taking the lock creates a file that is never removed.
	checked, err := resolveConfig(o.Dir, o.Flags)
	if err == nil && o.SeedStore {
		err = validateSeed(checked.Settings)
	}
	if err != nil {
		return UpResult{}, err
	}
	lock, err := Lock(o.Dir)
	if err != nil {
		return UpResult{}, err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()

	config, err := resolveConfig(o.Dir, o.Flags)
	if err != nil {
		return UpResult{}, err
	}
	supervisorLock, err := o.Dir.LockSupervisor()
	if errors.Is(err, clusterdir.ErrBusy) && supervisorExiting(o.Dir) {
		if err = o.Dir.AwaitSupervisorExit(supervisorStopTimeout); err == nil {
			supervisorLock, err = o.Dir.LockSupervisor()
		}
	}
	switch {
	case err == nil:
		return start(ctx, o, config, supervisorLock)
	case errors.Is(err, clusterdir.ErrBusy) && o.SeedStore:
		return UpResult{}, notSeedable(config, errRunning, removeCluster(config))
	case errors.Is(err, clusterdir.ErrBusy):
		return updateRunning(ctx, o, config)
	}
	return UpResult{}, err
}

// resolveConfig returns the saved configuration, or the default configuration of a new cluster. The flags
// override its settings, and a profile sets those that the user has not set.
func resolveConfig(dir clusterdir.Dir, flags *pflag.FlagSet) (clusterdir.Config, error) {
	config, err := clusterdir.Load(dir)
	if errors.Is(err, clusterdir.ErrUnknown) {
		config, err = clusterdir.NewConfig(dir.Name(), clusterdir.DefaultSettings()), nil
	}
	if err != nil {
		return clusterdir.Config{}, err
	}
	if config.Settings, err = clusterdir.Overlay(profile.Remove(config.Settings), flags); err != nil {
		return clusterdir.Config{}, err
	}
	if config.Settings, err = profile.Apply(config.Settings, flags, thisMachine(config.Settings)); err != nil {
		return clusterdir.Config{}, err
	}
	config.Settings.Complete()
	return config, config.Settings.Validate()
}

// supervisorExiting reports whether the supervisor that holds the lock is about to exit: it is stopping
// the cluster, or it has written no state file because its `k1m up` was killed.
func supervisorExiting(dir clusterdir.Dir) bool {
	state, err := supervisor.ReadState(dir)
	return err != nil || state.Stopping || !state.Supervisor.Alive()
}

// start starts a cluster that is not running.
func start(ctx context.Context, o UpOptions, config clusterdir.Config, supervisorLock *clusterdir.Lock) (result UpResult, err error) {
	release := func() { err = errors.Join(err, supervisorLock.Release()) }
	isNew := !directoryExists(o.Dir)
	o = useProfile(o, config.Settings, isNew)
	components, config, err := prepare(ctx, o, config)
	if err == nil && o.SeedStore {
		err = seedNodes(ctx, o, config, isNew)
	}
	if err != nil {
		release()
		if isNew {
			err = errors.Join(err, o.Dir.Remove())
		}
		return UpResult{}, err
	}
	parentPipe, err := launch(o.Dir, supervisorLock)
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
			err = fmt.Errorf("%w; all of its processes were stopped; to continue, run `k1m up --name %s`", ErrInterrupted, o.Dir.Name())
		}
		return UpResult{}, errors.Join(err, parentPipe.Close(), o.Dir.AwaitSupervisorExit(supervisorStopTimeout))
	}
	return UpResult{Config: config, Nodes: nodes}, supervisor.Detach(parentPipe)
}

// updateRunning waits until a running cluster is ready and creates missing nodes. It returns an error that
// wraps ErrSettingsDiffer if a setting other than nodes and zones has changed.
func updateRunning(ctx context.Context, o UpOptions, config clusterdir.Config) (UpResult, error) {
	running, err := clusterdir.Load(o.Dir)
	if err != nil {
		return UpResult{}, err
	}
	// Nodes and zones are the only settings that can change while the cluster is running. It keeps its profile, also
	// if another one is for the new number of nodes.
	compared := profile.Remove(config.Settings)
	compared.Nodes, compared.Zones = running.Settings.Nodes, running.Settings.Zones
	if changed := changedFlags(compared, profile.Remove(running.Settings)); len(changed) > 0 {
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
	wanted := config.Settings
	config.Settings, config.Ports = running.Settings, running.Ports
	config.Settings.Nodes, config.Settings.Zones = wanted.Nodes, wanted.Zones
	saved := config
	// Up never deletes nodes, so the saved number must not decrease.
	saved.Settings.Nodes = max(config.Settings.Nodes, running.Settings.Nodes)
	if err := saved.Save(o.Dir); err != nil {
		return UpResult{}, err
	}
	nodes, err := ensureNodes(ctx, o, config)
	if ctx.Err() != nil {
		err = fmt.Errorf("%w; its processes keep running; to continue, run `k1m up --name %s`", ErrInterrupted, o.Dir.Name())
	}
	result := UpResult{AlreadyRan: true, Config: config, Nodes: nodes}
	if wanted.Applied.Name != running.Settings.Applied.Name {
		result.OtherProfile = wanted.Applied.Name
	}
	return result, err
}

// changedFlags returns a description of each flag of running that differs from the flag of wanted, sorted
// by name.
func changedFlags(wanted, running clusterdir.Settings) []string {
	var names []string
	wantedFlags, runningFlags := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	wanted.AddFlags(wantedFlags)
	running.AddFlags(runningFlags)
	wantedFlags.VisitAll(func(flag *pflag.Flag) {
		if value := runningFlags.Lookup(flag.Name).Value.String(); value != flag.Value.String() {
			names = append(names, fmt.Sprintf("--%s is %s", flag.Name, value))
		}
	})
	slices.Sort(names)
	return names
}
