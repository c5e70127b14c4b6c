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

	// Below Linux's ephemeral range (32768-60999): a port from there could be
	// taken by any outgoing connection while its component restarts.
	firstPort = 20000
	lastPort  = 31999
)

// ErrPortInUse says that a port the user insists on is taken.
var ErrPortInUse = errors.New("port in use")

// What the ports of the proxy are called: before the store, and its own pages.
const (
	ProxyPort        = "etcd-proxy"
	ProxyMetricsPort = "etcd-proxy-metrics"
)

// Ports maps what listens to its port.
type Ports map[string]int

// PortName is what an API server's port is called.
func APIServerName(i int) string {
	if i == 0 {
		return "kube-apiserver"
	}
	return "kube-apiserver-" + strconv.Itoa(i)
}

// Address is where a listener is reached.
func (p Ports) Address(name string) string {
	return net.JoinHostPort(Loopback, strconv.Itoa(p[name]))
}

// URL is where a listener is reached by TLS.
func (p Ports) URL(name string) string { return "https://" + p.Address(name) }

// Assign gives every name a port: the wanted one, else the one it had if that
// is still free, else any free one.
func (p Ports) Assign(cluster string, names []string, wanted map[string]int) (Ports, error) {
	assigned := Ports{}
	for name, port := range wanted {
		if err := listenable(port); err != nil {
			return nil, fmt.Errorf("%w: %s wants %s:%d (%w); choose another or leave it out for a free one", ErrPortInUse, name, Loopback, port, err)
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

// free tries the port of before, then others from a place that depends on the
// name only, so that a cluster tends to the same ports.
func (p Ports) free(seed string, before int) (int, error) {
	hash := fnv.New32a()
	hash.Write([]byte(seed))
	const span = lastPort - firstPort + 1
	start := int(hash.Sum32() % span)
	candidates := []int{before}
	for i := range span {
		candidates = append(candidates, firstPort+(start+i)%span)
	}
	for _, port := range candidates {
		if port != 0 && !p.has(port) && listenable(port) == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no port between %d and %d is free on %s; stop something that listens there", firstPort, lastPort, Loopback)
}

func (p Ports) has(port int) bool {
	for _, taken := range p {
		if taken == port {
			return true
		}
	}
	return false
}

func listenable(port int) error {
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

// processes are all that run in a cluster with these settings, but for the supervisor. Each
// listens on a port of its name.
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

// PortNames lists what listens in a cluster with these settings.
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
