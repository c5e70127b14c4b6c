package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// replicaOptions are the flags of a scheduler that is one of several.
type replicaOptions struct {
	bind, advertise, name string
	group, namespace      string
	peers                 []string
	relay                 bool
	fanout                int
	deadline, grace       time.Duration
	quorum                int
	cert, key, ca         string

	// resigned is closed when this replica is to end, so that another leads.
	resigned chan struct{}

	mu      sync.Mutex
	replica *replica.Replica
}

func newReplicaOptions() *replicaOptions { return &replicaOptions{resigned: make(chan struct{})} }

// How long a replica takes at most to say that it ends. Whoever follows it as the leader
// does not wait for longer.
const leavePatience = time.Second

// leave lets other replicas know that this one ends.
func (o *replicaOptions) leave(ctx context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.replica != nil {
		ctx, cancel := context.WithTimeout(ctx, leavePatience)
		defer cancel()
		o.replica.Leave(ctx)
	}
}

// leads is closed when this replica leads; nil if it is not one of several.
func (o *replicaOptions) leads() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.replica == nil {
		return nil
	}
	return o.replica.Leads()
}

func (o *replicaOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.bind, "replica-bind-address", "", "Address and port for other replicas to connect to. If it is set, this is one of several schedulers that share the nodes of the cluster; one of them leads, by the lease of --leader-elect.")
	flags.StringVar(&o.advertise, "replica-advertise-address", "", "Address and port that other replicas are told to connect to; --replica-bind-address if empty.")
	flags.StringVar(&o.name, "replica-name", "", "Name of this replica among the others; its advertised address if empty.")
	flags.StringVar(&o.group, "replica-group", name, "Replicas of one group share the nodes. They find each other by Leases with the label "+membership.GroupLabel+".")
	flags.StringVar(&o.namespace, "replica-namespace", metav1.NamespaceSystem, "Namespace of the Leases of replicas.")
	flags.StringSliceVar(&o.peers, "replica-peers", nil, "All replicas as NAME=ADDRESS:PORT, this one included, instead of Leases. Those with --replica-relay-only as NAME=ADDRESS:PORT/relay.")
	flags.BoolVar(&o.relay, "replica-relay-only", false, "Own no nodes, but hand on what the leader asks, and lead if it comes to that.")
	flags.IntVar(&o.fanout, "replica-fanout", 10, "Replicas that one of them asks itself; with more than that, those that are asked hand on.")
	flags.DurationVar(&o.deadline, "replica-deadline", 2*time.Second, "Time for all replicas to answer a question of the leader.")
	flags.IntVar(&o.quorum, "replica-quorum", 90, "Percentage of the replicas asked after which the others have --replica-grace left, for pods that may go anywhere as far as other pods are concerned.")
	flags.DurationVar(&o.grace, "replica-grace", 100*time.Millisecond, "Time for replicas to answer after --replica-quorum has.")
	flags.StringVar(&o.cert, "replica-cert-file", "", "Certificate of this replica, as server and client. Needed unless all are on loopback.")
	flags.StringVar(&o.key, "replica-key-file", "", "Key of --replica-cert-file.")
	flags.StringVar(&o.ca, "replica-ca-file", "", "Authority that has signed the certificates of all replicas.")
}

// enabled says whether this is one of several replicas.
func (o *replicaOptions) enabled() bool { return o.bind != "" }

func (o *replicaOptions) validate() error {
	if !o.enabled() {
		return nil
	}
	switch {
	case o.fanout < 1:
		return fmt.Errorf("--replica-fanout is %d, and has to be at least 1", o.fanout)
	case o.quorum < 1 || o.quorum > 100:
		return fmt.Errorf("--replica-quorum is %d, and has to be from 1 to 100", o.quorum)
	case o.deadline <= 0 || o.grace < 0:
		return errors.New("--replica-deadline has to be more than zero, and --replica-grace no less")
	case (o.cert == "") != (o.key == "") || (o.cert == "") != (o.ca == ""):
		return errors.New("--replica-cert-file, --replica-key-file and --replica-ca-file go together")
	case o.advertise == "" && everywhere(o.bind):
		return fmt.Errorf("--replica-bind-address %q is not where others reach this replica; say so with --replica-advertise-address", o.bind)
	}
	return nil
}

