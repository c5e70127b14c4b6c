package leader

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
)

// eventInformer is an informer without a watch. It gets its events from other replicas.
type eventInformer struct {
	toolscache.SharedIndexInformer // nil; all methods that are called are defined below

	// observe, if set, is called with each changed pod before the handlers.
	observe func(before, after *v1.Pod)

	mu       sync.Mutex
	indexer  toolscache.Indexer
	handlers []toolscache.ResourceEventHandler
}

func newEventInformer() *eventInformer {
	return &eventInformer{indexer: toolscache.NewIndexer(toolscache.DeletionHandlingMetaNamespaceKeyFunc, toolscache.Indexers{
		toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc,
	})}
}

// self returns the informer. It has the signature of the constructor that an informer factory calls.
func (i *eventInformer) self(kubernetes.Interface, time.Duration) toolscache.SharedIndexInformer {
	return i
}

// notify calls all handlers with a changed object. before is nil for a new object, and after for a
// deleted one.
func (i *eventInformer) notify(before, after any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.observe != nil {
		podBefore, _ := before.(*v1.Pod)
		podAfter, _ := after.(*v1.Pod)
		i.observe(podBefore, podAfter)
	}
	for _, handler := range i.handlers {
		switch {
		case before == nil:
			handler.OnAdd(after, false)
		case after == nil:
			handler.OnDelete(before)
		default:
			handler.OnUpdate(before, after)
		}
	}
}

// registration is the registration of a handler. It is always synced.
type registration struct{}

// Name returns the name for logs.
func (registration) Name() string { return "events of other replicas" }

// Done returns a closed channel.
func (registration) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// HasSynced returns true.
func (f registration) HasSynced() bool { return true }

// HasSyncedChecker returns a checker that is always done.
func (f registration) HasSyncedChecker() toolscache.DoneChecker { return f }

// AddEventHandler registers a handler for all later events. It does not report existing objects.
func (i *eventInformer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers = append(i.handlers, handler)
	return registration{}, nil
}

// AddEventHandlerWithResyncPeriod calls AddEventHandler; there are no resyncs.
func (i *eventInformer) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler, _ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// AddEventHandlerWithOptions calls AddEventHandler and ignores the options.
func (i *eventInformer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// RemoveEventHandler returns an error. The scheduler never calls it.
func (i *eventInformer) RemoveEventHandler(toolscache.ResourceEventHandlerRegistration) error {
	return errors.New("event handlers cannot be removed")
}

// AddIndexers adds indexes to the store.
func (i *eventInformer) AddIndexers(indexers toolscache.Indexers) error {
	return i.indexer.AddIndexers(indexers)
}

// GetIndexer returns the store.
func (i *eventInformer) GetIndexer() toolscache.Indexer { return i.indexer }

// GetStore returns the store.
func (i *eventInformer) GetStore() toolscache.Store { return i.indexer }

// HasSynced returns true.
func (*eventInformer) HasSynced() bool { return true }

// HasSyncedChecker returns a checker that is always done.
func (*eventInformer) HasSyncedChecker() toolscache.DoneChecker { return registration{} }

// SetTransform does nothing: the replica that watches an object has already transformed it.
func (*eventInformer) SetTransform(toolscache.TransformFunc) error { return nil }

// SetWatchErrorHandler does nothing: there is no watch.
func (*eventInformer) SetWatchErrorHandler(toolscache.WatchErrorHandler) error { return nil }

// LastSyncResourceVersion returns "".
func (*eventInformer) LastSyncResourceVersion() string { return "" }

// IsStopped returns false.
func (*eventInformer) IsStopped() bool { return false }

// Run waits until stop is closed.
func (*eventInformer) Run(stop <-chan struct{}) { <-stop }

// RunWithContext waits until the context ends.
func (*eventInformer) RunWithContext(ctx context.Context) { <-ctx.Done() }
