package component

import "github.com/k8s-1m/k8s-1m/internal/cluster"

// Page is where a component says how it does, for Prometheus.
type Page struct{ Component, URL string }

// Pages are those of all components of a cluster. A store that is elsewhere has none that
// is known.
func Pages(config cluster.Config) []Page {
	settings, ports := config.Settings, config.Ports
	var pages []Page
	add := func(name, base string) { pages = append(pages, Page{name, base + "/metrics"}) }
	if settings.StoreAddress == "" {
		add(Store, "http://"+ports.Address("store-metrics"))
	}
	for i := range settings.APIServers {
		add(cluster.APIServerName(i), ports.URL(cluster.APIServerName(i)))
	}
	add(ControllerManager, ports.URL(ControllerManager))
	for _, name := range settings.Schedulers() {
		add(name, ports.URL(name))
	}
	add(Kwok, "http://"+ports.Address(Kwok))
	add("supervisor", "http://"+ports.Address("supervisor"))
	return pages
}
