package app

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/network/claim"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/nat64"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/prefix64"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// options are the flags of "network-gateway serve".
type options struct {
	listen, certificate, key, clientCA, clientCRL string

	tunnelPort     uint16
	tunnelHost     string
	privateKeyFile string
	link           string
	mtu            int

	prefix, ports                string
	pool                         []string
	masqueradePool, allowPrivate bool
	masqueradeRange              string
	deny                         []string

	maxNodes, maxConnections             int
	nodeConnections, nodePorts, nodeRate int
	ttl                                  time.Duration

	kubeconfig, nodesFile, selector, annotation, claims string
	inCluster                                           bool

	dnsListen, dnsUpstreams, dnsClients []string
	dnsTimeout                          time.Duration
	dnsQueries                          int

	metricsListen string
	metricsNodes  int
	stateFile     string
	stateInterval time.Duration
}

func (o *options) add(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "listen", "[::]:8443", "address on which nodes register (HTTPS)")
	f.StringVar(&o.certificate, "tls-cert-file", "", "certificate of the gateway (required)")
	f.StringVar(&o.key, "tls-private-key-file", "", "key of this certificate (required)")
	f.StringVar(&o.clientCA, "client-ca-file", "", "CA of the client certificates of kubelets (required)")
	f.StringVar(&o.clientCRL, "client-crl-file", "", "revocation lists of this CA in PEM; read again when it changes")

	f.Uint16Var(&o.tunnelPort, "tunnel-port", 51820, "UDP port of the tunnels")
	f.StringVar(&o.tunnelHost, "tunnel-host", "", "address of the tunnels that nodes are told (default: that which they register at)")
	f.StringVar(&o.privateKeyFile, "private-key-file", "/var/lib/network-gateway/private.key", "WireGuard key of the gateway; made if it does not exist")
	f.StringVar(&o.link, "link", "ng0", "name of the TUN device between the gateway and the kernel")
	f.IntVar(&o.mtu, "mtu", 1420, "longest packet in a tunnel, in bytes; the network must carry 80 bytes more")

	f.StringVar(&o.prefix, "nat64-prefix", prefix64.WellKnown.String(), "IPv6 prefix that stands for the IPv4 addresses")
	f.StringSliceVar(&o.pool, "nat64-pool", nil, "IPv4 addresses or prefixes that servers see; NAT64 is off without")
	f.StringVar(&o.ports, "nat64-ports", "1024-65535", "ports of each address of the pool")
	f.BoolVar(&o.masqueradePool, "nat64-masquerade", false, "let the kernel replace the addresses of the pool by that of the outgoing link, for a pool that is routed nowhere")
	f.StringVar(&o.masqueradeRange, "masquerade-range", "", "IPv4 prefix from which each node gets an address in the tunnel, which the kernel masquerades; off without")
	f.BoolVar(&o.allowPrivate, "allow-private", false, "let nodes reach private and reserved IPv4 addresses; not with 64:ff9b::/96")
	f.StringSliceVar(&o.deny, "deny", nil, "more IPv4 prefixes that nodes may not reach")

	f.IntVar(&o.maxNodes, "max-nodes", 16384, "most nodes that are connected at a time")
	f.IntVar(&o.maxConnections, "max-connections", 1<<20, "most connections of NAT64 at a time")
	f.IntVar(&o.nodeConnections, "node-connections", 8192, "most connections of a node at a time")
	f.IntVar(&o.nodePorts, "node-ports", 4096, "most ports of the pool that a node has at a time")
	f.IntVar(&o.nodeRate, "node-rate", 1000, "new connections a second of a node")
	f.DurationVar(&o.ttl, "registration-ttl", 15*time.Minute, "for how long a registration holds; nodes renew it after a third")

	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of a user that may list and watch nodes")
	f.BoolVar(&o.inCluster, "in-cluster", false, "use the service account of the gateway's pod instead")
	f.StringVar(&o.nodesFile, "nodes-file", "", "file with nodes and prefixes instead of a cluster; read again when it changes")
	f.StringVar(&o.selector, "node-selector", "", "label selector of the nodes of this gateway")
	f.StringVar(&o.claims, "claims-namespace", "", "namespace of the Leases with which network-agent claims prefixes, such as "+claim.DefaultNamespace+"; not read if empty")
	f.StringVar(&o.annotation, "prefix-annotation", "", "annotation of a Node with IPv6 prefixes, separated by commas, besides spec.podCIDRs; nodes may change their own")

	f.StringSliceVar(&o.dnsListen, "dns64-listen", nil, "addresses on which DNS64 answers, such as [2001:db8::53]:53; off without")
	f.StringSliceVar(&o.dnsUpstreams, "dns64-upstream", nil, "resolvers that DNS64 asks, such as [2001:db8::1]:53, in order")
	f.StringSliceVar(&o.dnsClients, "dns64-clients", nil, "prefixes of the clients that DNS64 answers (default: all)")
	f.DurationVar(&o.dnsTimeout, "dns64-timeout", 2*time.Second, "time for an answer of one resolver")
	f.IntVar(&o.dnsQueries, "dns64-queries", 4096, "most queries of DNS64 at a time")

	f.StringVar(&o.metricsListen, "metrics-listen", "127.0.0.1:9547", "address of /metrics, /nodes and /healthz (HTTP); off if empty")
	f.IntVar(&o.metricsNodes, "metrics-nodes", 50, "nodes with metrics of their own: those with the most connections. /nodes has all")
	f.StringVar(&o.stateFile, "state-file", "/var/lib/network-gateway/state", "file that keeps nodes and connections over a restart; off if empty")
	f.DurationVar(&o.stateInterval, "state-interval", 30*time.Second, "time between writes of this file")
}

