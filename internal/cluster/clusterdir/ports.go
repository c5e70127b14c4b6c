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

	// The range is below Linux's ephemeral ports (32768-60999). An outgoing connection
	// could take an ephemeral port while the component that listens there restarts.
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

// Ports maps the name of a listener to its port. Listeners are named after their
// component; a component with several listeners adds a suffix.
type Ports map[string]int

// APIServerName is the component name of the i-th API server, counted from 0, and the name
// of its port.
func APIServerName(i int) string {
	if i == 0 {
		return "kube-apiserver"
	}
	return "kube-apiserver-" + strconv.Itoa(i)
}

// Address is the host:port of a listener.
func (p Ports) Address(name string) string {
	return net.JoinHostPort(Loopback, strconv.Itoa(p[name]))
}

// URL is the https URL of a listener.
func (p Ports) URL(name string) string { return "https://" + p.Address(name) }

// Assign returns a port for every name: the requested port, otherwise the current port if it
// is still free, otherwise any free port. It returns ErrPortInUse if a requested port is
// in use.
func (p Ports) Assign(cluster string, names []string, wanted map[string]int) (Ports, error) {
	assigned := Ports{}
	for name, port := range wanted {
		if err := checkListen(port); err != nil {
			return nil, fmt.Errorf("%w: %s requires %s:%d (%w); choose another port, or omit the flag to use any free port", ErrPortInUse, name, Loopback, port, err)
		}
		assigned[name] = port
	}
	for _, name := range names {
		if _, done := assigned[name]; done {
			continue
		}
		port, err := assigned.free(cluster+"/"+name, p[name])
		if err != nil {
			return nil, err
		}
		assigned[name] = port
	}
	return assigned, nil
}

// free returns a port that is neither in use nor assigned. It tries the previous port first,
// then the range from a start that depends only on the seed, so that a cluster tends to get
// the same ports each time it is created.
func (p Ports) free(seed string, previous int) (int, error) {
	hash := fnv.New32a()
	hash.Write([]byte(seed))
	const span = lastPort - firstPort + 1
	start := int(hash.Sum32() % span)
	candidates := []int{previous}
	for i := range span {
		candidates = append(candidates, firstPort+(start+i)%span)
	}
	for _, port := range candidates {
		if port != 0 && !p.has(port) && checkListen(port) == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no port between %d and %d is free on %s; stop a process that listens there", firstPort, lastPort, Loopback)
}

func (p Ports) has(port int) bool {
	for _, taken := range p {
		if taken == port {
			return true
		}
	}
	return false
}

// checkListen fails if a listener cannot be opened on the port.
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

// processes lists the components of a cluster with these settings, except the supervisor.
// Each listens on the port of its name.
func (s *Settings) processes() []string {
	names := append([]string{"kube-controller-manager", "kwok"}, s.Schedulers()...)
	for i := range s.APIServers {
		names = append(names, APIServerName(i))
	}
	if s.Trace {
		names = append(names, ProxyPort)
	}
	if s.StoreAddress == "" {
		names = append(names, "store")
	}
	return names
}

// PortNames lists the listeners of a cluster with these settings, sorted by name.
func (s Settings) PortNames() []string {
	names := append(s.processes(), "supervisor")
	for _, scheduler := range s.Schedulers() {
		if s.SharesNodes() {
			names = append(names, ReplicaPort(scheduler))
		}
		if s.SchedulerIntake == IntakeWebhook {
			names = append(names, IntakePort(scheduler))
		}
	}
	if s.Trace {
		names = append(names, ProxyMetricsPort)
	}
	if s.StoreAddress == "" {
		names = append(names, "store-metrics")
		if s.Store == StoreEtcd {
			names = append(names, "store-peer")
		}
	}
	slices.Sort(names)
	return names
}
