package component

import (
	"path/filepath"
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

const (
	serviceCIDR = "10.96.0.0/12"
	// kwok hands out pod addresses from here: room for 8 million.
	podCIDR = "10.128.0.0/9"
)

// ServiceCIDR is the network of the Services, whose first address is in the
// API server's certificate.
func ServiceCIDR() string { return serviceCIDR }

// plan is the composition root: the only place that knows what a cluster is
// made of.
type plan struct {
	config  clusterdir.Config
	dir     clusterdir.Dir
	locate  func(binary string) (string, error)
	missing error
}

// Plan lists a cluster's components, each after those that it depends on.
func Plan(config clusterdir.Config, dir clusterdir.Dir, locate func(binary string) (string, error)) ([]Component, error) {
	p := &plan{config: config, dir: dir, locate: locate}
	var components []Component
	if config.Settings.StoreAddress == "" {
		components = append(components, p.store())
	}
	if config.Settings.Trace {
		components = append(components, p.proxy())
	}
	for i := range config.Settings.APIServers {
		components = append(components, p.apiServer(i))
	}
	components = append(components, p.controllerManager())
	for i, name := range config.Settings.Schedulers() {
		components = append(components, p.scheduler(name, i >= config.Settings.SchedulerReplicas))
	}
	components = append(components, p.kwok())
	for i := range components {
		p.pin(&components[i])
	}
	return components, p.missing
}

// pin lets a component run on the CPUs that its user gave it.
func (p *plan) pin(c *Component) {
	names := []string{c.Name, filepath.Base(c.Binary)}
	if slices.Contains(p.config.Settings.Schedulers(), c.Name) {
		names = append(names, clusterdir.AnyScheduler)
	}
	if c.CPUs = p.config.Settings.CPUsOf(names...); c.CPUs != "" {
		c.pinner = p.binary("taskset")
	}
}

// APIServerURLs are the servers over which clients are spread.
func APIServerURLs(config clusterdir.Config) []string {
	urls := make([]string, config.Settings.APIServers)
	for i := range urls {
		urls[i] = config.Ports.URL(clusterdir.APIServerName(i))
	}
	return urls
}

// WriteKubeconfigs gives every user a kubeconfig; components alternate over
// the API servers.
func WriteKubeconfigs(config clusterdir.Config, dir clusterdir.Dir, authority *pki.Authority) error {
	servers := APIServerURLs(config)
	for i, user := range []pki.User{pki.ControllerManager, pki.Scheduler, pki.Kwok, pki.Admin, pki.SuperAdmin} {
		server := servers[i%len(servers)]
		if user.File == pki.Admin.File || user.File == pki.SuperAdmin.File {
			server = servers[0]
		}
		if err := pki.WriteKubeconfig(dir.Kubeconfig(user.File), config.Name, server, authority, user); err != nil {
			return err
		}
	}
	return nil
}

// binary records the first program that is missing, so that building the list
// of components stays free of error handling.
func (p *plan) binary(name string) string {
	path, err := p.locate(name)
	if err != nil && p.missing == nil {
		p.missing = err
	}
	return path
}

func (p *plan) pki(file string) string { return filepath.Join(p.dir.PKI(), file) }

func (p *plan) apiServerNames() []string {
	names := make([]string, p.config.Settings.APIServers)
	for i := range names {
		names[i] = clusterdir.APIServerName(i)
	}
	return names
}

func (p *plan) secureProbe(component, path string) Probe {
	return Probe{URL: p.config.Ports.URL(component) + path, CAFile: p.pki("ca.crt")}
}