// everywhere says whether an address is that of all interfaces: then it is the same on every
// machine, and names nobody.
func everywhere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "" || net.ParseIP(host).IsUnspecified())
}

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

// addresses are those of --replica-peers, which all replicas have alike.
func (o *replicaOptions) addresses(self membership.Member) (membership.Addresses, error) {
	addresses, known := membership.Addresses{self}, map[string]string{}
	for _, peer := range o.peers {
		name, address, ok := strings.Cut(peer, "=")
		address, relay := strings.CutSuffix(address, "/relay")
		if _, _, err := net.SplitHostPort(address); !ok || name == "" || err != nil {
			return nil, fmt.Errorf("--replica-peers has %q, and should have NAME=ADDRESS:PORT", peer)
		}
		if known[name] != "" {
			return nil, fmt.Errorf("--replica-peers has %s twice; give each replica a --replica-name of its own", name)
		}
		known[name] = address
		if name != self.Name {
			addresses = append(addresses, membership.Member{Name: name, Address: address, Relay: relay})
		} else if relay != self.Relay {
			return nil, fmt.Errorf("--replica-peers has %q, and --replica-relay-only of this replica says otherwise", peer)
		}
	}
	if at := known[self.Name]; at != self.Address {
		return nil, fmt.Errorf("--replica-peers has %s at %q, but this replica is at %q: set --replica-advertise-address, or --replica-name if it is another", self.Name, at, self.Address)
	}
	return addresses, nil
}

// attachReplica makes a scheduler that has a share of the nodes.
func (o *replicaOptions) attachReplica(ctx context.Context, opts *options.Options, plugins []Option) (*schedulerconfig.CompletedConfig, *upstream.Scheduler, error) {
	cfg, sched, feeds, err := setup(ctx, opts, plugins)
	if err != nil {
		return nil, nil, err
	}
	replica, err := o.attach(ctx, cfg, sched, feeds)
	if err != nil {
		return nil, nil, err
	}
	o.mu.Lock()
	o.replica = replica
	o.mu.Unlock()
	return cfg, sched, nil
}

// attach makes a scheduler one of several.
func (o *replicaOptions) attach(ctx context.Context, cfg *schedulerconfig.CompletedConfig, sched *upstream.Scheduler, feeds replica.Feeds) (*replica.Replica, error) {
	listener, err := net.Listen("tcp", o.bind)
	if err != nil {
		return nil, fmt.Errorf("listening for other replicas: %w", err)
	}
	self := o.self(listener)
	var certificates *wire.TLS
	if o.cert != "" {
		if certificates, err = wire.NewTLS(ctx, o.cert, o.key, o.ca); err != nil {
			return nil, err
		}
	}
	var discovery membership.Discovery = membership.NewLeases(cfg.Client, o.namespace, o.group, self)
	if len(o.peers) > 0 {
		if discovery, err = o.addresses(self); err != nil {
			return nil, err
		}
	}
	watching := rest.CopyConfig(cfg.KubeConfig)
	watching.Dial = pacing.Dial
	changes, err := kubernetes.NewForConfig(watching)
	if err != nil {
		return nil, fmt.Errorf("a client to watch nodes and pods: %w", err)
	}
	profiles := attach.Profiles(&cfg.ComponentConfig)
	attached := replica.Options{
		Self: self, Listener: listener, TLS: certificates, Discovery: discovery, Fanout: o.fanout,
		Patience: wire.Patience{Deadline: o.deadline, Quorum: o.quorum, Grace: o.grace}, Config: digest(profiles),
	}
	if cfg.LeaderElection != nil {
		attached.Elected, attached.Resign = true, sync.OnceFunc(func() { close(o.resigned) })
	}
	replica, err := replica.Attach(ctx, sched, profiles, changes, cfg.Client, feeds, attached,
		func(ctx context.Context) (int64, error) { return leaderTerm(ctx, cfg) })
	if err != nil {
		return nil, err
	}
	if cfg.LeaderElection != nil {
		cfg.LeaderElection.Lock = candidate{cfg.LeaderElection.Lock, replica.MayLead}
	}
	return replica, nil
}

