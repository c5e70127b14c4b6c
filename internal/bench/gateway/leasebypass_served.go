package gateway

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/kube"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
)

// servedWatch is a watch of all Leases through kube-gateway, as kube-controller-manager sends it, with its certificate.
type servedWatch struct {
	client  kubernetes.Interface
	version string // of the last event
	opened  atomic.Int64
	group   sync.WaitGroup
}

// startServed opens the watch, which stays open until ctx ends, and waits until kube-gateway serves it.
func (s *bypassStep) startServed(ctx context.Context) (*servedWatch, error) {
	config, err := kube.Config(s.cluster.Dir.Kubeconfig(pki.ControllerManager.File))
	if err != nil {
		return nil, err
	}
	config.ContentType = protobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	list, err := s.cluster.Client.CoordinationV1().Leases(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("reading Leases: %w", err)
	}
	w := &servedWatch{client: client, version: list.ResourceVersion}
	serves := func() int {
		watches, _ := s.pages.sum(ctx, component.RoleGateway, "kube_gateway_node_path_watches", `resource="leases"`)
		return int(watches)
	}
	// The first watches are forwarded: kube-gateway asks whether the user may read Leases, and does not wait for the answer.
	for deadline := time.Now().Add(s.own.Timeout); serves() == 0; {
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("kube-gateway does not serve a watch of Leases after %s; see kube_gateway_node_path_reads_total", s.own.Timeout)
		}
		attempt, end := context.WithTimeout(ctx, time.Second)
		w.group.Go(func() { w.follow(attempt) })
		err := experiment.Sleep(ctx, time.Second/2)
		served := serves() > 0
		end()
		w.group.Wait()
		if err != nil || served {
			break
		}
	}
	w.group.Go(func() {
		for ctx.Err() == nil {
			w.follow(ctx)
		}
	})
	return w, ctx.Err()
}

// follow opens the watch after the last event, and reads it until it ends. The error is not needed: the next watch goes on.
func (w *servedWatch) follow(ctx context.Context) {
	watch, err := w.client.CoordinationV1().Leases(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{ResourceVersion: w.version, AllowWatchBookmarks: true})
	if err != nil {
		_ = experiment.Sleep(ctx, pollInterval)
		return
	}
	defer watch.Stop()
	w.opened.Add(1)
	for event := range watch.ResultChan() {
		if object, err := meta.Accessor(event.Object); err == nil {
			w.version = object.GetResourceVersion()
		}
	}
}
