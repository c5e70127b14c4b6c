package app

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// replicaOptions are the flags --replica-*.
type replicaOptions struct {
	bind, advertise, name string
	group, namespace      string
	peers                 []string
	relay, waitForAll     bool
	fanout                int
	deadline, grace       time.Duration
	quorum                int
	cert, key, ca         string
}

func (o *replicaOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.bind, "replica-bind-address", "", "Address and port on which this replica serves other replicas. If set, this process is one of several replicas that share the nodes of the cluster; the leader is the holder of the leader election Lease (see --leader-elect).")
	flags.StringVar(&o.advertise, "replica-advertise-address", "", "Address and port at which other replicas reach this one. Default: --replica-bind-address.")
	flags.StringVar(&o.name, "replica-name", "", "Name of this replica, unique in its group. Default: derived from the advertised address.")
	flags.StringVar(&o.group, "replica-group", name, "Name of the group of replicas that share the nodes. They find each other by Leases with the label "+membership.GroupLabel+".")
	flags.StringVar(&o.namespace, "replica-namespace", metav1.NamespaceSystem, "Namespace of the replicas' Leases.")
	flags.StringSliceVar(&o.peers, "replica-peers", nil, "List of all replicas, including this one, as NAME=ADDRESS:PORT, or NAME=ADDRESS:PORT/relay for a replica with --replica-relay-only. With this list, no Leases are used.")
	flags.BoolVar(&o.relay, "replica-relay-only", false, "Own no nodes: only forward queries of the leader and merge answers, and lead if elected.")
	flags.IntVar(&o.fanout, "replica-fanout", 10, "Maximal number of replicas that one replica queries directly; further replicas are queried through these.")
	flags.DurationVar(&o.deadline, "replica-deadline", 2*time.Second, "Time limit for the answers of all replicas to a query of the leader.")
	flags.IntVar(&o.quorum, "replica-quorum", 90, "Percentage of queried replicas. After so many have answered, the others get only --replica-grace more time. Applies to pods without spread constraints and inter-pod affinity.")
	flags.DurationVar(&o.grace, "replica-grace", 100*time.Millisecond, "Minimal additional time for answers after --replica-quorum was reached.")
	flags.BoolVar(&o.waitForAll, "replica-wait-for-all", false, "Place no pod before all replicas that own nodes have answered. While a replica does not answer, and is not replaced yet, no pod is placed. Without this flag, pods without constraints on other pods are placed on the nodes of the replicas that answer.")
	flags.StringVar(&o.cert, "replica-cert-file", "", "TLS certificate of this replica, as server and client. Required unless --replica-bind-address is on loopback.")
	flags.StringVar(&o.key, "replica-key-file", "", "Private key of --replica-cert-file.")
	flags.StringVar(&o.ca, "replica-ca-file", "", "File with the CA that has signed the certificates of all replicas.")
}

// enabled reports whether this process is one of several replicas.
func (o *replicaOptions) enabled() bool { return o.bind != "" }

// validate returns an error for the first invalid flag.
func (o *replicaOptions) validate() error {
	if !o.enabled() {
		return nil
	}
	switch {
	case o.fanout < 1:
		return fmt.Errorf("--replica-fanout %d: must be at least 1", o.fanout)
	case o.quorum < 1 || o.quorum > 100:
		return fmt.Errorf("--replica-quorum %d: must be between 1 and 100", o.quorum)
	case o.deadline <= 0 || o.deadline > wire.MaxDeadline:
		return fmt.Errorf("--replica-deadline %v: must be positive and at most %v", o.deadline, wire.MaxDeadline)
	case o.grace < 0:
		return fmt.Errorf("--replica-grace %v: must not be negative", o.grace)
	case (o.cert == "") != (o.key == "") || (o.cert == "") != (o.ca == ""):
		return errors.New("set all of --replica-cert-file, --replica-key-file and --replica-ca-file, or none")
	case o.advertise == "" && unspecified(o.bind):
		return fmt.Errorf("--replica-bind-address %q: other replicas cannot connect to an unspecified address; set --replica-advertise-address", o.bind)
	}
	return nil
}

// unspecified reports whether the host of an address means all interfaces, such as 0.0.0.0. Other replicas cannot
// connect to such an address.
func unspecified(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "" || net.ParseIP(host).IsUnspecified())
}

// self returns this replica as a member. Its default address is that of the listener.
func (o *replicaOptions) self(listener net.Listener) membership.Member {
	self := membership.Member{Name: o.name, Address: o.advertise, Relay: o.relay}
	if self.Address == "" {
		self.Address = listener.Addr().String()
	}
	if self.Name == "" {
		self.Name = strings.NewReplacer(":", "-", "[", "", "]", "").Replace(self.Address)
	}
	return self
}

// addresses parses --replica-peers. It returns an error if the list does not match this replica.
func (o *replicaOptions) addresses(self membership.Member) (membership.Addresses, error) {
	addresses, addressOf := membership.Addresses{self}, map[string]string{}
	for _, peer := range o.peers {
		name, address, ok := strings.Cut(peer, "=")
		address, relay := strings.CutSuffix(address, "/relay")
		if _, _, err := net.SplitHostPort(address); !ok || name == "" || err != nil {
			return nil, fmt.Errorf("--replica-peers %q: must be NAME=ADDRESS:PORT", peer)
		}
		if addressOf[name] != "" {
			return nil, fmt.Errorf("--replica-peers: duplicate name %s; give each replica its own --replica-name", name)
		}
		addressOf[name] = address
		if name != self.Name {
			addresses = append(addresses, membership.Member{Name: name, Address: address, Relay: relay})
		} else if relay != self.Relay {
			return nil, fmt.Errorf("--replica-peers %q: does not match --replica-relay-only of this replica", peer)
		}
	}
	if at := addressOf[self.Name]; at != self.Address {
		return nil, fmt.Errorf("--replica-peers: %s has address %q, but this replica has %q: set --replica-advertise-address or --replica-name", self.Name, at, self.Address)
	}
	return addresses, nil
}
