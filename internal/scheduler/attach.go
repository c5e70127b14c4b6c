// Package scheduler makes kube-scheduler find nodes by an index.
//
// Everything else stays upstream's: the queue, plugins, preemption, binding, events
// and metrics. [Attach] puts three parts in the place of theirs: the cache, which
// keeps nodes once and notes what changes; the search for a node; and a queue that
// says which nodes pods are nominated to. A pod that the index has no answer for is
// scheduled by upstream's own search, in the same snapshot.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"

	v1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	inner "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache/debugger"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// ErrPodGroups says that pods are scheduled in groups, which the index cannot do.
var ErrPodGroups = errors.New("the feature gate GenericWorkload is on: groups of pods are scheduled by upstream's own search only")

// Prepare is to be called before the scheduler is made. It turns off what upstream
// does to spare itself a search for pods that are alike: the index does it for all
// pods, and a pod that it leaves to upstream's search shall be decided by that.
func Prepare() error {
	if !utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload) {
		takeCacheSize()
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
func Debug(ctx context.Context, sched *upstream.Scheduler, factory informers.SharedInformerFactory) {
	signal.Reset(syscall.SIGUSR2)
	core := factory.Core().V1()
	debugger.New(core.Nodes().Lister(), core.Pods().Lister(), sched.Cache, sched.SchedulingQueue).ListenForSignal(ctx)
}

// Attach makes a scheduler that has not been started yet find nodes by an index.
func Attach(sched *upstream.Scheduler, profiles []config.KubeSchedulerProfile) error {
	_, err := attach(sched, profiles)
	return err
}

func attach(sched *upstream.Scheduler, profiles []config.KubeSchedulerProfile) (*ranker, error) {
	if utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload) {
		return nil, ErrPodGroups
	}
	registerMetrics()
	r, known, err := build(sched, profiles)
	if err != nil {
		return nil, err
	}
	sched.Cache = known
	sched.NextEntity = func(logger klog.Logger) (framework.QueuedEntityInfo, error) {
		known.endCycle(logger)
		return r.nominations.Pop(logger)
	}
	sched.SchedulePod = r.SchedulePod
	return r, nil
}

// build makes what finds nodes for the pods of a scheduler, and the cache that it finds
// them in, with the queue of the scheduler already replaced.
func build(sched *upstream.Scheduler, profiles []config.KubeSchedulerProfile) (*ranker, *Cache, error) {
	whole, err := snapshotOf(sched)
	if err != nil {
		return nil, nil, err
	}
	fields, err := newSnapshot(whole)
	if err != nil {
		return nil, nil, err
	}
	r := &ranker{
		cluster: newCluster(fields), profiles: map[string]*profile{}, extenders: sched.Extenders, search: sched.SchedulePod,
		placeCost: placeCost, outdated: &atomic.Bool{},
	}
	r.limits = &limits{call: pluginLimit, grace: pluginGrace, left: func() { r.cluster.watched.Store(true) }}
	for _, cfg := range profiles {
		fw := sched.Profiles[cfg.SchedulerName]
		if r.profiles[cfg.SchedulerName], err = newProfile(fw, cfg); err != nil {
			return nil, nil, err
		}
		wakePreemptors(fw)
		if err := guardPlugins(fw, r.limits); err != nil {
			return nil, nil, err
		}
		if err := r.watchNamespaces(fw.SharedInformerFactory().Core().V1().Namespaces().Informer()); err != nil {
			return nil, nil, err
		}
	}
	r.nominations = newNominations(sched.SchedulingQueue)
	sched.SchedulingQueue = r.nominations
	for _, fw := range sched.Profiles {
		fw.SetPodNominator(r.nominations)
	}
	return r, newCache(sched.Cache, r.cluster, waiters{sched}), nil
}

// snapshotOf is what the plugins of a scheduler see.
func snapshotOf(sched *upstream.Scheduler) (*inner.Snapshot, error) {
	for _, fw := range sched.Profiles {
		if whole, ok := fw.SnapshotSharedLister().(*inner.Snapshot); ok {
			return whole, nil
		}
		return nil, fmt.Errorf("plugins see a %T, not kube-scheduler's snapshot", fw.SnapshotSharedLister())
	}
	return nil, errors.New("the scheduler has no profile")
}

// watchNamespaces makes classes anew when the labels of a namespace change, which
// terms may select by.
func (r *ranker) watchNamespaces(informer cache.SharedIndexInformer) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { r.outdated.Store(true) },
		UpdateFunc: func(before, after any) {
			if !maps.Equal(before.(*v1.Namespace).Labels, after.(*v1.Namespace).Labels) {
				r.outdated.Store(true)
			}
		},
		DeleteFunc: func(any) { r.outdated.Store(true) },
	})
	return err
}
