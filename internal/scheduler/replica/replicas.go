package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Feeds are the informers of a scheduler that is a replica. Its own watches are others,
// of a share of the objects.
type Feeds struct{ pods, nodes *fedInformer }

// NewFactory makes a factory with such informers in the place of those of nodes and pods.
func NewFactory(client kubernetes.Interface) (informers.SharedInformerFactory, Feeds) {
	f := Feeds{pods: newFedInformer(), nodes: newFedInformer()}
	factory := informers.NewSharedInformerFactory(client, 0)
	factory.InformerFor(&v1.Pod{}, f.pods.make)
	factory.InformerFor(&v1.Node{}, f.nodes.make)
	return factory, f
}

// AttachReplica makes a scheduler that has not been started yet one of several that
// share the nodes. It watches from the start, and leads when the scheduler is run, for
// the term that is said then. Nodes and pods are watched by a client of its own.
func Attach(
	ctx context.Context, sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile,
	watching, client kubernetes.Interface, feeds Feeds, options Options, term func(context.Context) (int64, error),
) (*Replica, error) {
	if err := shareable(sched, profiles); err != nil {
		return nil, err
	}
	registerMetrics()
	wire.RegisterMetrics()
	inner := sched.Cache
	parts, err := attach.Build(sched, profiles)
	if err != nil {
		return nil, err
	}
	r := &Replica{
		options: options, logger: klog.FromContext(ctx), sched: sched, dial: wire.NewDialer(options.TLS), ctx: ctx, client: client,
		exit: func(err error, why string) {
			klog.FromContext(ctx).Error(err, why)
			klog.FlushAndExit(klog.ExitFlushTimeout, 1)
		},
		// Who comes back under its name does not use the numbers again that it had.
		numbers: time.Now().UnixNano(), unknown: make(chan struct{}), led: make(chan struct{}),
		peers: map[string]*peer{}, slots: map[uint64]nodeSlot{}, early: map[string]*wire.Refresh{}, strays: map[string]sets.Set[types.UID]{}, refreshed: sets.New[string](),
	}
	r.present, r.disappear = context.WithCancel(ctx)
	r.holder = newHolder(r.logger, parts.Ranker, parts.Cache)
	elsewhere := parts.Ranker.WithoutNodes()
	for _, fw := range sched.Profiles {
		if err := elsewhere.WatchNamespaces(fw.SharedInformerFactory().Core().V1().Namespaces().Informer()); err != nil {
			return nil, err
		}
	}
	leader := NewLeader(elsewhere, r.holder.hold, nil)
	r.lead = newLead(r, leader, feeds.pods, feeds.nodes)
	leader.ask, leader.Nodes, leader.chosen = r.lead.ask, r.lead.countNodes, r.lead.keepNode
	leader.heldUp = r.lead.holdUp
	r.lead.assumptions = newAssumptions(inner, leader)
	r.lead.assumptions.reserve, r.lead.assumptions.release, r.lead.assumptions.leads = r.lead.reserve, r.lead.release, r.leads

	trimmer := cache.NewTrimmer()
	r.pods = newShare(&v1.Pod{}, podWatch(watching), trimmer.Transform, r.podChanged, r.catchUpAndReport)
	r.nodes = newShare(&v1.Node{}, nodeWatch(watching), trimmer.Transform, r.nodeChanged, r.catchUpAndReport)

	for _, cfg := range profiles {
		if err := SharePreemption(ctx, sched.Profiles[cfg.SchedulerName], cfg, leader); err != nil {
			return nil, err
		}
	}
	sched.Cache = r.lead.assumptions
	sched.SchedulePod = leader.SchedulePod
	for name, fw := range sched.Profiles {
		sched.Profiles[name] = &ledFramework{Framework: fw, assumptions: r.lead.assumptions}
	}
	var begin sync.Once
	sched.NextEntity = func(logger klog.Logger) (framework.QueuedEntityInfo, error) {
		begin.Do(func() { r.beginLeading(term) })
		next, err := parts.Ranker.Nominations.Pop(logger)
		if r.leaving.Load() {
			<-r.ctx.Done()
		}
		return next, err
	}
	return r, nil
}

