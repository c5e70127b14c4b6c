package gateway

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// informer is a client with an informer on the PodTemplates of the namespace, and with a connection of its
// own. No component of the cluster watches PodTemplates of a namespace.
type informer struct {
	controller cache.Controller

	mu sync.Mutex
	// lists is the number of lists since mark, and first the time of the first list or watch since then;
	// zero if there was none.
	lists int
	first time.Time
}

// newInformer returns an informer that connects to an address.
func newInformer(config *rest.Config, address string) (*informer, error) {
	client, err := newClient(config, address)
	if err != nil {
		return nil, err
	}
	i := &informer{}
	templates := client.CoreV1().PodTemplates(namespace)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			i.called(true)
			return templates.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			// A watch that begins with the existing objects is a list.
			i.called(options.SendInitialEvents != nil && *options.SendInitialEvents)
			return templates.Watch(ctx, options)
		},
	}
	_, i.controller = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source, ObjectType: &corev1.PodTemplate{}, Handler: cache.ResourceEventHandlerFuncs{},
	})
	return i, nil
}

// called records a list or a watch.
func (i *informer) called(list bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.first.IsZero() {
		i.first = time.Now()
	}
	if list {
		i.lists++
	}
}

// mark resets the counts.
func (i *informer) mark() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.lists, i.first = 0, time.Time{}
}

// relists returns the number of lists since mark, and whether the first list or watch since then was before a
// time.
func (i *informer) relists(before time.Time) (count int, early bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.lists, !i.first.IsZero() && i.first.Before(before)
}

// relists counts the lists of informers after an API server was killed. An informer that connected again before
// the API server was ready again was connected to it; the lists of all others are those that rebalancing caused.
func relists(informers []*informer, ready time.Time) (died, others int) {
	for _, i := range informers {
		count, early := i.relists(ready)
		if early {
			died += count
		} else {
			others += count
		}
	}
	return died, others
}

// startInformers starts informers that connect to a front, and waits until they have synced. They end with ctx.
func (l *lab) startInformers(ctx context.Context, f *front, count int) ([]*informer, error) {
	informers := make([]*informer, count)
	for n := range informers {
		i, err := newInformer(l.admin, f.address(n))
		if err != nil {
			return nil, err
		}
		informers[n] = i
		go i.controller.RunWithContext(ctx)
	}
	err := l.await(ctx, f.name+": informers synced", count, func() (synced int) {
		for _, i := range informers {
			if i.controller.HasSynced() {
				synced++
			}
		}
		return synced
	})
	return informers, err
}
