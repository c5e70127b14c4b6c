// Package attach makes kube-scheduler find nodes by an index.
//
// [Attach] replaces three parts of a scheduler: the cache, the search for a node, and the queue,
// which is wrapped to track nominated pods. All other parts stay upstream's: plugins, preemption,
// binding, events and metrics. A pod that the index cannot rank nodes for is left to upstream's
// full scan of the same snapshot.
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

// ErrPodGroups is returned if pod groups are enabled, which the index does not support.
var ErrPodGroups = errors.New("feature gate GenericWorkload is on: the index does not support pod groups")

// Prepare has to be called before the scheduler is made. It turns off opportunistic batching, with
// which upstream reuses a result for equal pods: the index is fast for all pods, and pods that are
// left to the full scan shall be decided by it.
func Prepare() error {
	if !utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload) {
		cache.TakeCacheSize()
	}
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(features.OpportunisticBatching): false})
}

// Profiles returns the profiles of a configuration, with the settings that they inherit from it.
func Profiles(cfg *config.KubeSchedulerConfiguration) []config.KubeSchedulerProfile {
	profiles := slices.Clone(cfg.Profiles)
	for i := range profiles {
		if profiles[i].PercentageOfNodesToScore == nil {
			profiles[i].PercentageOfNodesToScore = cfg.PercentageOfNodesToScore
		}
	}
	return profiles
}

// Debug makes SIGUSR2 log the state of the attached cache. Upstream's handler would log its own
// cache, which is not used.
func Debug(ctx context.Context, sched *kubescheduler.Scheduler, factory informers.SharedInformerFactory) {
	signal.Reset(syscall.SIGUSR2)
	core := factory.Core().V1()
	debugger.New(core.Nodes().Lister(), core.Pods().Lister(), sched.Cache, sched.SchedulingQueue).ListenForSignal(ctx)
}

// Attach makes a scheduler find nodes by an index. The scheduler must not have been started.
func Attach(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) error {
	_, err := New(sched, profiles)
	return err
}

// New does the same as [Attach] and returns the parts that it made.
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

// Parts are what replaces the parts of kube-scheduler.
type Parts struct {
	Ranker *rank.Ranker
	Cache  *cache.Cache
	// Limits apply to plugins that are not kube-scheduler's own.
	Limits *guard.Limits
}

// Build makes the parts for a scheduler, guards its plugins and replaces its queue. The caller sets
// the cache and the search of the scheduler.
func Build(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) (*Parts, error) {
	cache.RegisterMetrics()
	rank.RegisterMetrics()
	guard.RegisterMetrics()
	snapshot, err := snapshotOf(sched)
	if err != nil {
		return nil, err
	}
	nodes, err := cache.NewCluster(snapshot)
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

// snapshotOf returns the snapshot that the plugins of a scheduler read.
func snapshotOf(sched *kubescheduler.Scheduler) (*schedcache.Snapshot, error) {
	for _, fw := range sched.Profiles {
		if snapshot, ok := fw.SnapshotSharedLister().(*schedcache.Snapshot); ok {
			return snapshot, nil
		}
		return nil, fmt.Errorf("plugins read a %T instead of kube-scheduler's snapshot", fw.SnapshotSharedLister())
	}
	return nil, errors.New("the scheduler has no profile")
}
