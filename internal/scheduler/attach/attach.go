// Package scheduler makes kube-scheduler find nodes by an index.
//
// Everything else stays upstream's: the queue, plugins, preemption, binding, events
// and metrics. [Attach] puts three parts in the place of theirs: the cache, which
// keeps nodes once and notes what changes; the search for a node; and a queue that
// says which nodes pods are nominated to. A pod that the index has no answer for is
// scheduled by upstream's own search, in the same snapshot.
package attach

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"syscall"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache/debugger"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/guard"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
)

// ErrPodGroups says that pods are scheduled in groups, which the index cannot do.
var ErrPodGroups = errors.New("the feature gate GenericWorkload is on: groups of pods are scheduled by upstream's own search only")

// Prepare is to be called before the scheduler is made. It turns off what upstream
// does to spare itself a search for pods that are alike: the index does it for all
// pods, and a pod that it leaves to upstream's search shall be decided by that.
func Prepare() error {
	if !utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload) {
		cache.TakeCacheSize()
	}
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(features.OpportunisticBatching): false})
}

// Profiles are those of a configuration, each with what it has in common with the
// others.
func Profiles(cfg *config.KubeSchedulerConfiguration) []config.KubeSchedulerProfile {
	profiles := slices.Clone(cfg.Profiles)
	for i := range profiles {
		if profiles[i].PercentageOfNodesToScore == nil {
			profiles[i].PercentageOfNodesToScore = cfg.PercentageOfNodesToScore
		}
	}
	return profiles
}

// Debug lets the signal that has kube-scheduler log what it knows (SIGUSR2) log what
// is known here: what upstream listens with knows a cache that is not used.
func Debug(ctx context.Context, sched *kubescheduler.Scheduler, factory informers.SharedInformerFactory) {
	signal.Reset(syscall.SIGUSR2)
	core := factory.Core().V1()
	debugger.New(core.Nodes().Lister(), core.Pods().Lister(), sched.Cache, sched.SchedulingQueue).ListenForSignal(ctx)
}

// Attach makes a scheduler that has not been started yet find nodes by an index.
func Attach(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) error {
	_, err := New(sched, profiles)
	return err
}

// New does what [Attach] does, and returns what was made for it.
func New(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) (*Parts, error) {
	if utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload) {
		return nil, ErrPodGroups
	}
	parts, err := Build(sched, profiles)
	if err != nil {
		return nil, err
	}
	sched.Cache = parts.Cache
	sched.NextEntity = func(logger klog.Logger) (framework.QueuedEntityInfo, error) {
		parts.Cache.EndCycle(logger)
		return parts.Ranker.Nominations.Pop(logger)
	}
	sched.SchedulePod = parts.Ranker.SchedulePod
	return parts, nil
}

// Parts are the parts that replace those of kube-scheduler.
type Parts struct {
	Ranker *rank.Ranker
	Cache  *cache.Cache
	// Limits apply to the calls of plugins that are not kube-scheduler's own.
	Limits *guard.Limits
}

// Build makes the parts for a scheduler and replaces its queue. The caller puts the cache and
// the search into the scheduler.
func Build(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) (*Parts, error) {
	cache.RegisterMetrics()
	rank.RegisterMetrics()
	guard.RegisterMetrics()
	whole, err := snapshotOf(sched)
	if err != nil {
		return nil, err
	}
	nodes, err := cache.NewCluster(whole)
	if err != nil {
		return nil, err
	}
	nominated := rank.NewNominations(sched.SchedulingQueue)
	r := rank.New(nodes, nominated, sched.Extenders, sched.SchedulePod)
	limits := guard.NewLimits(nodes.OutlivedByPlugin)
	for _, cfg := range profiles {
		fw := sched.Profiles[cfg.SchedulerName]
		if err := r.AddProfile(fw, cfg); err != nil {
			return nil, err
		}
		wakePreemptors(fw)
		if err := guard.Wrap(fw, limits); err != nil {
			return nil, err
		}
		if err := r.WatchNamespaces(fw.SharedInformerFactory().Core().V1().Namespaces().Informer()); err != nil {
			return nil, err
		}
	}
	sched.SchedulingQueue = nominated
	for _, fw := range sched.Profiles {
		fw.SetPodNominator(nominated)
	}
	return &Parts{Ranker: r, Cache: cache.New(sched.Cache, nodes, sched), Limits: limits}, nil
}

// snapshotOf is what the plugins of a scheduler see.
func snapshotOf(sched *kubescheduler.Scheduler) (*schedcache.Snapshot, error) {
	for _, fw := range sched.Profiles {
		if whole, ok := fw.SnapshotSharedLister().(*schedcache.Snapshot); ok {
			return whole, nil
		}
		return nil, fmt.Errorf("plugins see a %T, not kube-scheduler's snapshot", fw.SnapshotSharedLister())
	}
	return nil, errors.New("the scheduler has no profile")
}
