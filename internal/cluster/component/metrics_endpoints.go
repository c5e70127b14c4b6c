package component

import (
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// Roles that several components can have, besides Store, NodeSim and ControllerManager. The role of any other component is its name.
const (
	RoleAPIServer = "kube-apiserver"
	RoleGateway   = "kube-gateway"
	RoleScheduler = clusterdir.AnyScheduler
)

// Supervisor is the name under which MetricsEndpoints lists the supervisor process.
const Supervisor = "supervisor"

// RoleOf returns the role of a component: Store for each member of a store, RoleAPIServer for each API server, RoleGateway for
// each gateway, RoleScheduler for each scheduler, NodeSim for each node-sim, ControllerManager for each controller
// manager, otherwise the name.
func RoleOf(name string) string {
	switch {
	case clusterdir.IsStore(name):
		return Store
	case strings.HasPrefix(name, clusterdir.APIServerName(0)):
		return RoleAPIServer
	case strings.HasPrefix(name, clusterdir.GatewayName(0)):
		return RoleGateway
	case strings.HasPrefix(name, clusterdir.SimulatorNodeSim):
		return NodeSim
	case strings.HasPrefix(name, ControllerManager):
		return ControllerManager
	case strings.HasPrefix(name, clusterdir.SchedulerKube), strings.HasPrefix(name, clusterdir.SchedulerDist):
		return RoleScheduler
	}
	return name
}

// MetricsEndpoint is the URL from which Prometheus scrapes the metrics of a component.
type MetricsEndpoint struct{ Component, Role, URL string }

// MetricsEndpoints returns the metrics endpoints of the supervisor and of all components except
// etcd-proxy. The endpoint of an external store is not known, so it is not included.
func MetricsEndpoints(config clusterdir.Config) []MetricsEndpoint {
	settings, ports := config.Settings, config.Ports
	var endpoints []MetricsEndpoint
	add := func(name, base string) {
		endpoints = append(endpoints, MetricsEndpoint{name, RoleOf(name), base + "/metrics"})
	}
	for _, name := range settings.StoreComponents() {
		add(name, "http://"+ports.Address(clusterdir.StoreMetricsPort(name)))
	}
	for i := range settings.APIServers {
		add(clusterdir.APIServerName(i), ports.URL(clusterdir.APIServerName(i)))
	}
	for _, name := range settings.GatewayNames() {
		add(name, "http://"+ports.Address(clusterdir.GatewayMetricsPort(name)))
	}
	if settings.Runs(ControllerManager) {
		for _, name := range settings.ControllerManagerNames() {
			add(name, ports.URL(name))
		}
	}
	if settings.Runs(clusterdir.AnyScheduler) {
		for _, name := range settings.Schedulers() {
			add(name, ports.URL(name))
		}
	}
	for _, name := range settings.SimulatorNames() {
		add(name, "http://"+ports.Address(name))
	}
	add(Supervisor, "http://"+ports.Address(Supervisor))
	return endpoints
}
