package claim

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

const (
	// DefaultNamespace has the Leases of claims.
	DefaultNamespace = "k1m-network"
	leasePrefix      = "prefix-"
	// releasedAnnotation is the time at which a prefix was given back.
	releasedAnnotation = "network.k8s-1m.dev/released"
	requestTimeout     = 15 * time.Second
)

// leases keeps each claim in a Lease whose name is the prefix. It is not renewed: a node that is gone is one without a Node
// object. Updates carry the resource version, so the API server rejects the second of two.
type leases struct {
	leases, nodes rest.Interface
	namespace     string
}

// NewKubernetes returns a store of claims in a cluster. The client is small: one kind of object, and no cache.
func NewKubernetes(config *rest.Config, namespace string) (Store, error) {
	scheme := runtime.NewScheme()
	if err := coordination.AddToScheme(scheme); err != nil {
		return nil, err
	}
	meta.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)
	config = rest.CopyConfig(config)
	config.Timeout, config.NegotiatedSerializer = requestTimeout, codecs.WithoutConversion()
	config.GroupVersion, config.APIPath = &coordination.SchemeGroupVersion, "/apis"
	l, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	config.GroupVersion, config.APIPath = &schema.GroupVersion{Version: "v1"}, "/api"
	nodes, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	return &leases{leases: l, nodes: nodes, namespace: namespace}, nil
}

func (l *leases) Now() time.Time { return time.Now() }

func (l *leases) Exists(ctx context.Context, node string) (bool, error) {
	_, err := l.nodes.Get().Resource("nodes").Name(node).SetHeader("Accept", "application/json").DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read node %s: %w", node, err)
	}
	return true, nil
}

func (l *leases) Update(ctx context.Context, prefix netip.Prefix, change func(*Claim) (*Claim, error)) error {
	for {
		again, err := l.try(ctx, prefix, change)
		if !again {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// try changes a claim, unless somebody else changes it at the same time.
func (l *leases) try(ctx context.Context, prefix netip.Prefix, change func(*Claim) (*Claim, error)) (again bool, err error) {
	name := leasePrefix + fileName(prefix)
	lease := &coordination.Lease{}
	err = l.request(l.leases.Get()).Name(name).Do(ctx).Into(lease)
	var before *Claim
	switch {
	case apierrors.IsNotFound(err):
		lease = &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: name, Namespace: l.namespace}}
	case err != nil:
		return false, fmt.Errorf("read Lease %s/%s: %w", l.namespace, name, err)
	default:
		if before, err = fromLease(lease); err != nil {
			return false, err
		}
	}
	after, err := change(before)
	if err != nil || before != nil && after != nil && *before == *after {
		return false, err
	}
	switch {
	case after == nil:
		version := lease.ResourceVersion
		err = l.request(l.leases.Delete()).Name(name).Body(&meta.DeleteOptions{Preconditions: &meta.Preconditions{ResourceVersion: &version}}).Do(ctx).Error()
	case before == nil:
		toLease(after, lease)
		err = l.request(l.leases.Post()).Body(lease).Do(ctx).Error()
	default:
		toLease(after, lease)
		err = l.request(l.leases.Put()).Name(name).Body(lease).Do(ctx).Error()
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("write Lease %s/%s: %w", l.namespace, name, err)
	}
	return false, nil
}

func (l *leases) request(r *rest.Request) *rest.Request {
	return r.Namespace(l.namespace).Resource("leases")
}

func fromLease(lease *coordination.Lease) (*Claim, error) {
	if lease.Spec.HolderIdentity == nil || lease.Spec.AcquireTime == nil {
		return nil, fmt.Errorf("lease %s/%s has no holder or no acquireTime; delete it if no node uses the prefix", lease.Namespace, lease.Name)
	}
	c := &Claim{Node: *lease.Spec.HolderIdentity, Since: lease.Spec.AcquireTime.Time}
	if text, ok := lease.Annotations[releasedAnnotation]; ok {
		released, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return nil, fmt.Errorf("lease %s/%s: annotation %s: %w", lease.Namespace, lease.Name, releasedAnnotation, err)
		}
		c.Released = released
	}
	return c, nil
}

func toLease(c *Claim, lease *coordination.Lease) {
	since := meta.NewMicroTime(c.Since)
	lease.Spec.HolderIdentity, lease.Spec.AcquireTime = &c.Node, &since
	delete(lease.Annotations, releasedAnnotation)
	if !c.Released.IsZero() {
		if lease.Annotations == nil {
			lease.Annotations = map[string]string{}
		}
		lease.Annotations[releasedAnnotation] = c.Released.UTC().Format(time.RFC3339Nano)
	}
}
