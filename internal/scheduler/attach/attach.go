// Package attach makes kube-scheduler find nodes through an index.
//
// [Attach] replaces the cache and the search for a node, and wraps the queue to track nominated pods. It
// also guards out-of-tree plugins. All other parts are upstream's: plugins, preemption, binding, events and
// metrics. Pods that the index cannot rank are scheduled by upstream's full scan of the same snapshot.
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

// ErrPodGroups is the error if pod groups are enabled, which the index does not support.
var ErrPodGroups = errors.New("feature gate GenericWorkload is enabled: the index does not support pod groups")

// ErrResizePreemption is the error if preemption for resizes of running pods is enabled, which the index does not
// support: upstream schedules these pods again, each on the node that it runs on.
var ErrResizePreemption = errors.New("feature gate InPlacePodVerticalScalingSchedulerPreemption is enabled: the index does not support scheduling of pods that run already")

// UnsupportedGate returns the error for an enabled feature gate that the index does not support; nil if there is
// none.
func UnsupportedGate() error {
	switch {
	case utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload):
		return ErrPodGroups
	case utilfeature.DefaultFeatureGate.Enabled(features.InPlacePodVerticalScalingSchedulerPreemption):
		return ErrResizePreemption
	}
	return nil
}

// Prepare must be called before the scheduler is made. It disables opportunistic batching, with which
// upstream reuses the result of one pod for equal pods. The index makes it unnecessary, and pods that the
// index does not rank must get the result of a full scan.
func Prepare() error {
	if UnsupportedGate() == nil {
		cache.TakeCacheSize()
	}
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(features.OpportunisticBatching): false})
}

// Profiles returns the profiles of a configuration, with percentageOfNodesToScore inherited from it.
func Profiles(cfg *config.KubeSchedulerConfiguration) []config.KubeSchedulerProfile {
	profiles := slices.Clone(cfg.Profiles)
	for i := range profiles {
		if profiles[i].PercentageOfNodesToScore == nil {
			profiles[i].PercentageOfNodesToScore = cfg.PercentageOfNodesToScore
		}
	}
	return profiles
}

// Debug makes SIGUSR2 log the state of the attached cache. Upstream's handler would log upstream's cache,
// which is empty.
func Debug(ctx context.Context, sched *kubescheduler.Scheduler, factory informers.SharedInformerFactory) {
	signal.Reset(syscall.SIGUSR2)
	core := factory.Core().V1()
	debugger.New(core.Nodes().Lister(), core.Pods().Lister(), sched.Cache, sched.SchedulingQueue).ListenForSignal(ctx)
}

// Attach makes a scheduler find nodes through an index. The scheduler must not have been started.
func Attach(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) error {
	_, err := New(sched, profiles)
	return err
}

// New does the same as [Attach], and returns the parts that it has made.
func New(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) (*Parts, error) {
	if err := UnsupportedGate(); err != nil {
		return nil, err
	}
	parts, err := Build(sched, profiles)
	if err != nil {
		return nil, err
	}
	for _, fw := range sched.Profiles {
		wakePreemptors(fw)
		// Replicas evaluate each node for a pod with volumes or claims, so they do not watch these.
		if err := parts.Ranker.WatchStorage(fw.SharedInformerFactory()); err != nil {
			return nil, err
		}
	}
	sched.Cache = parts.Cache
	sched.NextEntity = func(logger klog.Logger) (framework.QueuedEntityInfo, error) {
		parts.Cache.EndCycle(logger)
		return parts.Ranker.Nominations.Pop(logger)
	}
	sched.SchedulePod = parts.Ranker.SchedulePod
	return parts, nil
}

// Parts replace or extend the parts of kube-scheduler.
type Parts struct {
	Ranker *rank.Ranker
	Cache  *cache.Cache
	// Limits apply to plugins that are not kube-scheduler's own.
	Limits *guard.Limits
}

// Build makes the parts for a scheduler, guards its out-of-tree plugins and wraps its queue. The caller must
// set the cache and the search of the scheduler.
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
	limits := guard.NewLimits(nodes.PluginTimedOut)
	for _, cfg := range profiles {
		fw := sched.Profiles[cfg.SchedulerName]
		if err := r.AddProfile(fw, cfg); err != nil {
			return nil, err
		}
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
