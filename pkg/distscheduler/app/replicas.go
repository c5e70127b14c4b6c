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
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// replicas runs this process as one of several replicas, if the flags --replica-* enable this.
type replicas struct {
	replicaOptions
	// resigned is closed when this process must stop so that another replica becomes leader.
	resigned chan struct{}

	mu      sync.Mutex
	replica *replica.Replica
}

func newReplicas() *replicas { return &replicas{resigned: make(chan struct{})} }

// leaveTimeout bounds the time of leave. The process keeps the leader election lock meanwhile, so the next leader
// starts only after that.
const leaveTimeout = time.Second

// leave prepares the stop of this replica: it waits for binds in progress, and withdraws the replica from
// discovery.
func (r *replicas) leave(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.replica != nil {
		ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
		defer cancel()
		r.replica.Leave(ctx)
	}
}

// leads returns a channel that is closed when this replica becomes the leader; nil without
// replicas.
func (r *replicas) leads() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.replica == nil {
		return nil
	}
	return r.replica.Leads()
}

// attachReplica creates a scheduler that owns a share of the nodes.
func (r *replicas) attachReplica(ctx context.Context, opts *options.Options, plugins []Option) (*schedulerconfig.CompletedConfig, *kubescheduler.Scheduler, error) {
	guard := &replica.BindGuard{}
	cfg, sched, feeds, err := setup(ctx, opts, plugins, guard)
	if err != nil {
		return nil, nil, err
	}
	attached, err := r.attach(ctx, cfg, sched, feeds)
	if err != nil {
		return nil, nil, err
	}
	guard.SetChecks(attached.MayBind, attached.MayWrite)
	r.mu.Lock()
	r.replica = attached
	r.mu.Unlock()
	return cfg, sched, nil
}

// attach makes a scheduler one of several replicas.
func (r *replicas) attach(ctx context.Context, cfg *schedulerconfig.CompletedConfig, sched *kubescheduler.Scheduler, feeds replica.Feeds) (*replica.Replica, error) {
	listener, err := net.Listen("tcp", r.bind)
	if err != nil {
		return nil, fmt.Errorf("listening for other replicas: %w", err)
	}
	self := r.self(listener)
	var certificates *wire.TLS
	if r.cert != "" {
		identity := membership.Identity{Group: r.group, Name: self.Name}
		if certificates, err = wire.NewTLS(ctx, identity, r.cert, r.key, r.ca); err != nil {
			return nil, err
		}
	}
	// Not guarded, so that a replica that led can find out who leads now.
	leaseClient, err := kubernetes.NewForConfig(rest.AddUserAgent(rest.CopyConfig(cfg.KubeConfig), "replica"))
	if err != nil {
		return nil, fmt.Errorf("creating the client that reads and writes Leases: %w", err)
	}
	var discovery membership.Discovery = membership.NewLeases(leaseClient, r.namespace, r.group, self)
	if len(r.peers) > 0 {
		if discovery, err = r.addresses(self); err != nil {
			return nil, err
		}
	}
	paced := rest.CopyConfig(cfg.KubeConfig)
	paced.Dial = pacing.Dial
	watchClient, err := kubernetes.NewForConfig(paced)
	if err != nil {
		return nil, fmt.Errorf("creating the client that watches nodes and pods: %w", err)
	}
	profiles := attach.Profiles(&cfg.ComponentConfig)
	opts := replica.Options{
		Self: self, Listener: listener, TLS: certificates, Discovery: discovery, Fanout: r.fanout,
		Patience: wire.Patience{Deadline: r.deadline, Quorum: r.quorum, Grace: r.grace}, WaitForAll: r.waitForAll, Config: digest(profiles),
	}
	if cfg.LeaderElection == nil {
		opts.Election = membership.ClockElection{}
		return replica.Attach(ctx, sched, profiles, watchClient, cfg.Client, feeds, opts, startTerm)
	}
	if err := nameCandidate(cfg.LeaderElection.Lock, self.Name); err != nil {
		return nil, err
	}
	lock := cfg.ComponentConfig.LeaderElection
	election := membership.NewLeaseElection(leaseClient, lock.ResourceNamespace, lock.ResourceName)
	opts.Election, opts.Elected, opts.Resign = election, true, sync.OnceFunc(func() { close(r.resigned) })
	opts.Tenure = membership.NewTenure(lock.RenewDeadline.Duration)
	attached, err := replica.Attach(ctx, sched, profiles, watchClient, cfg.Client, feeds, opts,
		func(ctx context.Context) (int64, error) { return election.Term(ctx, self.Name) })
	if err != nil {
		return nil, err
	}
	cfg.LeaderElection.Lock = candidate{cfg.LeaderElection.Lock, attached.MayLead, attached.Transitions, opts.Tenure}
	return attached, nil
}

