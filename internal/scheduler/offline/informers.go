package offline

import (
	"context"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterfile"
)

// fixedInformer is an informer without a watch. It delivers events when [objectInformers] says so, in the calling
// goroutine, so that a run is deterministic.
type fixedInformer struct {
	cache.SharedIndexInformer
	handlers []cache.ResourceEventHandler
}

// registration is the registration of a handler, which is always synced.
type registration struct{}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// HasSynced returns true.
func (registration) HasSynced() bool { return true }

// HasSyncedChecker returns a checker that is done.
func (registration) HasSyncedChecker() cache.DoneChecker { return registration{} }

// Name implements [cache.DoneChecker].
func (registration) Name() string { return "objects in memory" }

// Done implements [cache.DoneChecker].
func (registration) Done() <-chan struct{} { return closed }

// AddEventHandler registers a handler for later events.
func (f *fixedInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	f.handlers = append(f.handlers, h)
	return registration{}, nil
}

// AddEventHandlerWithResyncPeriod registers a handler. There are no resyncs.
func (f *fixedInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return f.AddEventHandler(h)
}

// AddEventHandlerWithOptions registers a handler. There are no resyncs.
func (f *fixedInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return f.AddEventHandler(h)
}

// HasSynced returns true.
func (*fixedInformer) HasSynced() bool { return true }

// HasSyncedChecker returns a checker that is done.
func (*fixedInformer) HasSyncedChecker() cache.DoneChecker { return registration{} }

// Run waits until the channel is closed.
func (*fixedInformer) Run(stop <-chan struct{}) { <-stop }

// RunWithContext waits until the context ends.
func (*fixedInformer) RunWithContext(ctx context.Context) { <-ctx.Done() }

// objectInformers are the informers of one scheduler.
type objectInformers struct {
	informers.SharedInformerFactory
	byType map[reflect.Type]*fixedInformer
}

// newInformers returns informers without objects.
func newInformers(client kubernetes.Interface) *objectInformers {
	o := &objectInformers{informers.NewSharedInformerFactory(client, 0), map[reflect.Type]*fixedInformer{}}
	for _, example := range clusterfile.Examples() {
		o.InformerFor(example, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
			f := &fixedInformer{SharedIndexInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, example, 0,
				cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
			o.byType[reflect.TypeOf(example)] = f
			return f
		})
	}
	return o
}

// of returns the informer for the type of an object.
func (o *objectInformers) of(object runtime.Object) *fixedInformer {
	return o.byType[reflect.TypeOf(object)]
}

// add stores an object and delivers the event. Events of pods are not delivered: the caller tells the cache and the queue
// what to do with a pod.
func (o *objectInformers) add(object runtime.Object) error {
	f := o.of(object)
	if err := f.GetIndexer().Add(object); err != nil {
		return err
	}
	if _, pod := object.(*v1.Pod); pod {
		return nil
	}
	for _, h := range f.handlers {
		h.OnAdd(object, true)
	}
	return nil
}

// update replaces an object and delivers the event.
func (o *objectInformers) update(before, after runtime.Object) error {
	f := o.of(after)
	if err := f.GetIndexer().Update(after); err != nil {
		return err
	}
	for _, h := range f.handlers {
		h.OnUpdate(before, after)
	}
	return nil
}

// setPod replaces a pod.
func (o *objectInformers) setPod(pod *v1.Pod) error { return o.of(pod).GetIndexer().Update(pod) }

// deletePod removes a pod.
func (o *objectInformers) deletePod(pod *v1.Pod) error { return o.of(pod).GetIndexer().Delete(pod) }

// withVersion sets the resource version of an object that was never stored. Caches of plugins compare versions.
func withVersion(object metav1.Object) {
	if object.GetResourceVersion() == "" {
		object.SetResourceVersion("1")
	}
}
