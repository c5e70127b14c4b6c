package shard

import (
	"context"
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
	// own is the Lease of this replica as it was last written; nil if that is not known.
	own *coordinationv1.Lease

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

	leaseLife  = 15 * time.Second
	leaseRenew = 5 * time.Second
)

// NewLeases finds the replicas of a group.
func NewLeases(client kubernetes.Interface, namespace, group string, self Member) *Leases {
	return &Leases{client: client, namespace: namespace, group: group, self: self, seen: map[string]renewal{}}
}

func (l *Leases) name() string { return l.group + "-replica-" + l.self.Name }

// Run renews the Lease of this replica, and deletes it in the end.
func (l *Leases) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(l.client, 0, informers.WithNamespace(l.namespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = GroupLabel + "=" + l.group }))
	leases := factory.Coordination().V1().Leases()
	l.mu.Lock()
	l.lister = leases.Lister()
	l.mu.Unlock()
	leases.Informer()
	factory.Start(ctx.Done())
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := l.renew(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Renewing the Lease of this replica", "lease", l.name())
		}
	}, leaseRenew)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err := l.client.CoordinationV1().Leases(l.namespace).Delete(end, l.name(), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
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
	}
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
	l.own = written
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
