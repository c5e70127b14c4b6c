package attach

import (
	"slices"

	"k8s.io/client-go/informers"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
)

// Trim lets informers that have not been started keep only what scheduling needs of
// nodes and pods, and keep what many of them have in common once. Plugins that are
// not upstream's, and extenders, may look at anything: with them nothing is trimmed.
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

func CanTrim(sched *kubescheduler.Scheduler, profiles []config.KubeSchedulerProfile) bool {
	return len(sched.Extenders) == 0 && !slices.ContainsFunc(profiles, func(cfg config.KubeSchedulerProfile) bool {
		return rank.UnknownPlugin(sched.Profiles[cfg.SchedulerName]) != ""
	})
}
