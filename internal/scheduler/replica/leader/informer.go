package leader

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
)

// eventInformer is an informer without a watch: other replicas send the events.
type eventInformer struct {
	toolscache.SharedIndexInformer // Methods that are not overridden are not called.

	mu       sync.Mutex
	indexer  toolscache.Indexer
	handlers []toolscache.ResourceEventHandler
}

func newEventInformer() *eventInformer {
	return &eventInformer{indexer: toolscache.NewIndexer(toolscache.DeletionHandlingMetaNamespaceKeyFunc, toolscache.Indexers{
		toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc,
	})}
}

// make is the constructor that an informer factory calls.
func (i *eventInformer) make(kubernetes.Interface, time.Duration) toolscache.SharedIndexInformer {
	return i
}

// notify calls all handlers with a changed object. before is nil for a new object, and after for a
// deleted one.
func (i *eventInformer) notify(before, after any) {
	i.mu.Lock()
	defer i.mu.Unlock()
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

// registration is the registration of a handler, which is always synced.
type registration struct{}

// Name returns a name for logs.
func (registration) Name() string { return "events of other replicas" }

// Done returns a closed channel.
func (registration) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// HasSynced returns true.
func (f registration) HasSynced() bool { return true }

// HasSyncedChecker returns a checker that is done.
func (f registration) HasSyncedChecker() toolscache.DoneChecker { return f }

// AddEventHandler calls a handler with all events from now on.
func (i *eventInformer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers = append(i.handlers, handler)
	return registration{}, nil
}

// AddEventHandlerWithResyncPeriod is AddEventHandler; there are no resyncs.
func (i *eventInformer) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler, _ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// AddEventHandlerWithOptions is AddEventHandler.
func (i *eventInformer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// RemoveEventHandler returns an error; the scheduler never calls it.
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

// HasSyncedChecker returns a checker that is done.
func (*eventInformer) HasSyncedChecker() toolscache.DoneChecker { return registration{} }

// SetTransform does nothing: objects arrive transformed.
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
