package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/leader"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Attach makes a scheduler, which must not have been started, one of several that share the nodes. After
// [Replica.Run] is called, the replica watches nodes and pods through the client watching. It starts to
// lead when the scheduler is run. Then it calls term, which returns the term for which it leads.
func Attach(
	ctx context.Context, sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile,
	watching, client kubernetes.Interface, feeds leader.Feeds, options member.Options, term func(context.Context) (int64, error),
) (*Replica, error) {
	if err := checkShareable(sched, profiles); err != nil {
		return nil, err
	}
	registerMetrics()
	leader.RegisterMetrics()
	member.RegisterMetrics()
	wire.RegisterMetrics()
	parts, err := attach.Build(sched, profiles)
	if err != nil {
		return nil, err
	}
	r := newReplica(ctx, sched, parts, watching, client, feeds, options)
	if err := r.leader.OrderQueue(parts.Ranker.Nominations.SchedulingQueue); err != nil {
		return nil, err
	}
	search := r.leader.Search()
	for _, fw := range sched.Profiles {
		if err := search.WatchNamespaces(fw.SharedInformerFactory().Core().V1().Namespaces().Informer()); err != nil {
			return nil, err
		}
	}
	for _, cfg := range profiles {
		if err := leader.ReplacePreemption(ctx, sched.Profiles[cfg.SchedulerName], cfg, search); err != nil {
			return nil, err
		}
	}
	sched.Cache = r.leader.Assumptions()
	sched.SchedulePod = search.SchedulePod
	sched.SchedulingQueue = r.leader.RepeatEvents(sched.SchedulingQueue)
	for name, fw := range sched.Profiles {
		sched.Profiles[name] = &leaderFramework{Framework: fw, assumptions: r.leader.Assumptions()}
	}
	var begin sync.Once
	sched.NextEntity = func(logger klog.Logger) (framework.QueuedEntityInfo, error) {
		begin.Do(func() { r.startLeading(term) })
		next, err := parts.Ranker.Nominations.Pop(logger)
		if r.leaving.Load() {
			<-r.ctx.Done()
		}
		return next, err
	}
	return r, nil
}

// checkShareable returns an error if the configuration of a scheduler is not supported in replicas.
func checkShareable(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) error {
	if err := attach.UnsupportedGate(); err != nil {
		return fmt.Errorf("%w: disable it, or run a single dist-scheduler without --replica-bind-address", err)
	}
	if len(sched.Extenders) > 0 {
		return errors.New("extenders require all nodes in one process: run a single dist-scheduler without --replica-bind-address")
	}
	for _, cfg := range profiles {
		if name := rank.UnknownPlugin(sched.Profiles[cfg.SchedulerName]); name != "" {
			return fmt.Errorf("plugin %s of profile %s may read all nodes, which no replica has: run a single dist-scheduler without --replica-bind-address", name, cfg.SchedulerName)
		}
	}
	return nil
}

// leaderFramework is the framework of a profile in a replica. It binds a pod only with a valid
// reservation.
type leaderFramework struct {
	framework.Framework
	assumptions *leader.Assumptions
}

// RunPreBindPlugins waits until the owner of the node has reserved capacity for the pod.
func (f *leaderFramework) RunPreBindPlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if err := f.assumptions.ConfirmReservation(ctx, pod); err != nil {
		return fwk.AsStatus(err)
	}
	return f.Framework.RunPreBindPlugins(ctx, state, pod, node)
}

// RunBindPlugins binds the pod if the reservation is still valid. It checks the reservation again because
// this process may have been suspended after RunPreBindPlugins.
func (f *leaderFramework) RunBindPlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	return f.assumptions.Bind(ctx, pod, func() *fwk.Status { return f.Framework.RunBindPlugins(ctx, state, pod, node) })
}

// Options configure a replica.
type Options = member.Options

// Feeds are the informers for nodes and pods of a scheduler that is a replica.
type Feeds = leader.Feeds

// BindGuard checks each bind once more after the rate limiter of the client. See [Replica.MayBind].
type BindGuard = leader.BindGuard

// NewFactory returns an informer factory. Its informers for nodes and pods, the returned feeds, get their
// events from all replicas.
func NewFactory(client kubernetes.Interface) (informers.SharedInformerFactory, Feeds) {
	return leader.NewFactory(client)
}