// candidate is the lock of a replica that takes it only if it may lead.
type candidate struct {
	resourcelock.Interface
	may func(context.Context) error
}

// Create takes the lock for the first time.
func (c candidate) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := c.may(ctx); err != nil {
		return err
	}
	return c.Interface.Create(ctx, record)
}

// Update takes, keeps or releases the lock.
func (c candidate) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == c.Identity() {
		if err := c.may(ctx); err != nil {
			return err
		}
	}
	return c.Interface.Update(ctx, record)
}

// digest is the same for replicas that decide alike.
func digest(profiles []config.KubeSchedulerProfile) string {
	data, err := json.Marshal(profiles)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// leaderTerm is how many leaders there were, by the lease that this one holds. Without leader
// election it is the time: whoever starts later leads.
func leaderTerm(ctx context.Context, cfg *schedulerconfig.CompletedConfig) (int64, error) {
	election := cfg.ComponentConfig.LeaderElection
	if cfg.LeaderElection == nil {
		return time.Now().Unix(), nil
	}
	lease, err := cfg.Client.CoordinationV1().Leases(election.ResourceNamespace).Get(ctx, election.ResourceName, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	transitions := int64(1)
	if lease.Spec.LeaseTransitions != nil {
		transitions += int64(*lease.Spec.LeaseTransitions)
	}
	return transitions, nil
}

// setup does what kube-scheduler's own does (cmd/kube-scheduler/app/server.go), but
// with informers of nodes and pods that other replicas feed.
func setup(ctx context.Context, opts *options.Options, plugins []Option) (*schedulerconfig.CompletedConfig, *upstream.Scheduler, replica.Feeds, error) {
	none := replica.Feeds{}
	defaults, err := latest.Default()
	if err != nil {
		return nil, nil, none, err
	}
	opts.ComponentConfig = defaults
	if err := errors.Join(opts.Validate()...); err != nil {
		return nil, nil, none, err
	}
	cfg, err := opts.Config(ctx)
	if err != nil {
		return nil, nil, none, err
	}
	completed := cfg.Complete()
	factory, feeds := replica.NewFactory(completed.Client)
	completed.InformerFactory = factory
	registry := runtime.Registry{}
	for _, plugin := range plugins {
		if err := plugin(registry); err != nil {
			return nil, nil, none, err
		}
	}
	var profiles []config.KubeSchedulerProfile
	c := &completed.ComponentConfig
	sched, err := upstream.New(ctx, completed.Client, completed.InformerFactory, completed.DynInformerFactory,
		func(name string) events.EventRecorderLogger { return completed.EventBroadcaster.NewRecorder(name) },
		upstream.WithComponentConfigVersion(c.TypeMeta.APIVersion),
		upstream.WithKubeConfig(completed.KubeConfig),
		upstream.WithProfiles(c.Profiles...),
		upstream.WithPercentageOfNodesToScore(c.PercentageOfNodesToScore),
		upstream.WithFrameworkOutOfTreeRegistry(registry),
		upstream.WithPodMaxBackoffSeconds(c.PodMaxBackoffSeconds),
		upstream.WithPodInitialBackoffSeconds(c.PodInitialBackoffSeconds),
		upstream.WithPodMaxInUnschedulablePodsDuration(completed.PodMaxInUnschedulablePodsDuration),
		upstream.WithExtenders(c.Extenders...),
		upstream.WithParallelism(c.Parallelism),
		upstream.WithBuildFrameworkCapturer(func(profile config.KubeSchedulerProfile) { profiles = append(profiles, profile) }),
	)
	if err != nil {
		return nil, nil, none, err
	}
	return &completed, sched, feeds, options.LogOrWriteConfig(klog.FromContext(ctx), opts.WriteConfigTo, c, profiles)
}

// serve answers other replicas until the context ends, once the scheduler is complete;
// without that the process is of no use.
func (o *replicaOptions) serve(ctx context.Context) {
	o.mu.Lock()
	replica := o.replica
	o.mu.Unlock()
	if err := replica.Run(ctx); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "This replica cannot be one of several, and ends")
		klog.Flush()
		os.Exit(1)
	}
}
