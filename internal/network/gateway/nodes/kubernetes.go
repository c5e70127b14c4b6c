package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/network/claim"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/registry"
)

// Options select nodes of a cluster.
type Options struct {
	// Selector selects nodes by label; all if empty.
	Selector string
	// Annotation is the name of an annotation with prefixes, separated by commas; it is added to
	// spec.podCIDRs. Unused if empty.
	Annotation string
	// ClaimsNamespace has the Leases with which network-agent claims prefixes; they are added, too. Unused if
	// empty.
	ClaimsNamespace string
}

// cluster joins what Nodes and claims say.
type cluster struct {
	options Options
	sink    Sink
	log     *slog.Logger

	mu     sync.Mutex
	nodes  map[string]*core.Node
	claims map[string]map[netip.Prefix]bool // by node
	leases map[string]claimed               // by the name of the Lease
}

type claimed struct {
	node   string
	prefix netip.Prefix
}

// FromKubernetes gives the nodes of a cluster to a sink until the context ends. While the API server does
// not answer, the nodes stay as they are.
func FromKubernetes(ctx context.Context, client kubernetes.Interface, options Options, sink Sink, log *slog.Logger) error {
	c := &cluster{
		options: options, sink: sink, log: log,
		nodes: map[string]*core.Node{}, claims: map[string]map[netip.Prefix]bool{}, leases: map[string]claimed{},
	}
	// Claims come first, so that no node is without its prefix for a moment.
	if options.ClaimsNamespace != "" {
		if _, err := follow(ctx, newLeaseInformer(client, options), c.leaseChanged, c.leaseDeleted); err != nil {
			return fmt.Errorf("watch claims: %w", err)
		}
	}
	store, err := follow(ctx, newNodeInformer(client, options), c.nodeChanged, c.nodeDeleted)
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	if ctx.Err() != nil {
		return nil
	}
	keep(sink, func(name string) bool {
		_, exists, _ := store.GetByKey(name) // it has no errors
		return exists
	})
	log.Info("nodes are known", "count", len(store.ListKeys()))
	<-ctx.Done()
	return nil
}

// follow runs an informer until the context ends, and returns when all present objects have been handled.
func follow(ctx context.Context, informer cache.SharedIndexInformer, changed func(any), deleted func(any)) (cache.Store, error) {
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(object any, _ bool) { changed(object) },
		UpdateFunc: func(_, object any) { changed(object) },
		DeleteFunc: deleted,
	})
	if err != nil {
		return nil, err
	}
	go informer.RunWithContext(ctx)
	cache.WaitForCacheSync(ctx.Done(), registration.HasSynced)
	return informer.GetStore(), nil
}

func newNodeInformer(client kubernetes.Interface, options Options) cache.SharedIndexInformer {
	nodes := client.CoreV1().Nodes()
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, list meta.ListOptions) (runtime.Object, error) {
			list.LabelSelector = options.Selector
			return nodes.List(ctx, list)
		},
		WatchFuncWithContext: func(ctx context.Context, list meta.ListOptions) (watch.Interface, error) {
			list.LabelSelector = options.Selector
			return nodes.Watch(ctx, list)
		},
	}
	informer := newInformer(source, client, &core.Node{}, "nodes")
	// It fails only for an informer that has started.
	_ = informer.SetTransform(func(object any) (any, error) { return strip(object, options.Annotation), nil })
	return informer
}

func newLeaseInformer(client kubernetes.Interface, options Options) cache.SharedIndexInformer {
	leases := client.CoordinationV1().Leases(options.ClaimsNamespace)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, list meta.ListOptions) (runtime.Object, error) {
			return leases.List(ctx, list)
		},
		WatchFuncWithContext: func(ctx context.Context, list meta.ListOptions) (watch.Interface, error) {
			return leases.Watch(ctx, list)
		},
	}
	return newInformer(source, client, &coordination.Lease{}, "claims of prefixes")
}

// newInformer returns an informer that reads initial objects by a watch, if the client can.
func newInformer(source *cache.ListWatch, client kubernetes.Interface, kind runtime.Object, description string) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformerWithOptions(cache.ToListWatcherWithWatchListSemantics(source, client), kind,
		cache.SharedIndexInformerOptions{ObjectDescription: description})
}

