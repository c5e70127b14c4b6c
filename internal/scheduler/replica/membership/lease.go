package membership

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// Leases is a Discovery in which each replica renews its own Lease.
type Leases struct {
	client    kubernetes.Interface
	self      Member
	namespace string
	group     string
	// instance distinguishes this process from other processes with the same replica name.
	instance string
	// own is this replica's Lease as this process has last written it; nil if the last write failed.
	own *coordinationv1.Lease
	// claimed is true after this process has written the Lease once.
	claimed bool

	mu sync.Mutex
	// renewals are the Leases of the group; nil until Run watches them.
	renewals *renewals
}

const (
	// GroupLabel is the label of a Lease that names the group of replicas.
	GroupLabel = "k8s-1m.dev/dist-scheduler"
	// AddressAnnotation is the annotation of a Lease with the replica's address.
	AddressAnnotation = "k8s-1m.dev/address"
	// RelayAnnotation is set on the Lease of a replica that owns no nodes.
	RelayAnnotation = "k8s-1m.dev/relay-only"
	// InstanceAnnotation is a random value that identifies the process that wrote the Lease.
	InstanceAnnotation = "k8s-1m.dev/instance"

	leaseDuration      = 15 * time.Second
	leaseRenewInterval = 5 * time.Second
	// A starting replica whose Lease has another address reads that Lease every claimPollInterval,
	// for at most claimTimeout, to detect whether another process still renews it.
	claimPollInterval = 500 * time.Millisecond
	claimTimeout      = leaseRenewInterval + 2*time.Second
)

// ErrNotOurLease is returned if a Lease with the name of this replica's Lease belongs to somebody else.
var ErrNotOurLease = errors.New("the Lease exists and is not of this group of replicas: choose another --replica-name or --replica-group, or delete the Lease")

// ErrNameTaken is returned if two processes run with one replica name.
var ErrNameTaken = errors.New("another replica has the same name: give each replica its own --replica-name")

// NewLeases returns a Discovery for a group of replicas with Leases in a namespace. self is this replica.
func NewLeases(client kubernetes.Interface, namespace, group string, self Member) *Leases {
	return &Leases{client: client, namespace: namespace, group: group, self: self, instance: rand.Text()}
}

// name returns the name of this replica's Lease.
func (l *Leases) name() string { return l.nameOf(l.self.Name) }

// nameOf returns the name of the Lease of a replica.
func (l *Leases) nameOf(replica string) string { return l.group + "-replica-" + replica }

// Run renews the Lease of this replica until the context ends, and then deletes it. It returns
// [ErrNameTaken] if another process has the same replica name. The process that started later fails if
// it observes a renewal by the other process while it waits in claim. Otherwise the process that
// started earlier fails.
func (l *Leases) Run(ctx context.Context) error {
	if err := l.claim(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := l.watch(ctx); err != nil {
		return err
	}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := l.renew(ctx)
		if apierrors.IsConflict(err) {
			// Another client has written the Lease. The second call reads it first.
			err = l.renew(ctx)
		}
		switch {
		case errors.Is(err, ErrNameTaken):
			cancel(err)
		case err != nil && ctx.Err() == nil:
			klog.FromContext(ctx).Error(err, "Failed to renew the Lease of this replica", "lease", l.name())
		}
	}, leaseRenewInterval)
	if err := context.Cause(ctx); errors.Is(err, ErrNameTaken) {
		return err
	}
	return l.release(ctx)
}

// watch observes the Leases of the group until the context ends.
func (l *Leases) watch(ctx context.Context) error {
	l.mu.Lock()
	l.renewals = newRenewals(l.name(), time.Now())
	l.mu.Unlock()
	factory := informers.NewSharedInformerFactoryWithOptions(l.client, 0, informers.WithNamespace(l.namespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = GroupLabel + "=" + l.group }))
	_, err := factory.Coordination().V1().Leases().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(lease any) { l.observe(lease.(*coordinationv1.Lease)) },
		UpdateFunc: func(_, lease any) { l.observe(lease.(*coordinationv1.Lease)) },
		DeleteFunc: func(lease any) {
			if name, err := toolscache.DeletionHandlingObjectToName(lease); err == nil {
				l.forget(name.Name)
			}
		},
	})
	factory.Start(ctx.Done())
	return err
}

