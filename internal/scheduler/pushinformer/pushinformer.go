// Package pushinformer has informers that do not watch an API server. The caller pushes objects, and event handlers are called at
// once, in the calling goroutine, so that a run is deterministic. Package offline, tests and benchmarks use them for objects for
// which a scheduler needs events.
package pushinformer

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Informer is an informer to which objects are pushed. It is not safe for concurrent use.
type Informer struct {
	cache.SharedIndexInformer
	handlers []cache.ResourceEventHandler
}

// Register makes the informers of a factory for the given types of objects pushed ones. It must precede any other use of them.
func Register(factory informers.SharedInformerFactory, types ...runtime.Object) {
	for _, object := range types {
		informerFor(factory, object)
	}
}

// informerFor returns the informer of a factory for the type of an object. It creates a pushed one if there is none.
func informerFor(factory informers.SharedInformerFactory, object runtime.Object) cache.SharedIndexInformer {
	return factory.InformerFor(object, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
		return &Informer{SharedIndexInformer: cache.NewSharedIndexInformer(nil, object, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
	})
}

// Push adds or replaces an object in the pushed informer of a factory.
func Push(factory informers.SharedInformerFactory, object runtime.Object) error {
	i := informerFor(factory, object).(*Informer)
	before, exists, err := i.GetIndexer().Get(object)
	if err != nil {
		return err
	}
	if err := i.GetIndexer().Update(object); err != nil {
		return err
	}
	for _, handler := range i.handlers {
		if exists {
			handler.OnUpdate(before, object)
		} else {
			handler.OnAdd(object, false)
		}
	}
	return nil
}

// Delete deletes an object from the pushed informer of a factory.
func Delete(factory informers.SharedInformerFactory, object runtime.Object) error {
	i := informerFor(factory, object).(*Informer)
	if err := i.GetIndexer().Delete(object); err != nil {
		return err
	}
	for _, handler := range i.handlers {
		handler.OnDelete(object)
	}
	return nil
}

// AddEventHandler adds a handler of the events of all objects that are pushed later.
func (i *Informer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	i.handlers = append(i.handlers, handler)
	return synced{}, nil
}

// AddEventHandlerWithResyncPeriod is AddEventHandler: there is no resync.
func (i *Informer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// AddEventHandlerWithOptions is AddEventHandler.
func (i *Informer) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// HasSynced returns true.
func (*Informer) HasSynced() bool { return true }

// HasSyncedChecker returns a checker that is done.
func (*Informer) HasSyncedChecker() cache.DoneChecker { return synced{} }

// Run waits until the channel is closed.
func (*Informer) Run(stop <-chan struct{}) { <-stop }

// RunWithContext waits until the context ends.
func (*Informer) RunWithContext(ctx context.Context) { <-ctx.Done() }

// synced is the registration of a handler that has no events to wait for.
type synced struct{}

// HasSynced returns true.
func (synced) HasSynced() bool { return true }

// HasSyncedChecker returns a checker that is done.
func (s synced) HasSyncedChecker() cache.DoneChecker { return s }

// Name returns what a caller waits for.
func (synced) Name() string { return "pushed objects" }

// Done returns a closed channel.
func (synced) Done() <-chan struct{} { return closed }

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
