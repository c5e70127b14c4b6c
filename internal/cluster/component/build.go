package component

import (
	"path/filepath"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

const (
	serviceCIDR = "10.96.0.0/12"
	// podCIDR is the range from which the simulator of the nodes assigns pod addresses. It has 8 million addresses.
	podCIDR = "10.128.0.0/9"
)

// ServiceCIDR returns the address range of Services. The first address of the range is in the
// certificate of the API servers.
func ServiceCIDR() string { return serviceCIDR }

// builder constructs the components of one cluster.
type builder struct {
	config    clusterdir.Config
	dir       clusterdir.Dir
	locate    func(binary string) (string, error)
	locateErr error // the first error of locate
}

// Build returns the components of a cluster, each after the components that it depends on.
// locate returns the path of a program; it is [FindBinary] except in tests. Build returns the first
// error of locate.
func Build(config clusterdir.Config, dir clusterdir.Dir, locate func(binary string) (string, error)) ([]Component, error) {
	b := &builder{config: config, dir: dir, locate: locate}
	var components []Component
	for _, name := range config.Settings.StoreNames() {
		components = append(components, b.store(name)...)
	}
	if config.Settings.Trace {
		components = append(components, b.proxy())
	}
	for i := range config.Settings.APIServers {
		components = append(components, b.apiServer(i))
	}
	for _, name := range config.Settings.GatewayNames() {
		components = append(components, b.gateway(name))
	}
	if config.Settings.Runs(ControllerManager) {
		for _, name := range config.Settings.ControllerManagerNames() {
			components = append(components, b.controllerManager(name))
		}
	}
	if config.Settings.Runs(clusterdir.AnyScheduler) {
		for i, name := range config.Settings.Schedulers() {
			components = append(components, b.scheduler(name, i >= config.Settings.SchedulerReplicas))
		}
	}
	components = append(components, b.nodeSimulators()...)
	for i := range components {
		b.pin(&components[i])
	}
	return components, b.locateErr
}

// nodeSimulators returns the programs that simulate the nodes and the pods that are bound to them.
func (b *builder) nodeSimulators() []Component {
	if b.config.Settings.NodeSimulator != clusterdir.SimulatorNodeSim {
		return []Component{b.kwok()}
	}
	var components []Component
	for i := range b.config.Settings.NodeSims {
		components = append(components, b.nodeSim(i))
	}
	return components
}

// BuildStores returns the members of the stores that k1m runs. Only the ports of the stores need to be assigned.
func BuildStores(config clusterdir.Config, dir clusterdir.Dir, locate func(binary string) (string, error)) (stores []Component, err error) {
	b := &builder{config: config, dir: dir, locate: locate}
	for _, name := range config.Settings.StoreNames() {
		stores = append(stores, b.store(name)...)
	}
	for i := range stores {
		b.pin(&stores[i])
	}
	return stores, b.locateErr
}

// pin restricts a component to the CPUs that --cpus assigns to it, if any.
func (b *builder) pin(c *Component) {
	if c.CPUs = b.config.Settings.CPUsOf(c.Name, filepath.Base(c.Binary), RoleOf(c.Name)); c.CPUs != "" {
		c.taskset = b.binary("taskset")
	}
}

// APIServerURLs returns the URLs of all API servers. Clients use [ClientURLs].
func APIServerURLs(config clusterdir.Config) []string {
	urls := make([]string, config.Settings.APIServers)
	for i := range urls {
		urls[i] = config.Ports.URL(clusterdir.APIServerName(i))
	}
	return urls
}

// binary returns the path of a program. It records an error in locateErr instead of returning it, so
// that the methods that call it need no error handling.
func (b *builder) binary(name string) string {
	path, err := b.locate(name)
	if err != nil && b.locateErr == nil {
		b.locateErr = err
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

// clientDependencies returns the names of the components that a client of the API depends on.
func (b *builder) clientDependencies() []string {
	if gateways := b.config.Settings.GatewayNames(); len(gateways) > 0 {
		return gateways
	}
	return b.apiServerNames()
}

// secureProbe returns a readiness probe of a path on the HTTPS port of a component.
func (b *builder) secureProbe(component, path string) Probe {
	return Probe{URL: b.config.Ports.URL(component) + path, CAFile: b.pki("ca.crt")}
}

// addSecureServing adds the flags for serving HTTPS on the port of the component name. The component
// uses the certificate of its program, and delegates authentication and authorization to the API server.
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
