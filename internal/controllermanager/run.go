package controllermanager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	utilversion "k8s.io/component-base/version"
	genericapp "k8s.io/controller-manager/app"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/config"

	"github.com/k8s-1m/k8s-1m/internal/controllermanager/fence"
	"github.com/k8s-1m/k8s-1m/internal/controllermanager/gate"
)

const (
	// warmLimit is the time after which a process becomes the leader even if its informers have not synced, for
	// example because one of a broken CustomResourceDefinition cannot.
	warmLimit = 30 * time.Second
	// apiServerWait is how long each attempt waits for a healthy API server.
	apiServerWait = 10 * time.Second
)

var (
	errLost    = errors.New("lost the lease to another process, or could not renew it")
	errNotWarm = errors.New("the informers have not synced yet")
)

// manager is one run of the program.
type manager struct {
	config    *config.CompletedConfig
	pages     *pages
	fence     *fence.Fence
	clients   *clients
	context   app.ControllerContext
	informers *informers
	// gate holds events back until all controllers are built.
	gate *gate.Factory
}

// Run runs the program until ctx ends. The context ends with SIGTERM or SIGINT.
func Run(ctx context.Context, c *config.CompletedConfig) error {
	klog.FromContext(ctx).Info("Starting", "program", Program, "version", utilversion.Get())
	c.EventBroadcaster.StartStructuredLogging(0)
	c.EventBroadcaster.StartRecordingToSink(&corev1.EventSinkImpl{Interface: c.Client.CoreV1().Events("")})
	defer c.EventBroadcaster.Shutdown()

	// The pages and the informers outlast ctx: controllers use both while they stop.
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	p, err := newPages(c)
	if err != nil {
		return err
	}
	if err := p.serve(c, running.Done()); err != nil {
		return fmt.Errorf("serving the pages: %w", err)
	}
	m := &manager{config: c, pages: p, fence: fence.New()}
	if err := m.prepare(ctx, running); err != nil {
		return err
	}
	warming, stopWarming := context.WithCancel(running)
	warmed := make(chan struct{})
	go func() {
		defer close(warmed)
		m.informers.run(warming, running.Done())
	}()
	// No informer is started while the controllers are built, so that their queues receive nothing before they run.
	lead := func() error {
		stopWarming()
		<-warmed
		return m.lead(ctx, running.Done())
	}
	defer stopWarming()
	if !c.ComponentConfig.Generic.LeaderElection.LeaderElect {
		m.fence.Open()
		return lead()
	}
	return m.elect(ctx, running, lead)
}

// prepare waits for an API server, and creates the clients and the context of the controllers.
func (m *manager) prepare(ctx, running context.Context) (err error) {
	if err := awaitAPIServer(ctx, m.config.Client); err != nil {
		return err
	}
	if m.clients, err = newClients(m.config, m.fence); err != nil {
		return err
	}
	if m.context, err = app.CreateControllerContext(running, m.config, m.clients.root, m.clients.controllers); err != nil {
		return fmt.Errorf("preparing the controllers: %w", err)
	}
	discovery, err := m.clients.root.DiscoveryClient("standby-discovery")
	if err != nil {
		return fmt.Errorf("discovery client: %w", err)
	}
	m.informers = newInformers(m.context, discovery)
	m.gate = gate.New(m.context.InformerFactory)
	m.context.InformerFactory = m.gate
	m.context.ObjectOrMetadataInformerFactory = m.gate.Objects(m.context.ObjectOrMetadataInformerFactory)
	return nil
}

// awaitAPIServer waits until an API server is healthy. Upstream's standby waits for it as well.
func awaitAPIServer(ctx context.Context, client kubernetes.Interface) error {
	for ctx.Err() == nil {
		err := genericapp.WaitForAPIServer(client, apiServerWait)
		if err == nil {
			return nil
		}
		klog.FromContext(ctx).Error(err, "No API server is healthy; trying again")
	}
	return ctx.Err()
}

// elect takes part in the election, leads when this process is elected, and releases the lease when ctx ends.
func (m *manager) elect(ctx, running context.Context, lead func() error) error {
	begun := time.Now()
	lease, err := newLock(m.config, m.fence, func() error {
		if !m.informers.synced() && time.Since(begun) < warmLimit {
			return errNotWarm
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := startCandidate(running, m.config, lease.Identity(), m.pages); err != nil {
		return err
	}
	stopped := make(chan error, 1) // the result of lead
	started := func(context.Context) { stopped <- lead() }
	elector, err := newElector(m.config.ComponentConfig.Generic.LeaderElection, lease, m.pages.election, started)
	if err != nil {
		return err
	}
	electing, endElection := context.WithCancel(running)
	defer endElection()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(electing)
	}()
	err = awaitEnd(ctx, lease, stopped, ended)
	if err == nil && !lease.fence.Opened() {
		endElection()
		<-ended
		if !lease.fence.Opened() {
			return nil
		}
		// The election was won when the signal arrived.
		err = <-stopped
	}
	if err != nil {
		m.fence.Shut()
		return err
	}
	return m.resign(ctx, lease, func() { endElection(); <-ended })
}

// awaitEnd returns nil when ctx has ended and the controllers, if they run, have stopped. It returns an error if the
// process must end without releasing the lease.
func awaitEnd(ctx context.Context, lease *lock, stopped <-chan error, ended <-chan struct{}) error {
	standby := ctx.Done()
	for {
		select {
		case <-standby:
			if !lease.fence.Opened() {
				return nil
			}
			standby = nil // the controllers stop, too
		case err := <-stopped:
			return err
		case <-lease.lost:
			return errLost
		case <-ended:
			return errLost
		}
	}
}

// resign releases the lease after all controllers have stopped. It stops the election, which renews the lease until
// then. If a write may still be executed, the lease expires instead.
func (m *manager) resign(ctx context.Context, lease *lock, stopElection func()) error {
	election := m.config.ComponentConfig.Generic.LeaderElection
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), election.RenewDeadline.Duration)
	defer cancel()
	if err := m.fence.Close(limit, election.LeaseDuration.Duration); err != nil {
		return fmt.Errorf("the lease is not released and will expire: %w", err)
	}
	stopElection()
	if err := lease.release(limit); err != nil {
		return fmt.Errorf("releasing the lease: %w", err)
	}
	klog.FromContext(ctx).Info("Released the lease after all controllers had stopped", "lock", lease.Describe())
	return nil
}