func (c *cluster) nodeChanged(object any) {
	if node, ok := object.(*core.Node); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.nodes[node.Name] = node
		c.update(node.Name)
	}
}

func (c *cluster) nodeDeleted(object any) {
	name := keyOf(object)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, name)
	c.sink.DeleteNode(name)
}

// keyOf returns the name of a deleted object; those of Leases are without the namespace.
func keyOf(object any) string {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
	if err != nil {
		return ""
	}
	return key[strings.LastIndexByte(key, '/')+1:]
}

func (c *cluster) leaseChanged(object any) {
	lease, ok := object.(*coordination.Lease)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	former := c.drop(lease.Name)
	prefix, record, err := claim.ReadLease(lease)
	if err != nil {
		c.log.Warn("claim is ignored", "err", err)
	} else if record.Released.IsZero() {
		c.leases[lease.Name] = claimed{node: record.Node, prefix: prefix}
		if c.claims[record.Node] == nil {
			c.claims[record.Node] = map[netip.Prefix]bool{}
		}
		c.claims[record.Node][prefix] = true
	}
	c.update(former)
	if record.Node != former {
		c.update(record.Node)
	}
}

func (c *cluster) leaseDeleted(object any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.update(c.drop(keyOf(object)))
}

// drop forgets a claim and returns its node.
func (c *cluster) drop(lease string) (node string) {
	former, ok := c.leases[lease]
	if !ok {
		return ""
	}
	delete(c.leases, lease)
	delete(c.claims[former.node], former.prefix)
	if len(c.claims[former.node]) == 0 {
		delete(c.claims, former.node)
	}
	return former.node
}

// update tells the sink about a node, if it exists.
func (c *cluster) update(name string) {
	node := c.nodes[name]
	if node == nil {
		return
	}
	claims := slices.SortedFunc(maps.Keys(c.claims[name]), netip.Prefix.Compare)
	converted, err := convert(node, c.options.Annotation, claims)
	if err != nil {
		c.log.Warn("part of a node is ignored", "node", name, "err", err)
	}
	set(c.sink, converted, c.log)
}

// convert returns the addresses that a node may send from: its prefixes, and its own IPv6 addresses. The
// error tells which parts are unusable; the others are returned.
func convert(node *core.Node, annotation string, claims []netip.Prefix) (registry.Node, error) {
	converted := registry.Node{Name: node.Name}
	add := func(prefix netip.Prefix) {
		if prefix.Addr().Is6() && !covered(converted.Prefixes, prefix) {
			converted.Prefixes = append(converted.Prefixes, prefix)
		}
	}
	for _, prefix := range claims {
		add(prefix)
	}
	texts := slices.Clone(node.Spec.PodCIDRs)
	if value := node.Annotations[annotation]; annotation != "" && value != "" {
		texts = append(texts, strings.Split(value, ",")...)
	}
	var problems []error
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			problems = append(problems, err)
			continue
		}
		add(prefix.Masked())
	}
	if len(converted.Prefixes) > 0 { // a node without pods has no use for the gateway yet
		for _, own := range ownAddresses(node) {
			add(netip.PrefixFrom(own, 128))
		}
	}
	return converted, errors.Join(problems...)
}

// ownAddresses returns the IPv6 addresses of a node itself.
func ownAddresses(node *core.Node) (all []netip.Addr) {
	for _, address := range node.Status.Addresses {
		if address.Type != core.NodeInternalIP && address.Type != core.NodeExternalIP {
			continue
		}
		if own, err := netip.ParseAddr(address.Address); err == nil && own.Is6() && own.IsGlobalUnicast() {
			all = append(all, own)
		}
	}
	return all
}

func covered(prefixes []netip.Prefix, prefix netip.Prefix) bool {
	for _, p := range prefixes {
		if p.Overlaps(prefix) && p.Bits() <= prefix.Bits() {
			return true
		}
	}
	return false
}

// strip keeps only what convert reads: a node has several KiB, and there are many.
func strip(object any, annotation string) any {
	node, ok := object.(*core.Node)
	if !ok {
		return object
	}
	stripped := &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Spec:       core.NodeSpec{PodCIDRs: node.Spec.PodCIDRs},
		Status:     core.NodeStatus{Addresses: node.Status.Addresses},
	}
	if value, ok := node.Annotations[annotation]; ok {
		stripped.Annotations = map[string]string{annotation: value}
	}
	return stripped
}
