package component

import (
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// Roles of which there can be several components; of the others the role is the name.
const (
	RoleAPIServer = "kube-apiserver"
	RoleScheduler = "scheduler"
)

// Supervisor is the parent of all components; it has a page as well.
const Supervisor = "supervisor"

// RoleOf a component: several API servers or schedulers are one.
func RoleOf(name string) string {
	switch {
	case strings.HasPrefix(name, clusterdir.APIServerName(0)):
		return RoleAPIServer
	case strings.HasPrefix(name, clusterdir.SchedulerKube), strings.HasPrefix(name, clusterdir.SchedulerDist):
		return RoleScheduler
	}
	return name
}

// Page is where a component says how it does, for Prometheus.
type Page struct{ Component, Role, URL string }

// Pages are those of all components of a cluster. A store that is elsewhere has none that
// is known.
func Pages(config clusterdir.Config) []Page {
	settings, ports := config.Settings, config.Ports
	var pages []Page
	add := func(name, base string) { pages = append(pages, Page{name, RoleOf(name), base + "/metrics"}) }
	if settings.StoreAddress == "" {
		add(Store, "http://"+ports.Address("store-metrics"))
	}
	for i := range settings.APIServers {
		add(clusterdir.APIServerName(i), ports.URL(clusterdir.APIServerName(i)))
	}
	add(ControllerManager, ports.URL(ControllerManager))
	for _, name := range settings.Schedulers() {
		add(name, ports.URL(name))
	}
	add(Kwok, "http://"+ports.Address(Kwok))
	add(Supervisor, "http://"+ports.Address(Supervisor))
	return pages
}
