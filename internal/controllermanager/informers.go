package controllermanager

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"
)

const (
	// discoveryPeriod is how often a standby looks for new resources, such as those of a CustomResourceDefinition. It is
	// the period of the garbage collector.
	discoveryPeriod = 30 * time.Second
	// discoveryRetry is the pause after a failure, for example of an aggregated API server.
	discoveryRetry = 5 * time.Second
)

// resources is a set of resources.
type resources map[schema.GroupVersionResource]struct{}

func (r resources) add(list ...schema.GroupVersionResource) {
	for _, resource := range list {
		r[resource] = struct{}{}
	}
}

// informers runs the informers that the enabled controllers use, before the controllers exist. The factories of the
// controllers' context share an informer among all its users, so the controllers get these informers.
type informers struct {
	context   app.ControllerContext
	discovery discovery.DiscoveryInterface

	mu      sync.Mutex
	running map[schema.GroupVersionResource]cache.SharedIndexInformer
	// complete reports that discovery has succeeded once, so that running has all informers.
	complete bool
}

func newInformers(c app.ControllerContext, d discovery.DiscoveryInterface) *informers {
	return &informers{context: c, discovery: d, running: map[schema.GroupVersionResource]cache.SharedIndexInformer{}}
}

// run starts the informers, and those of new resources, until ctx ends. The informers run until stop is closed.
func (i *informers) run(ctx context.Context, stop <-chan struct{}) {
	logger, next := klog.FromContext(ctx), time.Now()
	for {
		if !time.Now().Before(next) {
			next = time.Now().Add(discoveryPeriod)
			if err := i.start(ctx, stop); err != nil {
				logger.Error(err, "Could not start all informers; trying again")
				next = time.Now().Add(discoveryRetry)
			}
		}
		i.synced() // for the metrics
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// start starts the informers that do not run yet.
func (i *informers) start(ctx context.Context, stop <-chan struct{}) error {
	needed, err := i.needed(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	for resource := range needed {
		if i.running[resource] != nil {
			continue
		}
		generic, failed := i.context.ObjectOrMetadataInformerFactory.ForResource(resource)
		if failed != nil {
			return fmt.Errorf("informer of %s: %w", resource, failed)
		}
		i.running[resource] = generic.Informer()
	}
	i.context.ObjectOrMetadataInformerFactory.Start(stop)
	i.complete = i.complete || err == nil
	return err
}

// synced reports whether the informers of all resources have the objects of the cluster in memory.
func (i *informers) synced() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.record() && i.complete
}

// record updates the metrics, and reports whether all running informers have synced. The caller holds the lock.
func (i *informers) record() bool {
	synced := 0
	for _, informer := range i.running {
		if informer.HasSynced() {
			synced++
		}
	}
	informersRunning.Set(float64(len(i.running)))
	informersSynced.Set(float64(synced))
	return synced == len(i.running)
}

// needed returns the resources that the enabled controllers read and that the API servers serve.
func (i *informers) needed(ctx context.Context) (resources, error) {
	served, err := i.served()
	needed := resources{}
	for name, descriptor := range app.NewControllerDescriptors() {
		if !i.runs(name, descriptor) {
			continue
		}
		for _, resource := range informersOf[name] {
			if _, ok := served[resource]; ok {
				needed.add(resource)
			}
		}
		dynamic, failed := i.dynamic(ctx, name)
		if failed != nil && err == nil {
			err = failed
		}
		maps.Copy(needed, dynamic)
	}
	return needed, err
}

// runs reports whether a controller will be built.
func (i *informers) runs(name string, descriptor *app.ControllerDescriptor) bool {
	for _, gate := range descriptor.GetRequiredFeatureGates() {
		if !utilfeature.DefaultFeatureGate.Enabled(gate) {
			return false
		}
	}
	// The controller for tokens cannot be disabled.
	return name == names.ServiceAccountTokenController || i.context.IsControllerEnabled(descriptor)
}

// served returns all resources of the API servers.
func (i *informers) served() (resources, error) {
	_, lists, err := i.discovery.ServerGroupsAndResources()
	served := resources{}
	for _, list := range lists {
		version, parseErr := schema.ParseGroupVersion(list.GroupVersion)
		if parseErr != nil {
			continue // upstream's controllers cannot use it either
		}
		for _, resource := range list.APIResources {
			served.add(version.WithResource(resource.Name))
		}
	}
	return served, err
}

// dynamic returns the resources of the two controllers that read all kinds of objects, except those that they ignore.
func (i *informers) dynamic(ctx context.Context, controller string) (found resources, err error) {
	ignored := map[schema.GroupResource]struct{}{}
	switch controller {
	case names.GarbageCollectorController:
		config := i.context.ComponentConfig.GarbageCollectorController
		if !config.EnableGarbageCollector {
			return nil, nil
		}
		for _, r := range config.GCIgnoredResources {
			ignored[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = struct{}{}
		}
		found, err = garbagecollector.GetDeletableResources(ctx, discovery.ToServerResourcesInterfaceWithContext(i.discovery))
	case names.ResourceQuotaController:
		ignored = quotainstall.DefaultIgnoredResources()
		found, err = resourcequota.GetQuotableResources(i.discovery.ServerPreferredNamespacedResources)
	}
	for resource := range found {
		if _, ok := ignored[resource.GroupResource()]; ok {
			delete(found, resource)
		}
	}
	return found, err
}

// notSynced returns the types of the informers that have started but not synced. After the controllers were built,
// these are the informers that the standby lacked.
func (i *informers) notSynced() (types []string) {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	for informer, synced := range i.context.InformerFactory.WaitForCacheSync(done.Done()) {
		if !synced {
			types = append(types, informer.String())
		}
	}
	return types
}
