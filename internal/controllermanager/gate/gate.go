// Package gate lets controllers be built on informers that run already. Constructors of Kubernetes' controllers add
// event handlers before they have set all fields that the handlers use, because informers usually start later. A
// [Factory] returns informers whose handlers receive nothing until [Factory.Open].
package gate

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/admissionregistration"
	"k8s.io/client-go/informers/apiserverinternal"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/autoscaling"
	"k8s.io/client-go/informers/batch"
	"k8s.io/client-go/informers/certificates"
	"k8s.io/client-go/informers/coordination"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/discovery"
	"k8s.io/client-go/informers/events"
	"k8s.io/client-go/informers/extensions"
	"k8s.io/client-go/informers/flowcontrol"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/lifecycle"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/rbac"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/informers/storagemigration"
	"k8s.io/client-go/tools/cache"
	"k8s.io/controller-manager/pkg/informerfactory"
)

// Factory is a factory of informers whose handlers wait until Open.
type Factory struct {
	informers.SharedInformerFactory
	opened chan struct{}
	once   sync.Once
}

// New returns a factory of the informers of another one. Its options for namespaces and lists do not apply.
func New(inner informers.SharedInformerFactory) *Factory {
	return &Factory{SharedInformerFactory: inner, opened: make(chan struct{})}
}

// Open lets all handlers receive their events.
func (f *Factory) Open() { f.once.Do(func() { close(f.opened) }) }

// InformerFor implements internalinterfaces.SharedInformerFactory.
func (f *Factory) InformerFor(object runtime.Object, create internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return informer{f.SharedInformerFactory.InformerFor(object, create), f.opened}
}

// ForResource implements informers.SharedInformerFactory.
func (f *Factory) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	inner, err := f.SharedInformerFactory.ForResource(resource)
	return generic{inner, f.opened}, err
}

// Objects returns a factory of the informers of all resources whose handlers wait, too.
func (f *Factory) Objects(inner informerfactory.InformerFactory) informerfactory.InformerFactory {
	return objects{inner, f.opened}
}

type objects struct {
	informerfactory.InformerFactory
	opened <-chan struct{}
}

func (o objects) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	inner, err := o.InformerFactory.ForResource(resource)
	return generic{inner, o.opened}, err
}

type generic struct {
	informers.GenericInformer
	opened <-chan struct{}
}

func (g generic) Informer() cache.SharedIndexInformer {
	return informer{g.GenericInformer.Informer(), g.opened}
}

type informer struct {
	cache.SharedIndexInformer
	opened <-chan struct{}
}

func (i informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(handler{h, i.opened})
}

func (i informer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(handler{h, i.opened}, resync)
}

func (i informer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithOptions(handler{h, i.opened}, options)
}

// handler waits in its first call. The informer keeps further events for it meanwhile.
type handler struct {
	inner  cache.ResourceEventHandler
	opened <-chan struct{}
}

func (h handler) OnAdd(object any, isInInitialList bool) {
	<-h.opened
	h.inner.OnAdd(object, isInInitialList)
}

func (h handler) OnUpdate(before, after any) {
	<-h.opened
	h.inner.OnUpdate(before, after)
}

func (h handler) OnDelete(object any) {
	<-h.opened
	h.inner.OnDelete(object)
}

// The groups of the factory, with the informers of this one.

// Admissionregistration implements informers.SharedInformerFactory.
func (f *Factory) Admissionregistration() admissionregistration.Interface {
	return admissionregistration.New(f, "", nil)
}

// Internal implements informers.SharedInformerFactory.
func (f *Factory) Internal() apiserverinternal.Interface { return apiserverinternal.New(f, "", nil) }

// Apps implements informers.SharedInformerFactory.
func (f *Factory) Apps() apps.Interface { return apps.New(f, "", nil) }

// Autoscaling implements informers.SharedInformerFactory.
func (f *Factory) Autoscaling() autoscaling.Interface { return autoscaling.New(f, "", nil) }

// Batch implements informers.SharedInformerFactory.
func (f *Factory) Batch() batch.Interface { return batch.New(f, "", nil) }

// Certificates implements informers.SharedInformerFactory.
func (f *Factory) Certificates() certificates.Interface { return certificates.New(f, "", nil) }

// Coordination implements informers.SharedInformerFactory.
func (f *Factory) Coordination() coordination.Interface { return coordination.New(f, "", nil) }

// Core implements informers.SharedInformerFactory.
func (f *Factory) Core() core.Interface { return core.New(f, "", nil) }

// Discovery implements informers.SharedInformerFactory.
func (f *Factory) Discovery() discovery.Interface { return discovery.New(f, "", nil) }

// Events implements informers.SharedInformerFactory.
func (f *Factory) Events() events.Interface { return events.New(f, "", nil) }

// Extensions implements informers.SharedInformerFactory.
func (f *Factory) Extensions() extensions.Interface { return extensions.New(f, "", nil) }

// Flowcontrol implements informers.SharedInformerFactory.
func (f *Factory) Flowcontrol() flowcontrol.Interface { return flowcontrol.New(f, "", nil) }

// Lifecycle implements informers.SharedInformerFactory.
func (f *Factory) Lifecycle() lifecycle.Interface { return lifecycle.New(f, "", nil) }

// Networking implements informers.SharedInformerFactory.
func (f *Factory) Networking() networking.Interface { return networking.New(f, "", nil) }

// Node implements informers.SharedInformerFactory.
func (f *Factory) Node() node.Interface { return node.New(f, "", nil) }

// Policy implements informers.SharedInformerFactory.
func (f *Factory) Policy() policy.Interface { return policy.New(f, "", nil) }

// Rbac implements informers.SharedInformerFactory.
func (f *Factory) Rbac() rbac.Interface { return rbac.New(f, "", nil) }

// Resource implements informers.SharedInformerFactory.
func (f *Factory) Resource() resource.Interface { return resource.New(f, "", nil) }

// Scheduling implements informers.SharedInformerFactory.
func (f *Factory) Scheduling() scheduling.Interface { return scheduling.New(f, "", nil) }

// Storage implements informers.SharedInformerFactory.
func (f *Factory) Storage() storage.Interface { return storage.New(f, "", nil) }

// Storagemigration implements informers.SharedInformerFactory.
func (f *Factory) Storagemigration() storagemigration.Interface {
	return storagemigration.New(f, "", nil)
}
