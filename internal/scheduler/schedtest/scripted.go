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

// scripted is an informer that receives events immediately and without a watch. So the order of events depends only
// on the seed of the test, and a list takes no time. It handles events as client-go's informers do.
type scripted struct {
	toolscache.SharedIndexInformer
	handlers []toolscache.ResourceEventHandler
	// held is an event that the next event overtakes.
	held *watch.Event
}

// script returns an informer factory whose informers for nodes and pods are scripted.
func (a *API) script(client kubernetes.Interface) informers.SharedInformerFactory {
	factory := informers.NewSharedInformerFactory(client, 0)
	for kind, object := range map[string]runtime.Object{"nodes": &v1.Node{}, "pods": &v1.Pod{}} {
		factory.InformerFor(object, func(kubernetes.Interface, time.Duration) toolscache.SharedIndexInformer {
			s := &scripted{SharedIndexInformer: toolscache.NewSharedIndexInformer(nil, object, 0, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})}
			a.Kinds[kind].scripted = append(a.Kinds[kind].scripted, s)
			return s
		})
	}
	return factory
}

func (s *scripted) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	s.handlers = append(s.handlers, h)
	return nil, nil
}

func (s *scripted) AddEventHandlerWithResyncPeriod(h toolscache.ResourceEventHandler, _ time.Duration) (toolscache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandler(h)
}

func (s *scripted) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, _ toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandler(h)
}

func (s *scripted) send(event watch.Event) {
	object := event.Object.(metav1.Object)
	if event.Type == watch.Deleted {
		s.must(s.GetIndexer().Delete(object))
		s.each(func(h toolscache.ResourceEventHandler) { h.OnDelete(object) })
		return
	}
	s.set(object)
}

func (s *scripted) set(object metav1.Object) {
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

// replace replaces all objects, as a new list does.
func (s *scripted) replace(objects []metav1.Object) {
	s.held = nil
	gone := map[string]any{}
	for _, key := range s.GetIndexer().ListKeys() {
		gone[key], _, _ = s.GetIndexer().GetByKey(key)
	}
	slices.SortFunc(objects, func(a, b metav1.Object) int { return versionOf(a) - versionOf(b) })
	for _, object := range objects {
		delete(gone, KeyOf(object))
	}
	for _, key := range slices.Sorted(maps.Keys(gone)) {
		s.must(s.GetIndexer().Delete(gone[key]))
		s.each(func(h toolscache.ResourceEventHandler) {
			h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: key, Obj: gone[key]})
		})
	}
	for _, object := range objects {
		s.set(object)
	}
}

func (s *scripted) each(f func(toolscache.ResourceEventHandler)) {
	for _, h := range s.handlers {
		f(h)
	}
}

func (s *scripted) must(err error) {
	if err != nil {
		panic(err) // a store in memory
	}
}
