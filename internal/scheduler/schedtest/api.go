// Package schedtest has fixtures for tests of the scheduler: an API server in memory, informers,
// and schedulers that use them.
package schedtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// API is an API server in memory for nodes and pods. It serves lists, watches and binds, and
// injects the faults that a test sets.
type API struct {
	Mu      sync.Mutex
	version int
	// Resources are the collections "nodes" and "pods".
	Resources map[string]*collection
	// Others are the objects of other resources that each new client has.
	Others []runtime.Object
	// Binds counts the executed binds of each pod, including those that were answered with an
	// error.
	Binds map[types.UID]int
	// OnBind decides whether a bind is executed, and which error is returned for it. It is called
	// without the lock, so it may block.
	OnBind func(pod *v1.Pod, node string) (execute bool, answer error)
	// OnClient is called with each new client; nil if not needed.
	OnClient func(*fake.Clientset)
	// OnDelete decides whether a deletion by a client is executed. It is called without the lock.
	OnDelete func(pod *v1.Pod) bool
	// Disorder, if set, makes scripted informers receive some events twice or late.
	Disorder *rand.Rand
	// muted is set while changes send no events.
	muted bool
	// conditions are all conditions that the scheduler wrote, by pod.
	conditions map[string][]v1.PodCondition
}

// collection has the objects of one resource.
type collection struct {
	Objects map[string]metav1.Object
	history []watch.Event
	// oldest is the first version that a watch can start at.
	oldest  int
	streams []*stream
	// informers receive events without a watch.
	informers []*scriptedInformer
}

// NewAPI returns an empty API server.
func NewAPI() *API {
	return &API{
		Resources: map[string]*collection{
			"nodes": {Objects: map[string]metav1.Object{}}, "pods": {Objects: map[string]metav1.Object{}},
		},
		Binds:      map[types.UID]int{},
		conditions: map[string][]v1.PodCondition{},
		OnBind:     func(*v1.Pod, string) (bool, error) { return true, nil },
		OnDelete:   func(*v1.Pod) bool { return true },
	}
}

// stream is a watch.
type stream struct {
	events chan watch.Event
	done   chan struct{}
	stop   sync.Once
}

// Stop ends the watch.
func (s *stream) Stop() { s.stop.Do(func() { close(s.done) }) }

// ResultChan returns the channel of events.
func (s *stream) ResultChan() <-chan watch.Event { return s.events }

// send sends a copy of an event, because the receiver may change the object.
func (s *stream) send(event watch.Event) {
	event.Object = event.Object.DeepCopyObject()
	select {
	case s.events <- event:
	case <-s.done:
	}
}

// Client returns a client. Client-go's fake serves all resources except nodes and pods.
func (a *API) Client() *fake.Clientset {
	client := fake.NewClientset(a.Others...)
	for resource := range a.Resources {
		client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, a.list(resource), nil
		})
		client.PrependWatchReactor(resource, func(action clienttesting.Action) (bool, watch.Interface, error) {
			from := action.(clienttesting.WatchActionImpl).ListOptions.ResourceVersion
			w, err := a.watch(resource, from)
			return true, w, err
		})
	}
	client.PrependReactor("get", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		get := action.(clienttesting.GetAction)
		if pod := a.Pod(get.GetNamespace() + "/" + get.GetName()); pod != nil {
			return true, pod.DeepCopy(), nil
		}
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, get.GetName())
	})
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		binding := action.(clienttesting.CreateAction).GetObject().(*v1.Binding)
		return true, binding, a.Bind(binding)
	})
	client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		return true, &v1.Pod{}, a.patchStatus(patch.GetNamespace()+"/"+patch.GetName(), patch.GetPatch())
	})
	client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.DeleteAction).GetName()
		pod := a.Pod(action.GetNamespace() + "/" + name)
		if pod == nil {
			return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
		}
		if a.onDelete()(pod) {
			a.Remove(pod)
		}
		return true, nil, nil
	})
	if a.OnClient != nil {
		a.OnClient(client)
	}
	return client
}

func (a *API) onDelete() func(*v1.Pod) bool {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return a.OnDelete
}

func (a *API) list(resource string) runtime.Object {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	meta := metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}
	if resource == "nodes" {
		list := &v1.NodeList{ListMeta: meta}
		for _, object := range a.Resources[resource].Objects {
			list.Items = append(list.Items, *object.(*v1.Node).DeepCopy())
		}
		return list
	}
	list := &v1.PodList{ListMeta: meta}
	for _, object := range a.Resources[resource].Objects {
		list.Items = append(list.Items, *object.(*v1.Pod).DeepCopy())
	}
	return list
}

func (a *API) watch(resource, from string) (watch.Interface, error) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	c := a.Resources[resource]
	first, err := strconv.Atoi(from)
	if err != nil || first < c.oldest {
		return nil, apierrors.NewResourceExpired("too old resource version")
	}
	s := &stream{events: make(chan watch.Event, len(c.history)+1<<12), done: make(chan struct{})}
	for _, event := range c.history {
		if versionOf(event.Object.(metav1.Object)) > first {
			s.send(event)
		}
	}
	c.streams = append(c.streams, s)
	return s, nil
}

func versionOf(object metav1.Object) int {
	version, err := strconv.Atoi(object.GetResourceVersion())
	if err != nil {
		panic(err)
	}
	return version
}

