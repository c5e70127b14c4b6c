package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

var controllerStandby = experiment.Experiment{
	Name:  "controller-standby",
	Short: "Stop the leading controller manager, and measure how long its standby takes to act",
	Long: `Fill a cluster that has two controller managers, create ReplicaSets at --rate, and stop the
leading controller manager with SIGTERM, SIGKILL and SIGSTOP. The table shows the time until the
standby holds the lease, and until it has created a pod. The standby is warm
(warm-controller-manager) or cold (kube-controller-manager), in a new cluster each. The run fails if
a warm standby misses its limits: 2 s after SIGTERM, 15 s after SIGKILL or SIGSTOP.`,
	Example: `  k1m bench controller-standby
  k1m bench controller-standby --nodes 200 --pods 1000 --rounds 1`,
	Needs: func() error {
		_, err := component.FindBinary("warm-controller-manager")
		return err
	},
	New: func() experiment.Options {
		o := &standbyOptions{
			clusters: defaultClusters(experiment.ByScale(5000, 20)), Pods: experiment.ByScale(20_000, 50),
			Standby: []string{clusterdir.StandbyWarm, clusterdir.StandbyCold}, Rounds: experiment.ByScale(3, 1), Rate: 20,
		}
		o.Stores = []string{clusterdir.StoreMemEtcd}
		return o
	},
}

// stops are the ways in which the leader is stopped, with the limit of a warm standby in seconds.
var stops = []struct {
	name   string
	signal syscall.Signal
	limit  float64
}{
	{"SIGTERM", syscall.SIGTERM, 2},
	{"SIGKILL", syscall.SIGKILL, 15},
	{"SIGSTOP", syscall.SIGSTOP, 15},
}

type standbyOptions struct {
	clusters
	Pods    experiment.Count
	Standby []string
	Rounds  experiment.Count
	Rate    float64
}

// AddFlags binds the options to flags.
func (o *standbyOptions) AddFlags(fs *pflag.FlagSet) {
	o.clusters.AddFlags(fs)
	fs.Var(&o.Pods, "pods", o.Pods.Usage("number of pods in the cluster"))
	fs.StringSliceVar(&o.Standby, "standby", o.Standby, "standbys to measure, in this order: warm, cold or both")
	fs.Var(&o.Rounds, "rounds", o.Rounds.Usage("how often the leader is stopped in each way"))
	fs.Float64Var(&o.Rate, "rate", o.Rate, "ReplicaSets created per second, with one pod each")
}

// Validate returns the first invalid option as a usage error.
func (o *standbyOptions) Validate() error {
	for i, kind := range o.Standby {
		if kind != clusterdir.StandbyWarm && kind != clusterdir.StandbyCold {
			return usage.Errorf("--standby %q: choose warm, cold or both", kind)
		}
		if slices.Contains(o.Standby[:i], kind) {
			return usage.Errorf("--standby %s: %s is given twice; list each once", strings.Join(o.Standby, ","), kind)
		}
	}
	switch {
	case len(o.Standby) == 0:
		return usage.Errorf("--standby: the list is empty; choose warm, cold or both")
	case len(o.Stores) > 1:
		return usage.Errorf("--stores: the experiment compares standbys; choose one store")
	case o.Rate <= 0:
		return usage.Errorf("--rate %g: must be more than 0", o.Rate)
	}
	return errors.Join(o.fit(o.Pods), o.clusters.Validate())
}

// Run implements experiment.Options.
func (o *standbyOptions) Run(ctx context.Context, run *experiment.Run) error {
	if run.UsesExisting() {
		return usage.Errorf("--name %s: controller-standby needs a cluster for each standby, so it cannot use an existing one; omit --name", run.Dir.Name())
	}
	takeovers := run.Result.Table("Time until the standby acts", "standby", "leader stopped by", "rounds",
		"has the lease: median, s", "maximum, s", "first pod: median, s", "maximum, s")
	memory := run.Result.Table("Resident memory of the controller managers", "standby", "leader, MiB", "standby, MiB")
	figures := map[string][]experiment.Figure{}
	for i, kind := range o.Standby {
		c := o.clusters
		c.Keep = o.Keep && i == len(o.Standby)-1
		c.changeSettings = func(s *clusterdir.Settings) { s.ControllerManagers, s.Standby = 2, kind }
		err := c.each(ctx, run, func(ctx context.Context, t *storeRun) error {
			p := &standbyRun{storeRun: t, options: o, kind: kind, takeovers: takeovers, memory: memory}
			err := p.measure(ctx)
			figures[kind] = t.figures
			return err
		})
		if err != nil {
			return fmt.Errorf("with a %s standby: %w", kind, err)
		}
	}
	run.Result.Compare(clusterdir.StandbyWarm, clusterdir.StandbyCold, figures[clusterdir.StandbyWarm], figures[clusterdir.StandbyCold])
	return nil
}

// standbyRun is the run with one kind of standby.
type standbyRun struct {
	*storeRun
	options           *standbyOptions
	kind              string
	takeovers, memory *experiment.Table
}

