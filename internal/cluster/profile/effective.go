package profile

import (
	"slices"
	"strings"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// Defaults of kube-controller-manager.
const (
	defaultPeriod = 5 * time.Second
	defaultGrace  = 50 * time.Second
)

// Interval returns the time between two renewals of a node's Lease in a cluster with these settings.
func Interval(s clusterdir.Settings) time.Duration {
	return Profile{interval: defaultInterval}.intervalOf(&applier{settings: &s})
}

// MonitorPeriod returns the time between two passes of kube-controller-manager over all nodes.
func MonitorPeriod(s clusterdir.Settings) time.Duration {
	return durationOf(s, "node-monitor-period", defaultPeriod)
}

// MonitorGrace returns how long kube-controller-manager waits for a renewal until a node is NotReady.
func MonitorGrace(s clusterdir.Settings) time.Duration {
	return durationOf(s, "node-monitor-grace-period", defaultGrace)
}

// CollectsGarbage reports whether kube-controller-manager's garbage collector runs.
func CollectsGarbage(s clusterdir.Settings) bool {
	controllers, _ := entryOf(s.ControllerManagerArgs, "controllers")
	return !slices.Contains(strings.Split(controllers, ","), noGarbageCollector)
}

// durationOf returns a flag of kube-controller-manager.
func durationOf(s clusterdir.Settings, key string, byDefault time.Duration) time.Duration {
	text, _ := entryOf(s.ControllerManagerArgs, key)
	if value, err := time.ParseDuration(text); err == nil {
		return value
	}
	return byDefault
}
