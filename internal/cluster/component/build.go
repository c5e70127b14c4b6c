package component

import (
	"path/filepath"
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

const (
	serviceCIDR = "10.96.0.0/12"
	// podCIDR is the range from which kwok assigns pod addresses: 8 million.
	podCIDR = "10.128.0.0/9"
)

// ServiceCIDR is the address range of Services. Its first address is in the API server's
// certificate.
func ServiceCIDR() string { return serviceCIDR }

// builder constructs the components of one cluster. Each file of this package has the
// builder method of one component.
type builder struct {
	config  clusterdir.Config
	dir     clusterdir.Dir
	locate  func(binary string) (string, error)
	missing error // the first program that was not found
}

// Build returns the components of a cluster, each after the components that it depends on.
// locate returns the path of a program, normally [FindBinary]; Build returns its first error.
func Build(config clusterdir.Config, dir clusterdir.Dir, locate func(binary string) (string, error)) ([]Component, error) {
	b := &builder{config: config, dir: dir, locate: locate}
	var components []Component
	if config.Settings.StoreAddress == "" {
		components = append(components, b.store())
	}
	if config.Settings.Trace {
		components = append(components, b.proxy())
	}
	for i := range config.Settings.APIServers {
		components = append(components, b.apiServer(i))
	}
	components = append(components, b.controllerManager())
	for i, name := range config.Settings.Schedulers() {
		components = append(components, b.scheduler(name, i >= config.Settings.SchedulerReplicas))
	}
	components = append(components, b.kwok())
	for i := range components {
		b.pin(&components[i])
	}
	return components, b.missing
}

// pin restricts a component to the CPUs that --cpus assigns to it.
func (b *builder) pin(c *Component) {
	names := []string{c.Name, filepath.Base(c.Binary)}
	if slices.Contains(b.config.Settings.Schedulers(), c.Name) {
		names = append(names, clusterdir.AnyScheduler)
	}
	if c.CPUs = b.config.Settings.CPUsOf(names...); c.CPUs != "" {
		c.pinner = b.binary("taskset")
	}
}

// APIServerURLs returns the URLs of all API servers.
func APIServerURLs(config clusterdir.Config) []string {
	urls := make([]string, config.Settings.APIServers)
	for i := range urls {
		urls[i] = config.Ports.URL(clusterdir.APIServerName(i))
	}
	return urls
}

// binary returns the path of a program. It records an error in missing instead of returning
// it, so that the builder methods need no error handling.
func (b *builder) binary(name string) string {
	path, err := b.locate(name)
	if err != nil && b.missing == nil {
		b.missing = err
	}
	return path
}

func (b *builder) pki(file string) string { return filepath.Join(b.dir.PKI(), file) }

func (b *builder) apiServerNames() []string {
	names := make([]string, b.config.Settings.APIServers)
	for i := range names {
		names[i] = clusterdir.APIServerName(i)
	}
	return names
}

func (b *builder) secureProbe(component, path string) Probe {
	return Probe{URL: b.config.Ports.URL(component) + path, CAFile: b.pki("ca.crt")}
}

// addSecureServing adds the flags for serving HTTPS on the port of a component, with the
// certificate of its program and with delegated authentication and authorization.
func (b *builder) addSecureServing(a *args, name, program, kubeconfig string) {
	a.add("bind-address", clusterdir.Loopback)
	a.addInt("secure-port", b.config.Ports[name])
	a.add("tls-cert-file", b.pki(program+".crt"))
	a.add("tls-private-key-file", b.pki(program+".key"))
	a.add("client-ca-file", b.pki("ca.crt"))
	a.add("requestheader-client-ca-file", b.pki("front-proxy-ca.crt"))
	a.add("authentication-kubeconfig", kubeconfig)
	a.add("authorization-kubeconfig", kubeconfig)
}
