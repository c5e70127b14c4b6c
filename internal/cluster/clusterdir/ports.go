package clusterdir

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"slices"
	"strconv"
)

const (
	// Loopback is the only address that a cluster binds to.
	Loopback = "127.0.0.1"

	// The range from firstPort to lastPort is below Linux's ephemeral ports (32768-60999). While a
	// component restarts, an outgoing connection could take its port if it were an ephemeral one.
	firstPort = 20000
	lastPort  = 31999
)

// ErrPortInUse means that a port that the user requested is in use.
var ErrPortInUse = errors.New("port in use")

// Names of the ports of etcd-proxy.
const (
	// ProxyPort serves the etcd API.
	ProxyPort = "etcd-proxy"
	// ProxyMetricsPort serves /readyz and /metrics.
	ProxyMetricsPort = "etcd-proxy-metrics"
)

// Ports maps the name of a listener to its port. The name is that of the component. Further listeners of
// a component have a suffix, such as "store-metrics".
type Ports map[string]int

// APIServerName returns the component name of the i-th API server, counted from 0. It is also the name of
// its port.
func APIServerName(i int) string {
	if i == 0 {
		return "kube-apiserver"
	}
	return "kube-apiserver-" + strconv.Itoa(i)
}

// Address returns the host:port of a listener.
func (p Ports) Address(name string) string {
	return net.JoinHostPort(Loopback, strconv.Itoa(p[name]))
}

// URL returns the https URL of a listener.
func (p Ports) URL(name string) string { return "https://" + p.Address(name) }

// Assign returns a port for every name: the requested port, otherwise the port in p if it is free,
// otherwise any free port. The error wraps ErrPortInUse if a requested port is in use.
func (p Ports) Assign(cluster string, names []string, requested map[string]int) (Ports, error) {
	assigned := Ports{}
	for name, port := range requested {
		if err := checkListen(port); err != nil {
			return nil, fmt.Errorf("%w: %s requires %s:%d (%w); choose another port, or omit the flag to use any free port", ErrPortInUse, name, Loopback, port, err)
		}
		assigned[name] = port
	}
	for _, name := range names {
		if _, done := assigned[name]; done {
			continue
		}
		port, err := assigned.freePort(cluster+"/"+name, p[name])
		if err != nil {
			return nil, err
		}
		assigned[name] = port
	}
	return assigned, nil
}

// freePort returns a port that is neither in use nor in p. It first tries the previous port, if it is not
// 0. Then it tries the range, from a start that depends only on the seed, so that a cluster usually gets
// the same ports each time it is created.
func (p Ports) freePort(seed string, previous int) (int, error) {
	hash := fnv.New32a()
	hash.Write([]byte(seed))
	const span = lastPort - firstPort + 1
	start := int(hash.Sum32() % span)
	candidates := []int{previous}
	for i := range span {
		candidates = append(candidates, firstPort+(start+i)%span)
	}
	for _, port := range candidates {
		if port != 0 && !p.contains(port) && checkListen(port) == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no port between %d and %d is free on %s; stop a process that listens there", firstPort, lastPort, Loopback)
}

func (p Ports) contains(port int) bool {
	for _, assigned := range p {
		if assigned == port {
			return true
		}
	}
	return false
}

// checkListen returns an error if this process cannot listen on the port.
func checkListen(port int) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(Loopback, strconv.Itoa(port)))
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			return op.Err
		}
		return err
	}
	return listener.Close()
}

// componentNames returns the names of the components of a cluster with these settings. Each component
// listens on the port of the same name.
func (s *Settings) componentNames() []string {
	names := append(s.ControllerManagerNames(), append(s.SimulatorNames(), s.Schedulers()...)...)
	for i := range s.APIServers {
		names = append(names, APIServerName(i))
	}
	names = append(names, s.GatewayNames()...)
	if s.Trace {
		names = append(names, ProxyPort)
	}
	return append(names, s.StoreComponents()...)
}

// StorePortNames returns the names of the listeners of all members of all stores; none if k1m runs no store.
func (s *Settings) StorePortNames() (names []string) {
	for _, store := range s.StoreComponents() {
		names = append(names, store, StoreMetricsPort(store))
		if s.Store == StoreEtcd || s.HasStoreReplicas() {
			names = append(names, StorePeerPort(store))
		}
		if s.ForwardsPeers() {
			names = append(names, StorePeerListenPort(store))
		}
	}
	return names
}

// PortNames returns the names of all listeners of a cluster with these settings, sorted.
func (s Settings) PortNames() []string {
	names := append(s.componentNames(), "supervisor")
	for _, scheduler := range s.Schedulers() {
		if s.HasReplicas() {
			names = append(names, ReplicaPort(scheduler))
		}
		if s.SchedulerIntake == IntakeWebhook {
			names = append(names, IntakePort(scheduler))
		}
	}
	for _, gateway := range s.GatewayNames() {
		names = append(names, GatewayMetricsPort(gateway))
	}
	if s.Trace {
		names = append(names, ProxyMetricsPort)
	}
	names = append(names, s.StorePortNames()...)
	slices.Sort(names)
	return slices.Compact(names)
}
