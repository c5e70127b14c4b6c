package attach

import (
	"slices"

	"k8s.io/client-go/informers"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
)

// Trim makes informers keep only what scheduling reads of nodes and pods, and share equal parts of
// them. The informers must not have been started. With extenders or plugins that are not upstream's
// nothing is trimmed, because they may read anything.
func Trim(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile, factory informers.SharedInformerFactory) error {
	if !CanTrim(sched, profiles) {
		return nil
	}
	t := cache.NewTrimmer()
	if err := factory.Core().V1().Nodes().Informer().SetTransform(t.Transform); err != nil {
		return err
	}
	return factory.Core().V1().Pods().Informer().SetTransform(t.Transform)
}

// CanTrim returns whether objects may be trimmed for a scheduler.
func CanTrim(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) bool {
	return len(sched.Extenders) == 0 && !slices.ContainsFunc(profiles, func(cfg config.KubeSchedulerProfile) bool {
		return rank.UnknownPlugin(sched.Profiles[cfg.SchedulerName]) != ""
	})
}
