package controllermanager

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/blang/semver/v4"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/server/healthz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
	basecompatibility "k8s.io/component-base/compatibility"
	componentbaseconfig "k8s.io/component-base/config"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	kubefeatures "k8s.io/kubernetes/pkg/features"

	"github.com/k8s-1m/k8s-1m/internal/controllermanager/fence"
)

// lock is the lease of the leader. Each write that acquires or renews the lease opens the fence until the renew
// deadline after it was sent. Another process waits for the lease duration, which is longer, after it has seen the
// last renewal.
type lock struct {
	resourcelock.Interface
	fence         *fence.Fence
	renewDeadline time.Duration
	// mayLead returns an error if this process should not acquire the lease yet.
	mayLead func() error

	// lost is closed when this process has been the leader and another process holds the lease.
	lost     chan struct{}
	lostOnce sync.Once
}

// newLock returns the lock of this process.
func newLock(c *config.CompletedConfig, f *fence.Fence, mayLead func() error) (*lock, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("identity of this process: %w", err)
	}
	election := c.ComponentConfig.Generic.LeaderElection
	// The uid distinguishes processes on the same host.
	resource := resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID()), EventRecorder: c.EventRecorder}
	inner, err := resourcelock.NewFromKubeconfig(election.ResourceLock, election.ResourceNamespace, election.ResourceName, resource,
		c.Kubeconfig, election.RenewDeadline.Duration)
	if err != nil {
		return nil, fmt.Errorf("creating the lock %s/%s: %w", election.ResourceNamespace, election.ResourceName, err)
	}
	return &lock{Interface: inner, fence: f, renewDeadline: election.RenewDeadline.Duration, mayLead: mayLead, lost: make(chan struct{})}, nil
}

// Create creates the lease and acquires it.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Create(ctx, record) })
}

// Update acquires or renews the lease.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Update(ctx, record) })
}

func (l *lock) write(record resourcelock.LeaderElectionRecord, send func() error) error {
	if !l.fence.Opened() {
		if err := l.mayLead(); err != nil {
			return err
		}
	}
	sent := l.fence.Now()
	if err := send(); err != nil {
		return err
	}
	if record.HolderIdentity == l.Identity() {
		l.fence.OpenUntil(sent + l.renewDeadline)
	}
	return nil
}

// Get reads the lease. client-go's elector only reads it if it is not the leader, or if a renewal failed. It would
// continue to lead until the renew deadline, even if the lease belongs to another process.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil && l.fence.Opened() && record.HolderIdentity != l.Identity() {
		l.fence.Shut()
		l.lostOnce.Do(func() { close(l.lost) })
	}
	return record, raw, err
}

// release gives up the lease, if this process still holds it. client-go's own release would also take the lease from
// another process. The elector must have ended; one of its renewals may still be on its way, hence the retries.
func (l *lock) release(ctx context.Context) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		record, _, err := l.Interface.Get(ctx)
		if err != nil {
			return err
		}
		if record.HolderIdentity != l.Identity() {
			return nil
		}
		now := metav1.Now()
		record.HolderIdentity, record.LeaseDurationSeconds, record.AcquireTime, record.RenewTime = "", 1, now, now
		return l.Interface.Update(ctx, *record)
	})
}

// newElector returns client-go's elector. It does not release the lease; see [lock.release].
func newElector(
	election componentbaseconfig.LeaderElectionConfiguration, l *lock, health *leaderelection.HealthzAdaptor, started func(context.Context),
) (*leaderelection.LeaderElector, error) {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          l,
		LeaseDuration: election.LeaseDuration.Duration,
		RenewDeadline: election.RenewDeadline.Duration,
		RetryPeriod:   election.RetryPeriod.Duration,
		Callbacks:     leaderelection.LeaderCallbacks{OnStartedLeading: started, OnStoppedLeading: func() {}},
		WatchDog:      health,
		Name:          election.ResourceName,
		Coordinated:   utilfeature.DefaultFeatureGate.Enabled(kubefeatures.CoordinatedLeaderElection),
	})
	if err != nil {
		return nil, fmt.Errorf("leader election: %w", err)
	}
	health.SetLeaderElection(elector)
	return elector, nil
}

// startCandidate announces this process for coordinated leader election, if this feature is enabled.
func startCandidate(ctx context.Context, c *config.CompletedConfig, identity string, p *pages) error {
	if !utilfeature.DefaultFeatureGate.Enabled(kubefeatures.CoordinatedLeaderElection) {
		return nil
	}
	version := c.ComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	binary, err := semver.ParseTolerant(version.BinaryVersion().String())
	if err != nil {
		return fmt.Errorf("binary version: %w", err)
	}
	emulation, err := semver.ParseTolerant(version.EmulationVersion().String())
	if err != nil {
		return fmt.Errorf("emulation version: %w", err)
	}
	candidate, synced, err := leaderelection.NewCandidate(c.Client, metav1.NamespaceSystem, identity, componentName,
		binary.FinalizeVersion(), emulation.FinalizeVersion(), coordinationv1.OldestEmulationVersion)
	if err != nil {
		return fmt.Errorf("candidate for coordinated leader election: %w", err)
	}
	p.health.AddHealthChecker(healthz.NewInformerSyncHealthz(synced))
	go candidate.Run(ctx)
	return nil
}
