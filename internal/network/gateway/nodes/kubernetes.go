package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/registry"
)

// Options select nodes of a cluster.
type Options struct {
	// Selector selects nodes by label; all if empty.
	Selector string
	// Annotation is the name of an annotation with prefixes, separated by commas; it is added to
	// spec.podCIDRs. Unused if empty.
	Annotation string
}

// FromKubernetes gives the nodes of a cluster to a sink until the context ends. While the API server does
// not answer, the nodes stay as they are.
func FromKubernetes(ctx context.Context, client kubernetes.Interface, options Options, sink Sink, log *slog.Logger) error {
	informer := newInformer(client, options)
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(object any, _ bool) { changed(object, options, sink, log) },
		UpdateFunc: func(_, object any) { changed(object, options, sink, log) },
		DeleteFunc: func(object any) { deleted(object, sink) },
	})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil // the context has ended
	}
	keep(sink, func(name string) bool {
		_, exists, _ := informer.GetStore().GetByKey(name)
		return exists
	})
	log.Info("nodes are known", "count", len(informer.GetStore().ListKeys()))
	<-ctx.Done()
	return nil
}

func newInformer(client kubernetes.Interface, options Options) cache.SharedIndexInformer {
	nodes := client.CoreV1().Nodes()
	informer := cache.NewSharedIndexInformerWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, list meta.ListOptions) (runtime.Object, error) {
			list.LabelSelector = options.Selector
			return nodes.List(ctx, list)
		},
		WatchFuncWithContext: func(ctx context.Context, list meta.ListOptions) (watch.Interface, error) {
			list.LabelSelector = options.Selector
			return nodes.Watch(ctx, list)
		},
	}, &core.Node{}, cache.SharedIndexInformerOptions{ObjectDescription: "nodes"})
	// It fails only for an informer that has started.
	_ = informer.SetTransform(strip)
	return informer
}

func changed(object any, options Options, sink Sink, log *slog.Logger) {
	node, ok := object.(*core.Node)
	if !ok {
		return
	}
	converted, err := convert(node, options.Annotation)
	if err != nil {
		log.Warn("part of a node is ignored", "node", node.Name, "err", err)
	}
	set(sink, converted, log)
}

func deleted(object any, sink Sink) {
	switch o := object.(type) {
	case *core.Node:
		sink.DeleteNode(o.Name)
	case cache.DeletedFinalStateUnknown:
		sink.DeleteNode(o.Key)
	}
}

// convert returns the addresses that a node may send from: its prefixes, and its own IPv6 addresses. The
// error tells which parts are unusable; the others are returned.
func convert(node *core.Node, annotation string) (registry.Node, error) {
	converted := registry.Node{Name: node.Name}
	texts := append([]string{}, node.Spec.PodCIDRs...)
	if value := node.Annotations[annotation]; annotation != "" && value != "" {
		texts = append(texts, strings.Split(value, ",")...)
	}
	var problems []error
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		switch {
		case err != nil:
			problems = append(problems, err)
		case prefix.Addr().Is6() && !covered(converted.Prefixes, prefix.Masked()):
			converted.Prefixes = append(converted.Prefixes, prefix.Masked())
		}
	}
	if len(converted.Prefixes) == 0 {
		return converted, errors.Join(problems...) // a node without pods has no use for the gateway yet
	}
	for _, address := range node.Status.Addresses {
		own, err := netip.ParseAddr(address.Address)
		if err != nil || !own.Is6() || !own.IsGlobalUnicast() || address.Type != core.NodeInternalIP && address.Type != core.NodeExternalIP {
			continue
		}
		if prefix := netip.PrefixFrom(own, 128); !covered(converted.Prefixes, prefix) {
			converted.Prefixes = append(converted.Prefixes, prefix)
		}
	}
	return converted, errors.Join(problems...)
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
func strip(object any) (any, error) {
	node, ok := object.(*core.Node)
	if !ok {
		return object, nil
	}
	return &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Annotations: node.Annotations},
		Spec:       core.NodeSpec{PodCIDRs: node.Spec.PodCIDRs},
		Status:     core.NodeStatus{Addresses: node.Status.Addresses},
	}, nil
}