// nameCandidate makes a replica hold the leader election Lease under its name, so that the other replicas
// can check which replica was elected.
func nameCandidate(lock resourcelock.Interface, replica string) error {
	lease, ok := lock.(*resourcelock.LeaseLock)
	if !ok {
		return fmt.Errorf("leader election by %T: replicas require leaderElection.resourceLock: leases", lock)
	}
	lease.LockConfig.Identity = membership.HolderIdentity(replica, string(uuid.NewUUID()))
	return nil
}

// startTerm returns the term of a leader without leader election: the Unix time at which it starts, so that the
// other replicas follow the one that started last. It waits for the next second, so that a process that starts
// again has another term than the last time.
func startTerm(ctx context.Context) (int64, error) {
	term := time.Now().Unix() + 1
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(time.Until(time.Unix(term, 0))):
		return term, nil
	}
}

// digest returns a digest of the profiles and of the protocol's version. Replicas compare it to detect different
// configurations and versions.
func digest(profiles []config.KubeSchedulerProfile) string {
	data, err := json.Marshal(profiles)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(fmt.Appendf(data, "version %d", wire.Version))
	return hex.EncodeToString(sum[:8])
}

// setup creates a scheduler as kube-scheduler's Setup does (cmd/kube-scheduler/app/server.go), except that the
// informers of nodes and pods get their events from replicas, and that binds pass the guard.
func setup(ctx context.Context, opts *options.Options, plugins []Option, guard *replica.BindGuard) (*schedulerconfig.CompletedConfig, *kubescheduler.Scheduler, replica.Feeds, error) {
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
	guarded := rest.AddUserAgent(rest.CopyConfig(cfg.KubeConfig), "scheduler")
	guarded.Wrap(guard.Wrap)
	if election := cfg.ComponentConfig.LeaderElection; election.LeaderElect {
		// Nothing that was written before the end of the tenure arrives after another replica can be elected.
		guard.SendTimeout = election.LeaseDuration.Duration - election.RenewDeadline.Duration
	}
	guarded.Dial = guard.Dial
	if cfg.Client, err = kubernetes.NewForConfig(guarded); err != nil {
		return nil, nil, none, fmt.Errorf("creating the client of the scheduler: %w", err)
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
	sched, err := kubescheduler.New(ctx, completed.Client, completed.InformerFactory, completed.DynInformerFactory,
		func(name string) events.EventRecorderLogger { return completed.EventBroadcaster.NewRecorder(name) },
		kubescheduler.WithComponentConfigVersion(c.TypeMeta.APIVersion),
		kubescheduler.WithKubeConfig(completed.KubeConfig),
		kubescheduler.WithProfiles(c.Profiles...),
		kubescheduler.WithPercentageOfNodesToScore(c.PercentageOfNodesToScore),
		kubescheduler.WithFrameworkOutOfTreeRegistry(registry),
		kubescheduler.WithPodMaxBackoffSeconds(c.PodMaxBackoffSeconds),
		kubescheduler.WithPodInitialBackoffSeconds(c.PodInitialBackoffSeconds),
		kubescheduler.WithPodMaxInUnschedulablePodsDuration(completed.PodMaxInUnschedulablePodsDuration),
		kubescheduler.WithExtenders(c.Extenders...),
		kubescheduler.WithParallelism(c.Parallelism),
		kubescheduler.WithBuildFrameworkCapturer(func(profile config.KubeSchedulerProfile) { profiles = append(profiles, profile) }),
	)
	if err != nil {
		return nil, nil, none, err
	}
	return &completed, sched, feeds, options.LogOrWriteConfig(klog.FromContext(ctx), opts.WriteConfigTo, c, profiles)
}

// serve runs the replica until the context ends. On an error it exits the process, because the scheduler cannot
// work without the other replicas.
func (r *replicas) serve(ctx context.Context) {
	r.mu.Lock()
	running := r.replica
	r.mu.Unlock()
	if err := running.Run(ctx); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Replica failed; exiting")
		klog.Flush()
		os.Exit(1)
	}
}
