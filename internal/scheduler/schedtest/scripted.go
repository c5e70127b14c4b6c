package schedtest

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
)

// scriptedInformer is an informer that receives events synchronously instead of by a watch: the
// order of events depends only on the seed, and a list takes no time. It calls event handlers as
// client-go's informers do.
type scriptedInformer struct {
	toolscache.SharedIndexInformer
	handlers []toolscache.ResourceEventHandler
	// delayed is an event that is sent after the next one.
	delayed *watch.Event
}

// scriptedFactory returns a factory whose informers for nodes and pods are scripted.
func (a *API) scriptedFactory(client kubernetes.Interface) informers.SharedInformerFactory {
	factory := informers.NewSharedInformerFactory(client, 0)
	for resource, object := range map[string]runtime.Object{"nodes": &v1.Node{}, "pods": &v1.Pod{}} {
		factory.InformerFor(object, func(kubernetes.Interface, time.Duration) toolscache.SharedIndexInformer {
			s := &scriptedInformer{SharedIndexInformer: toolscache.NewSharedIndexInformer(nil, object, 0, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})}
			a.Resources[resource].informers = append(a.Resources[resource].informers, s)
			return s
		})
	}
	return factory
}

func (s *scriptedInformer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	s.handlers = append(s.handlers, h)
	return nil, nil
}

func (s *scriptedInformer) AddEventHandlerWithResyncPeriod(h toolscache.ResourceEventHandler, _ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandler(h)
}

func (s *scriptedInformer) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandler(h)
}

func (s *scriptedInformer) send(event watch.Event) {
	object := event.Object.(metav1.Object)
	if event.Type == watch.Deleted {
		// A late event may be that of an earlier object with the name. The present one stays in the list, so
		// its deletion is noticed even if that event is lost.
		if known, exists, _ := s.GetIndexer().GetByKey(KeyOf(object)); exists && known.(metav1.Object).GetUID() == object.GetUID() {
			s.must(s.GetIndexer().Delete(object))
		}
		s.each(func(h toolscache.ResourceEventHandler) { h.OnDelete(object) })
		return
	}
	s.set(object)
}

func (s *scriptedInformer) set(object metav1.Object) {
	before, exists, err := s.GetIndexer().GetByKey(KeyOf(object))
	s.must(err)
	s.must(s.GetIndexer().Update(object))
	s.each(func(h toolscache.ResourceEventHandler) {
		if exists {
			h.OnUpdate(before, object)
		} else {
			h.OnAdd(object, false)
		}
	})
}

// replace handles a new list: objects that are not in it have been deleted.
func (s *scriptedInformer) replace(objects []metav1.Object) {
	s.delayed = nil
	deleted := map[string]any{}
	for _, key := range s.GetIndexer().ListKeys() {
		deleted[key], _, _ = s.GetIndexer().GetByKey(key)
	}
	slices.SortFunc(objects, func(a, b metav1.Object) int { return versionOf(a) - versionOf(b) })
	for _, object := range objects {
		delete(deleted, KeyOf(object))
	}
	for _, key := range slices.Sorted(maps.Keys(deleted)) {
		s.must(s.GetIndexer().Delete(deleted[key]))
		s.each(func(h toolscache.ResourceEventHandler) {
			h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: key, Obj: deleted[key]})
		})
	}
	for _, object := range objects {
		s.set(object)
	}
}

func (s *scriptedInformer) each(f func(toolscache.ResourceEventHandler)) {
	for _, h := range s.handlers {
		f(h)
	}
}

func (s *scriptedInformer) must(err error) {
	if err != nil {
		panic(err) // The indexer is in memory and does not fail.
	}
}
