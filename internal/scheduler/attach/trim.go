package attach

import (
	"slices"

	"k8s.io/client-go/informers"
	toolscache "k8s.io/client-go/tools/cache"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
)

// Trim makes the informers of nodes, CSINodes and pods trim objects (see [cache.Trimmer]). The informers must not have
// been started. With extenders or out-of-tree plugins it does nothing, because these may read any field.
func Trim(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile, factory informers.SharedInformerFactory) error {
	if !CanTrim(sched, profiles) {
		return nil
	}
	t := cache.NewTrimmer()
	core := factory.Core().V1()
	for _, informer := range []toolscache.SharedInformer{
		core.Nodes().Informer(), core.Pods().Informer(), factory.Storage().V1().CSINodes().Informer(),
	} {
		if err := informer.SetTransform(t.Transform); err != nil {
			return err
		}
	}
	return nil
}

// CanTrim returns whether a scheduler has neither extenders nor out-of-tree plugins, so that objects may be
// trimmed.
func CanTrim(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) bool {
	return len(sched.Extenders) == 0 && !slices.ContainsFunc(profiles, func(cfg config.KubeSchedulerProfile) bool {
		return rank.UnknownPlugin(sched.Profiles[cfg.SchedulerName]) != ""
	})
}