// shareable says why a scheduler cannot be a replica, if it cannot.
func shareable(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) error {
	if utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload) {
		return attach.ErrPodGroups
	}
	if len(sched.Extenders) > 0 {
		return errors.New("extenders need all nodes in one process: run one dist-scheduler without replicas")
	}
	for _, cfg := range profiles {
		if name := rank.UnknownPlugin(sched.Profiles[cfg.SchedulerName]); name != "" {
			return fmt.Errorf("plugin %s of profile %s may look at all nodes, which no replica has: run one dist-scheduler without replicas", name, cfg.SchedulerName)
		}
	}
	return nil
}

// Run takes part until the context ends: it answers other replicas, and watches. It ends
// with an error if it cannot answer, or if there is another of its name.
func (r *Replica) Run(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go r.run(ctx)
	go func() {
		defer close(r.unknown)
		switch err := r.options.Discovery.Run(r.present); {
		case errors.Is(err, wire.ErrNameTaken):
			end(err)
		case err != nil:
			r.logger.Error(err, "Making this replica known to others")
		}
	}()
	err := wire.Serve(ctx, r.options.Listener, r.options.TLS, r, r.dial)
	if cause := context.Cause(ctx); errors.Is(cause, wire.ErrNameTaken) {
		return cause
	}
	return err
}

// Leave prepares for the end, for as long as the context lasts: no further pod is
// scheduled, those that are being bound are, and others are told that this replica is
// gone. They need not wait to find that out.
func (r *Replica) Leave(ctx context.Context) {
	r.leaving.Store(true)
	r.lead.assumptions.awaitBinds(ctx)
	r.lead.assumptions.awaitSeen(ctx)
	r.disappear()
	select {
	case <-r.unknown:
	case <-ctx.Done():
	}
}

// beginLeading leads from now on, and returns when the other replicas are ready.
func (r *Replica) beginLeading(term func(context.Context) (int64, error)) {
	number, err := term(r.ctx)
	if err != nil {
		r.exit(err, "The term of this leader is not known")
	}
	r.lead.start(r.ctx, number)
	close(r.led)
	r.logger.Info("Leading", "term", number)
}

// Leads is closed when this replica leads, and the others are ready.
func (r *Replica) Leads() <-chan struct{} { return r.led }

func (r *Replica) catchUpAndReport() {
	r.catchUp()
	r.report("")
}

// ledFramework is the framework of a profile in a replica that leads.
type ledFramework struct {
	framework.Framework
	assumptions *assumptions
}

// RunPreBindPlugins waits until the owner of the node has given the pod its place.
func (f *ledFramework) RunPreBindPlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if err := f.assumptions.settled(ctx, pod.UID); err != nil {
		f.assumptions.leader.heldUp(pod)
		return fwk.AsStatus(err)
	}
	return f.Framework.RunPreBindPlugins(ctx, state, pod, node)
}

// RunBindPlugins binds if the place is still the pod's: this process may have been stopped
// meanwhile.
func (f *ledFramework) RunBindPlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	f.assumptions.binding.Add(1)
	defer f.assumptions.binding.Add(-1)
	if err := f.assumptions.settled(ctx, pod.UID); err != nil {
		return fwk.AsStatus(err)
	}
	return f.Framework.RunBindPlugins(ctx, state, pod, node)
}

// podWatch lists and watches pods that have not ended, as kube-scheduler does.
func podWatch(client kubernetes.Interface) func(string) toolscache.ListerWatcher {
	fields := fmt.Sprintf("status.phase!=%v,status.phase!=%v", v1.PodSucceeded, v1.PodFailed)
	pods := client.CoreV1().Pods(metav1.NamespaceAll)
	return func(selector string) toolscache.ListerWatcher {
		return toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				options.FieldSelector, options.ShardSelector = fields, selector
				return pods.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				options.FieldSelector, options.ShardSelector = fields, selector
				return pods.Watch(ctx, options)
			},
		}, client)
	}
}

func nodeWatch(client kubernetes.Interface) func(string) toolscache.ListerWatcher {
	nodes := client.CoreV1().Nodes()
	return func(selector string) toolscache.ListerWatcher {
		return toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				options.ShardSelector = selector
				return nodes.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				options.ShardSelector = selector
				return nodes.Watch(ctx, options)
			},
		}, client)
	}
}