// observe records a Lease of the group. It ignores those that no replica has written under its own name.
func (l *Leases) observe(lease *coordinationv1.Lease) {
	if lease.Spec.HolderIdentity == nil || lease.Spec.RenewTime == nil || lease.Name != l.nameOf(*lease.Spec.HolderIdentity) {
		l.forget(lease.Name)
		return
	}
	_, relay := lease.Annotations[RelayAnnotation]
	member := Member{Name: *lease.Spec.HolderIdentity, Address: lease.Annotations[AddressAnnotation], Relay: relay}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewals.observe(lease.Name, member, lease.Spec.RenewTime.Time, time.Now())
}

// forget removes a Lease that does not exist any more.
func (l *Leases) forget(lease string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewals.forget(lease)
}

// release deletes the Lease, unless another process has written it.
func (l *Leases) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	var options metav1.DeleteOptions
	if l.own != nil {
		// Another process with this replica's name may already have written the Lease. Then it is
		// not deleted.
		options.Preconditions = &metav1.Preconditions{ResourceVersion: &l.own.ResourceVersion}
	}
	err := l.client.CoordinationV1().Leases(l.namespace).Delete(ctx, l.name(), options)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// claim waits until this process may use its replica name. It returns immediately if there is no Lease,
// or if the Lease has this replica's address, because then a previous process wrote it. It returns
// ErrNotOurLease if no replica of the group has written the Lease. Otherwise it returns ErrNameTaken if the
// Lease is renewed within claimTimeout, and nil if it is not.
func (l *Leases) claim(ctx context.Context) error {
	var last time.Time
	for since := time.Now(); ctx.Err() == nil && time.Since(since) < claimTimeout; {
		lease, err := l.client.CoordinationV1().Leases(l.namespace).Get(ctx, l.name(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			// Start the wait again: if the API server is unreachable, the other process may be unable
			// to renew its Lease, too.
			since = time.Now()
		case lease.Labels[GroupLabel] != l.group:
			return fmt.Errorf("lease %s/%s: %w", l.namespace, l.name(), ErrNotOurLease)
		case lease.Annotations[AddressAnnotation] == l.self.Address || lease.Spec.RenewTime == nil:
			return nil
		case !last.IsZero() && !last.Equal(lease.Spec.RenewTime.Time):
			return l.nameTaken(lease)
		default:
			last = lease.Spec.RenewTime.Time
		}
		select {
		case <-ctx.Done():
		case <-time.After(claimPollInterval):
		}
	}
	return nil
}

func (l *Leases) nameTaken(lease *coordinationv1.Lease) error {
	return fmt.Errorf("replica %s at %s and at %s: %w", l.self.Name, l.self.Address, lease.Annotations[AddressAnnotation], ErrNameTaken)
}

// renew writes the Lease with the current time. It reads the Lease first if this process has not written
// it yet, or if the previous write failed, because another process may have written it.
func (l *Leases) renew(ctx context.Context) error {
	client, lease := l.client.CoordinationV1().Leases(l.namespace), l.own
	l.own = nil
	if lease == nil {
		var err error
		if lease, err = client.Get(ctx, l.name(), metav1.GetOptions{}); apierrors.IsNotFound(err) {
			lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.name(), Namespace: l.namespace}}
		} else if err != nil {
			return err
		}
		if instance := lease.Annotations[InstanceAnnotation]; instance != "" && instance != l.instance && l.claimed {
			return l.nameTaken(lease)
		}
	}
	l.fill(lease)
	var written *coordinationv1.Lease
	var err error
	if lease.ResourceVersion == "" {
		written, err = client.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		written, err = client.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing Lease %s: %w", l.name(), err)
	}
	l.own, l.claimed = written, true
	return nil
}

// fill sets all fields of this replica's Lease.
func (l *Leases) fill(lease *coordinationv1.Lease) {
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, InstanceAnnotation, l.instance)
	metav1.SetMetaDataLabel(&lease.ObjectMeta, GroupLabel, l.group)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, AddressAnnotation, l.self.Address)
	if l.self.Relay {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, RelayAnnotation, "true")
	}
	lease.Spec.HolderIdentity = ptr.To(l.self.Name)
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(leaseDuration / time.Second))
	lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
}

// Members returns this replica and all replicas that have renewed their Lease within leaseDuration, as far as this
// replica could observe that (see [renewals]).
func (l *Leases) Members() []Member {
	l.mu.Lock()
	defer l.mu.Unlock()
	members := []Member{l.self}
	if l.renewals != nil {
		members = append(members, l.renewals.others(time.Now())...)
	}
	return members
}
