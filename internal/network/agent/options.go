package agent

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/network/address"
	"github.com/k8s-1m/k8s-1m/internal/network/claim"
	"github.com/k8s-1m/k8s-1m/internal/network/cni"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// How a provider delivers packets for the prefix of a node.
const (
	// ModeRouted: the provider has a route to the node.
	ModeRouted = "routed"
	// ModeOnLink: the provider asks on the link who has an address.
	ModeOnLink = "on-link"
	// ModeOneMAC is as ModeOnLink, and the provider drops frames with other Ethernet addresses than that of the node.
	ModeOneMAC = "one-mac"
)

// Modes are all modes.
var Modes = []string{ModeRouted, ModeOnLink, ModeOneMAC}

// PrefixFromUplink is the value of --prefix that takes the prefix from the addresses of the uplink.
const PrefixFromUplink = "uplink"

// Options are the flags of the agent.
type Options struct {
	Node, Uplink, Bridge, Mode                string
	Prefix, Pool                              string
	Claims, Kubeconfig, Namespace             string
	ReuseAfter                                time.Duration
	ConfigDir, ResultsDir, LeasesDir, StateAt string
	MTU, NeighbourEntries                     int
	NoTrack, NoBridgeNetfilter                bool
	MetricsAddress                            string
}

// Values of --claims besides the path of a directory.
const (
	claimsNone       = "none"
	claimsKubernetes = "kubernetes"
)

// DefaultOptions returns the values of flags that are not set.
func DefaultOptions() *Options {
	name, _ := os.Hostname()
	return &Options{
		Node: strings.ToLower(name), Uplink: "eth0", Bridge: "cni0", Mode: ModeRouted, Claims: claimsNone, Namespace: claim.DefaultNamespace,
		ReuseAfter: claim.DefaultReuseAfter, ConfigDir: cni.DefaultConfigDir, ResultsDir: cni.DefaultResultsDir, LeasesDir: cni.DefaultLeasesDir,
		StateAt: "/var/lib/network-agent/state.json", NeighbourEntries: 16384, MetricsAddress: "[::1]:9187",
	}
}

// AddFlags binds the options to flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Node, "node", o.Node, "name of the node, which holds the claim of the prefix")
	fs.StringVar(&o.Uplink, "uplink", o.Uplink, "link to the provider")
	fs.StringVar(&o.Bridge, "bridge", o.Bridge, "bridge of the pods; it is created")
	fs.StringVar(&o.Mode, "mode", o.Mode, "how the provider delivers packets for the prefix: "+strings.Join(Modes, "|"))
	fs.StringVar(&o.Prefix, "prefix", o.Prefix, "prefix that the provider gave to the node, of 64 to 96 bits, or uplink: that of the first address of the uplink")
	fs.StringVar(&o.Pool, "pool", o.Pool, "in place of --prefix: prefix of the cluster, of which the node takes a /96; needs --claims")
	fs.StringVar(&o.Claims, "claims", o.Claims, "where nodes record who has which prefix: none, kubernetes (a Lease each), or the path of a directory that all nodes share")
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "kubeconfig for --claims kubernetes; empty in a pod")
	fs.StringVar(&o.Namespace, "claims-namespace", o.Namespace, "namespace of the Leases")
	fs.DurationVar(&o.ReuseAfter, "reuse-after", o.ReuseAfter, "time after which another node may get the prefix of a node that left or was deleted")
	fs.StringVar(&o.ConfigDir, "cni-config-dir", o.ConfigDir, "directory of the runtime's CNI configurations; the agent writes "+cni.ConfigFile)
	fs.StringVar(&o.ResultsDir, "cni-results-dir", o.ResultsDir, "directory in which the runtime records the addresses of pods")
	fs.StringVar(&o.LeasesDir, "cni-leases-dir", o.LeasesDir, "directory in which the plugin host-local records addresses; it must survive a restart of the node")
	fs.StringVar(&o.StateAt, "state", o.StateAt, "file in which the agent keeps its prefix")
	fs.IntVar(&o.MTU, "mtu", o.MTU, "MTU of the pods' links; 0 for that of the uplink")
	fs.IntVar(&o.NeighbourEntries, "neighbour-entries", o.NeighbourEntries, "least limit of the kernel's table of neighbours; a higher limit is kept")
	fs.BoolVar(&o.NoBridgeNetfilter, "no-bridge-netfilter", o.NoBridgeNetfilter, "keep frames of pods out of the filters of IP until they leave the bridge; not with kube-proxy, whose Services need it between pods of a node")
	fs.BoolVar(&o.NoTrack, "no-track", o.NoTrack, "keep packets of pods out of connection tracking; only for clusters without kube-proxy, which needs it")
	fs.StringVar(&o.MetricsAddress, "metrics-address", o.MetricsAddress, "address of /metrics, /healthz and /readyz; empty for none")
}

// Validate returns the first invalid option as a usage error.
func (o *Options) Validate() error {
	switch {
	case o.Node == "":
		return usage.Errorf("--node: the name of the node is missing")
	case o.Uplink == "" || o.Bridge == "" || o.Uplink == o.Bridge:
		return usage.Errorf("--uplink %q, --bridge %q: name two links", o.Uplink, o.Bridge)
	case len(o.Bridge) > 15 || strings.ContainsAny(o.Bridge, "/ "):
		return usage.Errorf("--bridge %q: not a name of a link", o.Bridge)
	case !slices.Contains(Modes, o.Mode):
		return usage.Errorf("--mode %q: choose %s", o.Mode, strings.Join(Modes, ", "))
	case (o.Prefix == "") == (o.Pool == ""):
		return usage.Errorf("set either --prefix, if the provider gives each node a prefix, or --pool")
	case o.Pool != "" && o.Claims == claimsNone:
		return usage.Errorf("--pool needs --claims, so that no two nodes take the same prefix")
	case o.Claims == "":
		return usage.Errorf("--claims: choose none, kubernetes or a directory")
	case o.ReuseAfter < 0:
		return usage.Errorf("--reuse-after %s: must not be negative", o.ReuseAfter)
	case o.MTU != 0 && (o.MTU < 1280 || o.MTU > 65535):
		return usage.Errorf("--mtu %d: IPv6 needs 1280 to 65535", o.MTU)
	case o.NeighbourEntries < 1:
		return usage.Errorf("--neighbour-entries %d: must be positive", o.NeighbourEntries)
	}
	if o.MetricsAddress != "" {
		if _, _, err := net.SplitHostPort(o.MetricsAddress); err != nil {
			return usage.Errorf("--metrics-address %q: write it as [::1]:9187", o.MetricsAddress)
		}
	}
	return o.validatePrefixes()
}

func (o *Options) validatePrefixes() error {
	for _, p := range []struct {
		flag, text string
		max        int
	}{{"--prefix", o.Prefix, address.PodBits}, {"--pool", o.Pool, address.PodBits}} {
		if p.text == "" || p.flag == "--prefix" && p.text == PrefixFromUplink {
			continue
		}
		parsed, err := netip.ParsePrefix(p.text)
		if err == nil {
			err = address.CheckPrefix(parsed, p.max)
		}
		if err != nil {
			return usage.Errorf("%s %q: %v", p.flag, p.text, err)
		}
	}
	return nil
}

// answers reports whether the provider asks for the addresses of pods.
func (o *Options) answers() bool { return o.Mode != ModeRouted }