// managers are the two controller managers of the cluster.
type managers struct{ leader, standby supervisor.ComponentState }

// measure fills the cluster, measures the memory, and stops the leader in each way.
func (p *standbyRun) measure(ctx context.Context) error {
	if err := p.prepareFilled(ctx, p.options.Pods.N); err != nil {
		return err
	}
	m, err := p.awaitManagers(ctx)
	if err != nil {
		return err
	}
	leader, err := m.leader.Process.SettledMemory(ctx)
	if err != nil {
		return err
	}
	standby, err := m.standby.Process.SettledMemory(ctx)
	if err != nil {
		return err
	}
	p.memory.Add(p.kind, float64(leader)/mebibyte, float64(standby)/mebibyte)
	for _, stop := range stops {
		var leases, pods []time.Duration
		for range p.options.Rounds.N {
			lease, pod, err := p.takeover(ctx, stop.signal)
			if err != nil {
				return fmt.Errorf("after %s: %w", stop.name, err)
			}
			leases, pods = append(leases, lease), append(pods, pod)
		}
		p.report(stop.name, stop.limit, leases, pods)
	}
	return nil
}

// report adds a row for the rounds with one signal, and a verdict if the standby is warm.
func (p *standbyRun) report(name string, limit float64, leases, pods []time.Duration) {
	slices.Sort(leases)
	slices.Sort(pods)
	median, most := pods[len(pods)/2].Seconds(), pods[len(pods)-1].Seconds()
	p.takeovers.Add(p.kind, name, len(pods), leases[len(leases)/2].Seconds(), leases[len(leases)-1].Seconds(), median, most)
	p.figure("first pod after "+name, "s", median, false)
	if p.kind == clusterdir.StandbyWarm {
		p.Result.Verdicts = append(p.Result.Verdicts, experiment.Verdict{
			Name: "warm standby acts after " + name, Measured: most, Limit: limit, Unit: "s", Operations: int64(len(pods)), Must: true,
		}.Judged())
	}
}

// takeover stops the leader while ReplicaSets are created, and returns the times until the standby has the lease and
// until it has created a pod.
func (p *standbyRun) takeover(ctx context.Context, signal syscall.Signal) (lease, pod time.Duration, err error) {
	m, err := p.awaitManagers(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := p.AwaitQuiet(ctx); err != nil {
		return 0, 0, err
	}
	loading, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	w, err := p.watchTakeover(loading)
	if err != nil {
		return 0, 0, err
	}
	loaded := p.createReplicaSets(loading)
	if err := p.await(ctx, "the leader creates pods", 1, w.created); err != nil {
		return 0, 0, err
	}
	stopped := time.Now()
	p.mark(fmt.Sprintf("%s, %v", p.kind, signal), stopped)
	if err := m.leader.Process.Signal(signal); err != nil {
		return 0, 0, fmt.Errorf("stopping %s: %w", m.leader.Name, err)
	}
	err = p.await(ctx, fmt.Sprintf("takeover of a %s standby after %v", p.kind, signal), 1, w.taken)
	if signal == syscall.SIGSTOP {
		err = errors.Join(err, m.leader.Process.Signal(syscall.SIGCONT))
	}
	leaseAt, podAt, failed := w.times()
	stopLoad()
	<-loaded
	err = errors.Join(err, failed, p.removeReplicaSets(ctx))
	return leaseAt.Sub(stopped), podAt.Sub(stopped), err
}

// awaitManagers waits until one controller manager leads and the other is ready to follow it.
func (p *standbyRun) awaitManagers(ctx context.Context) (m managers, err error) {
	waiting := errors.New("not read yet")
	err = p.await(ctx, "leader and standby", 1, func() int {
		if m, waiting = p.managers(ctx); waiting != nil {
			return 0
		}
		return 1
	})
	if err != nil {
		return m, fmt.Errorf("%w: %w", err, waiting)
	}
	return m, nil
}

// managers returns the controller managers, or an error if they are not ready.
func (p *standbyRun) managers(ctx context.Context) (m managers, err error) {
	state, err := supervisor.ReadState(p.storeRun.Run.Dir)
	if err != nil {
		return m, err
	}
	for _, c := range state.Components {
		if component.RoleOf(c.Name) != component.ControllerManager {
			continue
		}
		const leads, informers, synced = "leader_election_master_status", "warm_controller_manager_informers", "warm_controller_manager_informers_synced"
		page, err := p.Metrics(ctx, c.Name, leads, informers, synced)
		switch {
		case err != nil:
			return m, err
		case page.Sum(leads, "name", clusterdir.ControllerManager) == 1:
			m.leader = c
		case p.kind == clusterdir.StandbyWarm && (page.Sum(informers) == 0 || page.Sum(synced) < page.Sum(informers)):
			return m, fmt.Errorf("%s has synced %.0f of %.0f informers", c.Name, page.Sum(synced), page.Sum(informers))
		default:
			m.standby = c
		}
	}
	if m.leader.Name == "" || m.standby.Name == "" {
		return m, fmt.Errorf("leader %q, standby %q", m.leader.Name, m.standby.Name)
	}
	return m, nil
}
