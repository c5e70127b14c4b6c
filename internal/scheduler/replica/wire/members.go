package wire

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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// Discovery finds the replicas that there are. Whether they live is another question:
// those that do tell the leader so.
type Discovery interface {
	// Run makes this replica known until the context ends.
	Run(ctx context.Context) error
	// Members are all that are known.
	Members() []Member
}

// Addresses are replicas at addresses that are given.
type Addresses []Member

// Run has nothing to do.
func (Addresses) Run(context.Context) error { return nil }

// Members are all that are given.
func (a Addresses) Members() []Member { return a }

// Leases finds replicas by Leases, one for each, that they renew.
type Leases struct {
	client    kubernetes.Interface
	self      Member
	namespace string
	group     string
	lister    coordinationlisters.LeaseLister
	// instance tells this process from others that have its name.
	instance string
	// own is the Lease of this replica as it was last written; nil if that is not known.
	own *coordinationv1.Lease
	// claimed says that this process has written it.
	claimed bool

	mu sync.Mutex
	// seen is when a Lease was last seen to have another renewTime; clocks of other
	// machines do not matter.
	seen map[string]renewal
}

type renewal struct {
	at   time.Time
	seen time.Time
}

const (
	// GroupLabel of a Lease names the replicas that belong together.
	GroupLabel = "k8s-1m.dev/dist-scheduler"
	// AddressAnnotation of a Lease is where the replica is reached, and RelayAnnotation
	// is there if it owns no nodes.
	AddressAnnotation = "k8s-1m.dev/address"
	RelayAnnotation   = "k8s-1m.dev/relay-only"
	// InstanceAnnotation is another for each process.
	InstanceAnnotation = "k8s-1m.dev/instance"

	leaseLife  = 15 * time.Second
	leaseRenew = 5 * time.Second
	// Whoever finds the Lease of its name with somebody at another address looks so often
	// and for so long whether that renews it.
	claimEvery    = 500 * time.Millisecond
	claimPatience = leaseRenew + 2*time.Second
)

// ErrNameTaken says that there are two replicas of one name. Nobody could tell them apart.
var ErrNameTaken = errors.New("there is another replica of this name: give each a --replica-name of its own")

// NewLeases finds the replicas of a group.
func NewLeases(client kubernetes.Interface, namespace, group string, self Member) *Leases {
	return &Leases{client: client, namespace: namespace, group: group, self: self, instance: rand.Text(), seen: map[string]renewal{}}
}

func (l *Leases) name() string { return l.group + "-replica-" + l.self.Name }

// Run renews the Lease of this replica, and deletes it in the end. It fails with
// [ErrNameTaken] if another process has the name: the later one, if it sees in time that
// there is another, and otherwise the earlier one.
func (l *Leases) Run(ctx context.Context) error {
	if err := l.claim(ctx); err != nil {
		return err
	}
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	factory := informers.NewSharedInformerFactoryWithOptions(l.client, 0, informers.WithNamespace(l.namespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = GroupLabel + "=" + l.group }))
	leases := factory.Coordination().V1().Leases()
	l.mu.Lock()
	l.lister = leases.Lister()
	l.mu.Unlock()
	leases.Informer()
	factory.Start(ctx.Done())
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := l.renew(ctx)
		if apierrors.IsConflict(err) {
			// Somebody has written it, and it is read to see who.
			err = l.renew(ctx)
		}
		switch {
		case errors.Is(err, ErrNameTaken):
			lost(err)
		case err != nil && ctx.Err() == nil:
			klog.FromContext(ctx).Error(err, "Renewing the Lease of this replica", "lease", l.name())
		}
	}, leaseRenew)
	if err := context.Cause(ctx); errors.Is(err, ErrNameTaken) {
		return err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	var options metav1.DeleteOptions
	if l.own != nil {
		// It may be that of who comes next by now.
		options.Preconditions = &metav1.Preconditions{ResourceVersion: &l.own.ResourceVersion}
	}
	err := l.client.CoordinationV1().Leases(l.namespace).Delete(end, l.name(), options)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// claim returns when this replica may have its name: at once if the Lease is not there, or
// was that of a process that was where this one is, and otherwise if it is not renewed.
func (l *Leases) claim(ctx context.Context) error {
	var last time.Time
	for since := time.Now(); ctx.Err() == nil && time.Since(since) < claimPatience; {
		lease, err := l.client.CoordinationV1().Leases(l.namespace).Get(ctx, l.name(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			// Nobody can have renewed it either, as far as is known.
			since = time.Now()
		case lease.Annotations[AddressAnnotation] == l.self.Address || lease.Spec.RenewTime == nil:
			return nil
		case !last.IsZero() && !last.Equal(lease.Spec.RenewTime.Time):
			return l.taken(lease)
		default:
			last = lease.Spec.RenewTime.Time
		}
		select {
		case <-ctx.Done():
		case <-time.After(claimEvery):
		}
	}
	return nil
}

func (l *Leases) taken(lease *coordinationv1.Lease) error {
	return fmt.Errorf("replica %s at %s, and one at %s: %w", l.self.Name, l.self.Address, lease.Annotations[AddressAnnotation], ErrNameTaken)
}

// renew writes the Lease anew. It is read only if that failed the last time: somebody else
// may have written it.
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
		if there := lease.Annotations[InstanceAnnotation]; there != "" && there != l.instance && l.claimed {
			return l.taken(lease)
		}
	}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, InstanceAnnotation, l.instance)
	metav1.SetMetaDataLabel(&lease.ObjectMeta, GroupLabel, l.group)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, AddressAnnotation, l.self.Address)
	if l.self.Relay {
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, RelayAnnotation, "true")
	}
	lease.Spec.HolderIdentity = ptr.To(l.self.Name)
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(leaseLife / time.Second))
	lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
	var written *coordinationv1.Lease
	var err error
	if lease.ResourceVersion == "" {
		written, err = client.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		written, err = client.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing the Lease: %w", err)
	}
	l.own, l.claimed = written, true
	return nil
}

// Members are those whose Leases are renewed.
func (l *Leases) Members() []Member {
	l.mu.Lock()
	defer l.mu.Unlock()
	members := []Member{l.self}
	if l.lister == nil {
		return members
	}
	leases, err := l.lister.Leases(l.namespace).List(labels.Everything())
	if err != nil {
		return members
	}
	now := time.Now()
	for _, lease := range leases {
		if lease.Spec.HolderIdentity == nil || lease.Spec.RenewTime == nil || *lease.Spec.HolderIdentity == l.self.Name {
			continue
		}
		name := *lease.Spec.HolderIdentity
		if r := l.seen[name]; !r.at.Equal(lease.Spec.RenewTime.Time) {
			l.seen[name] = renewal{at: lease.Spec.RenewTime.Time, seen: now}
		}
		if now.Sub(l.seen[name].seen) < leaseLife {
			_, relay := lease.Annotations[RelayAnnotation]
			members = append(members, Member{Name: name, Address: lease.Annotations[AddressAnnotation], Relay: relay})
		}
	}
	return members
}
