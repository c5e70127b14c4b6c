package controllermanager

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	informersRunning = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "warm_controller_manager_informers",
		Help:           "Number of informers that run before the controllers do.",
		StabilityLevel: metrics.ALPHA,
	})
	informersSynced = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "warm_controller_manager_informers_synced",
		Help:           "Number of these informers that have the objects of the cluster in memory.",
		StabilityLevel: metrics.ALPHA,
	})
	takeoverSeconds = metrics.NewGauge(&metrics.GaugeOpts{
		Name:           "warm_controller_manager_takeover_seconds",
		Help:           "Time from the acquisition of the lease until all controllers were started.",
		StabilityLevel: metrics.ALPHA,
	})
)

func init() { legacyregistry.MustRegister(informersRunning, informersSynced, takeoverSeconds) }