// KeyOf returns the key of an object: namespace/name, or the name of a node.
func KeyOf(object metav1.Object) string {
	if object.GetNamespace() == "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}

func (a *API) collectionOf(object metav1.Object) *collection {
	if _, ok := object.(*v1.Node); ok {
		return a.Resources["nodes"]
	}
	return a.Resources["pods"]
}

// Put creates or replaces an object. The API server owns the object afterwards.
func (a *API) Put(object metav1.Object) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.PutLocked(object)
}

// PutLocked is [API.Put] for callers that hold the lock.
func (a *API) PutLocked(object metav1.Object) {
	c, event := a.collectionOf(object), watch.Modified
	if _, exists := c.Objects[KeyOf(object)]; !exists {
		event = watch.Added
	}
	c.Objects[KeyOf(object)] = object
	a.notify(c, event, object)
}

// Remove deletes the object with the key of the given object, if it exists.
func (a *API) Remove(object metav1.Object) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	c := a.collectionOf(object)
	last := c.Objects[KeyOf(object)]
	if last == nil {
		return
	}
	delete(c.Objects, KeyOf(object))
	a.notify(c, watch.Deleted, last.(runtime.Object).DeepCopyObject().(metav1.Object))
}

// notify gives a changed object the next version and sends an event about it.
func (a *API) notify(c *collection, event watch.EventType, object metav1.Object) {
	a.version++
	object.SetResourceVersion(strconv.Itoa(a.version))
	if a.muted {
		return
	}
	e := watch.Event{Type: event, Object: object.(runtime.Object)}
	c.history = append(c.history, e)
	for _, s := range c.streams {
		s.send(e)
	}
	for _, informer := range c.informers {
		a.deliver(informer, e)
	}
}

// deliver sends an event to a scripted informer. With Disorder, it sends some events twice and
// delays others until the next event has been sent.
func (a *API) deliver(to *scriptedInformer, event watch.Event) {
	if a.Disorder == nil {
		to.send(event)
		return
	}
	switch n := a.Disorder.IntN(10); {
	case n == 0 && to.delayed == nil:
		to.delayed = &event
		return
	case n < 3:
		to.send(event)
		fallthrough
	default:
		to.send(event)
	}
	if to.delayed != nil {
		to.send(*to.delayed)
		to.delayed = nil
	}
}

// WithoutEvents calls change, and sends no events for the changes that it makes. Afterwards all
// watches end with an expired version, so their clients list again.
func (a *API) WithoutEvents(change func()) {
	a.Mu.Lock()
	a.muted = true
	a.Mu.Unlock()
	change()
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.muted = false
	expired := apierrors.NewResourceExpired("too old resource version").ErrStatus
	for _, c := range a.Resources {
		a.version++
		c.oldest, c.history = a.version, nil
		for _, s := range c.streams {
			s.send(watch.Event{Type: watch.Error, Object: &expired})
		}
		c.streams = nil
		for _, informer := range c.informers {
			informer.replace(slices.Collect(maps.Values(c.Objects)))
		}
	}
}

// Bind binds a pod to a node. Like an API server, it requires that the pod exists, has the UID of
// the binding, has no node and is not being deleted.
func (a *API) Bind(binding *v1.Binding) error {
	pod := a.Pod(binding.Namespace + "/" + binding.Name)
	if pod == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, binding.Name)
	}
	execute, answer := a.OnBind(pod, binding.Target.Name)
	if !execute {
		return answer
	}
	a.Mu.Lock()
	defer a.Mu.Unlock()
	pod, _ = a.Resources["pods"].Objects[KeyOf(pod)].(*v1.Pod)
	switch {
	case pod == nil:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, binding.Name)
	case pod.UID != binding.UID, pod.Spec.NodeName != "", pod.DeletionTimestamp != nil:
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, binding.Name, fmt.Errorf("the pod has another UID, has a node, or is being deleted"))
	}
	bound := pod.DeepCopy()
	bound.Spec.NodeName = binding.Target.Name
	a.Binds[bound.UID]++
	a.PutLocked(bound)
	return answer
}

// Pod returns the pod with a key (namespace/name), or nil.
func (a *API) Pod(key string) *v1.Pod {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	pod, _ := a.Resources["pods"].Objects[key].(*v1.Pod)
	return pod
}

// patchStatus applies a status patch of the scheduler.
func (a *API) patchStatus(key string, patch []byte) error {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	pod, _ := a.Resources["pods"].Objects[key].(*v1.Pod)
	if pod == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key)
	}
	before, err := json.Marshal(pod)
	if err != nil {
		return err
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch, pod)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	changed := &v1.Pod{}
	if err := json.Unmarshal(after, changed); err != nil {
		return err
	}
	if changed.UID != pod.UID {
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, key, fmt.Errorf("the pod has another UID"))
	}
	a.conditions[key] = append(a.conditions[key], changed.Status.Conditions...)
	a.PutLocked(changed)
	return nil
}

// Nodes returns all nodes, sorted by name.
func (a *API) Nodes() []*v1.Node { return objectsOf[*v1.Node](a, "nodes") }

// Pods returns all pods, sorted by namespace and name.
func (a *API) Pods() []*v1.Pod { return objectsOf[*v1.Pod](a, "pods") }

// objectsOf returns all objects of a resource, sorted by key.
func objectsOf[T metav1.Object](a *API, resource string) []T {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	objects := a.Resources[resource].Objects
	all := make([]T, 0, len(objects))
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		all = append(all, objects[key].(T))
	}
	return all
}
