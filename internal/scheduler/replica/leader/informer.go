package leader

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
)

// fedInformer takes the place of an informer of which the scheduler wants to have the
// events, and that has no watch of its own: other replicas say what has happened.
type eventInformer struct {
	toolscache.SharedIndexInformer // Of what is not here nobody makes use.

	mu       sync.Mutex
	indexer  toolscache.Indexer
	handlers []toolscache.ResourceEventHandler
}

func newEventInformer() *eventInformer {
	return &eventInformer{indexer: toolscache.NewIndexer(toolscache.DeletionHandlingMetaNamespaceKeyFunc, toolscache.Indexers{
		toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc,
	})}
}

// make is what a factory makes informers with.
func (i *eventInformer) make(kubernetes.Interface, time.Duration) toolscache.SharedIndexInformer {
	return i
}

// notify says to all handlers that an object became another; either may be nil.
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

// fed is the registration of a handler. There is nothing that it could miss.
type registration struct{}

func (registration) Name() string { return "fed by other replicas" }

func (registration) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (f registration) HasSynced() bool { return true }

func (f registration) HasSyncedChecker() toolscache.DoneChecker { return f }

// AddEventHandler calls a handler with what happens from now on.
func (i *eventInformer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers = append(i.handlers, handler)
	return registration{}, nil
}

// AddEventHandlerWithResyncPeriod is AddEventHandler: there are no resyncs.
func (i *eventInformer) AddEventHandlerWithResyncPeriod(handler toolscache.ResourceEventHandler, _ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// AddEventHandlerWithOptions is AddEventHandler.
func (i *eventInformer) AddEventHandlerWithOptions(handler toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// RemoveEventHandler is not possible: the scheduler never does it.
func (i *eventInformer) RemoveEventHandler(toolscache.ResourceEventHandlerRegistration) error {
	return errors.New("handlers of what other replicas say stay")
}

// AddIndexers adds to the indexes of the store.
func (i *eventInformer) AddIndexers(indexers toolscache.Indexers) error {
	return i.indexer.AddIndexers(indexers)
}

// GetIndexer is the store.
func (i *eventInformer) GetIndexer() toolscache.Indexer { return i.indexer }

// GetStore is the store.
func (i *eventInformer) GetStore() toolscache.Store { return i.indexer }

// HasSynced is always so.
func (*eventInformer) HasSynced() bool { return true }

// HasSyncedChecker is done from the start.
func (*eventInformer) HasSyncedChecker() toolscache.DoneChecker { return registration{} }

// SetTransform has nothing to transform.
func (*eventInformer) SetTransform(toolscache.TransformFunc) error { return nil }

// SetWatchErrorHandler has no watch.
func (*eventInformer) SetWatchErrorHandler(toolscache.WatchErrorHandler) error { return nil }

// LastSyncResourceVersion is none.
func (*eventInformer) LastSyncResourceVersion() string { return "" }

// IsStopped is never so.
func (*eventInformer) IsStopped() bool { return false }

// Run waits until it is told to stop.
func (*eventInformer) Run(stop <-chan struct{}) { <-stop }

// RunWithContext waits until the context ends.
func (*eventInformer) RunWithContext(ctx context.Context) { <-ctx.Done() }