// settings are options that have been checked.
type settings struct {
	options
	nat64      *nat64.Config
	masquerade netip.Prefix
	denied     []netip.Prefix
	dnsClients []netip.Prefix
	prefix     prefix64.Prefix
}

func (o options) check() (*settings, error) {
	s := &settings{options: o}
	for flag, value := range map[string]string{"--tls-cert-file": o.certificate, "--tls-private-key-file": o.key, "--client-ca-file": o.clientCA} {
		if value == "" {
			return nil, usage.Errorf("%s is required", flag)
		}
	}
	if sources := count(o.kubeconfig != "", o.inCluster, o.nodesFile != ""); sources != 1 {
		return nil, usage.Errorf("where do nodes come from? give one of --kubeconfig, --in-cluster and --nodes-file")
	}
	if len(o.pool) == 0 && o.masqueradeRange == "" {
		return nil, usage.Errorf("nothing to do: give --nat64-pool, --masquerade-range or both")
	}
	if len(o.dnsListen) > 0 && len(o.dnsUpstreams) == 0 {
		return nil, usage.Errorf("--dns64-listen needs --dns64-upstream")
	}
	if o.mtu < 1308 || o.mtu > 65000 {
		return nil, usage.Errorf("--mtu %d: use 1308 to 65000; IPv6 needs 1280 bytes, and the translation up to 28", o.mtu)
	}
	if o.maxNodes < 1 || o.ttl < 3*time.Second || o.stateInterval < time.Second || o.metricsNodes < 0 || o.dnsQueries < 1 || o.nodeConnections < 1 || o.nodeRate < 1 {
		return nil, usage.Errorf("--max-nodes, --dns64-queries and the limits of a node must be positive, --registration-ttl at least 3s, --state-interval at least 1s")
	}
	if err := s.addresses(); err != nil {
		return nil, err
	}
	return s, s.translation()
}

func count(conditions ...bool) (n int) {
	for _, c := range conditions {
		if c {
			n++
		}
	}
	return n
}

// addresses reads prefixes.
func (s *settings) addresses() error {
	var err error
	if s.prefix, err = prefix64.Parse(s.options.prefix); err != nil {
		return usage.Errorf("--nat64-prefix: %v", err)
	}
	if s.allowPrivate && s.prefix == prefix64.WellKnown {
		return usage.Errorf("--allow-private: %v may not stand for private addresses (RFC 6052); choose a prefix of your own with --nat64-prefix", s.prefix)
	}
	s.denied = nat64.NeverReachable()
	if !s.allowPrivate {
		s.denied = append(s.denied, nat64.NotGlobal()...)
	}
	more, err := parsePrefixes("--deny", s.deny)
	if err != nil {
		return err
	}
	for _, prefix := range more {
		if !prefix.Addr().Is4() {
			return usage.Errorf("--deny %v: not an IPv4 prefix", prefix)
		}
	}
	s.denied = append(s.denied, more...)
	if s.dnsClients, err = parsePrefixes("--dns64-clients", s.options.dnsClients); err != nil {
		return err
	}
	if s.masqueradeRange != "" {
		s.masquerade, err = netip.ParsePrefix(s.masqueradeRange)
		if err != nil || !s.masquerade.Addr().Is4() || s.masquerade.Masked() != s.masquerade || s.masquerade.Bits() < 8 || s.masquerade.Bits() > 30 {
			return usage.Errorf("--masquerade-range %q: use an IPv4 prefix such as 10.64.0.0/16", s.masqueradeRange)
		}
	}
	return nil
}

func parsePrefixes(flag string, texts []string) (parsed []netip.Prefix, err error) {
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if address, errAddress := netip.ParseAddr(text); errAddress == nil {
			prefix, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil {
			return nil, usage.Errorf("%s %q: use a prefix such as 192.0.2.0/28, or an address", flag, text)
		}
		parsed = append(parsed, prefix)
	}
	return parsed, nil
}

// translation makes the configuration of NAT64.
func (s *settings) translation() error {
	if len(s.pool) == 0 {
		return nil
	}
	pool, err := parsePrefixes("--nat64-pool", s.pool)
	if err != nil {
		return err
	}
	c := nat64.Default(s.prefix, pool...)
	first, last, ok := strings.Cut(s.ports, "-")
	low, errLow := strconv.ParseUint(first, 10, 16)
	high, errHigh := strconv.ParseUint(last, 10, 16)
	if !ok || errLow != nil || errHigh != nil {
		return usage.Errorf("--nat64-ports %q: use a range such as 1024-65535", s.ports)
	}
	c.FirstPort, c.LastPort = uint16(low), uint16(high)
	c.MTU6, c.MaxSessions, c.Denied = s.mtu, s.maxConnections, s.denied
	c.Limits = nat64.Limits{Sessions: s.nodeConnections, Ports: s.nodePorts, NewPerSecond: s.nodeRate}
	for _, prefix := range pool {
		if s.masquerade.IsValid() && prefix.Overlaps(s.masquerade) {
			return usage.Errorf("--nat64-pool %v and --masquerade-range %v overlap", prefix, s.masquerade)
		}
	}
	if err := c.Validate(); err != nil {
		return usage.Errorf("%v", err)
	}
	s.nat64 = &c
	return nil
}

// linkMTU is the MTU of the TUN device: what is not longer fits into the tunnel after the translation.
func (s *settings) linkMTU() int {
	if s.nat64 == nil {
		return s.mtu
	}
	return s.mtu - nat64.Headroom
}
