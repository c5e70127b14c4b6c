// Package schedtest has fixtures for tests of the scheduler: an API server in memory, informers, schedulers that
// use them, and plugins that fail.
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

// API is an API server in memory for nodes and pods. It supports lists, watches and binds. A test can make binds
// and watches fail.
type API struct {
	Mu      sync.Mutex
	version int
	Kinds   map[string]*kindOfObject
	// Binds has, by pod, the number of binds that took place, including those answered by an error.
	Binds map[types.UID]int
	// Binding decides whether a bind takes place, and returns the answer to it. It is called without
	// the lock, so it may block.
	Binding func(pod *v1.Pod, node string) (done bool, answer error)
	// Disorder, if set, makes scripted informers receive some events twice or late.
	Disorder *rand.Rand
	silent   bool
	// conditions are all conditions that the scheduler has written, by pod.
	conditions map[string][]v1.PodCondition
}

// kindOfObject has the objects of a kind: nodes or pods.
type kindOfObject struct {
	Objects map[string]metav1.Object
	history []watch.Event
	// oldest is the lowest resource version at which a watch can start.
	oldest  int
	streams []*stream
	// scripted informers receive events without a watch.
	scripted []*scripted
}

// NewAPI returns an empty API server.
func NewAPI() *API {
	return &API{
		Kinds: map[string]*kindOfObject{
			"nodes": {Objects: map[string]metav1.Object{}}, "pods": {Objects: map[string]metav1.Object{}},
		},
		Binds:      map[types.UID]int{},
		conditions: map[string][]v1.PodCondition{},
		Binding:    func(*v1.Pod, string) (bool, error) { return true, nil },
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

// ResultChan returns the events.
func (s *stream) ResultChan() <-chan watch.Event { return s.events }

// send sends a copy of an event, because the receiver may change the object.
func (s *stream) send(event watch.Event) {
	event.Object = event.Object.DeepCopyObject()
	select {
	case s.events <- event:
	case <-s.done:
	}
}

// Client returns a client of the API server. The fake client itself stores objects other than nodes and pods.
func (a *API) Client() *fake.Clientset {
	client := fake.NewClientset()
	for kind := range a.Kinds {
		client.PrependReactor("list", kind, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, a.list(kind), nil
		})
		client.PrependWatchReactor(kind, func(action clienttesting.Action) (bool, watch.Interface, error) {
			from := action.(clienttesting.WatchActionImpl).ListOptions.ResourceVersion
			w, err := a.watch(kind, from)
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
		a.Remove(pod)
		return true, nil, nil
	})
	return client
}

func (a *API) list(kind string) runtime.Object {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	about := metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}
	if kind == "nodes" {
		list := &v1.NodeList{ListMeta: about}
		for _, object := range a.Kinds[kind].Objects {
			list.Items = append(list.Items, *object.(*v1.Node).DeepCopy())
		}
		return list
	}
	list := &v1.PodList{ListMeta: about}
	for _, object := range a.Kinds[kind].Objects {
		list.Items = append(list.Items, *object.(*v1.Pod).DeepCopy())
	}
	return list
}

func (a *API) watch(kind, from string) (watch.Interface, error) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	k := a.Kinds[kind]
	first, err := strconv.Atoi(from)
	if err != nil || first < k.oldest {
		return nil, apierrors.NewResourceExpired("too old resource version")
	}
	s := &stream{events: make(chan watch.Event, len(k.history)+1<<12), done: make(chan struct{})}
	for _, event := range k.history {
		if versionOf(event.Object.(metav1.Object)) > first {
			s.send(event)
		}
	}
	k.streams = append(k.streams, s)
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

func (a *API) kindOf(object metav1.Object) *kindOfObject {
	if _, ok := object.(*v1.Node); ok {
		return a.Kinds["nodes"]
	}
	return a.Kinds["pods"]
}

// Put creates or replaces an object. The caller must not change the object afterwards.
func (a *API) Put(object metav1.Object) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.PutLocked(object)
}

// PutLocked is [API.Put] for callers that hold the lock.
func (a *API) PutLocked(object metav1.Object) {
	k, kind := a.kindOf(object), watch.Modified
	if _, exists := k.Objects[KeyOf(object)]; !exists {
		kind = watch.Added
	}
	k.Objects[KeyOf(object)] = object
	a.publish(k, kind, object)
}

// Remove deletes the object that has the name of an object.
func (a *API) Remove(object metav1.Object) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	k := a.kindOf(object)
	last := k.Objects[KeyOf(object)]
	if last == nil {
		return
	}
	delete(k.Objects, KeyOf(object))
	a.publish(k, watch.Deleted, last.(runtime.Object).DeepCopyObject().(metav1.Object))
}

// publish assigns a new resource version to an object and sends the event to all watches and scripted informers.
func (a *API) publish(k *kindOfObject, kind watch.EventType, object metav1.Object) {
	a.version++
	object.SetResourceVersion(strconv.Itoa(a.version))
	if a.silent {
		return
	}
	event := watch.Event{Type: kind, Object: object.(runtime.Object)}
	k.history = append(k.history, event)
	for _, s := range k.streams {
		s.send(event)
	}
	for _, s := range k.scripted {
		a.deliver(s, event)
	}
}

// deliver sends an event to a scripted informer; if Disorder is set, perhaps twice or after the next event.
func (a *API) deliver(s *scripted, event watch.Event) {
	if a.Disorder == nil {
		s.send(event)
		return
	}
	switch n := a.Disorder.IntN(10); {
	case n == 0 && s.held == nil:
		s.held = &event
		return
	case n < 3:
		s.send(event)
		fallthrough
	default:
		s.send(event)
	}
	if s.held != nil {
		s.send(*s.held)
		s.held = nil
	}
}

// Gap makes changes that no watch reports. All watches end with an expired resource version, so that informers
// list again.
func (a *API) Gap(change func()) {
	a.Mu.Lock()
	a.silent = true
	a.Mu.Unlock()
	change()
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.silent = false
	expired := apierrors.NewResourceExpired("too old resource version").ErrStatus
	for _, k := range a.Kinds {
		a.version++
		k.oldest, k.history = a.version, nil
		for _, s := range k.streams {
			s.send(watch.Event{Type: watch.Error, Object: &expired})
		}
		k.streams = nil
		for _, s := range k.scripted {
			s.replace(slices.Collect(maps.Values(k.Objects)))
		}
	}
}

// Bind binds a pod to a node, if the pod exists, has the UID in the binding and has no node.
func (a *API) Bind(binding *v1.Binding) error {
	pod := a.Pod(binding.Namespace + "/" + binding.Name)
	if pod == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, binding.Name)
	}
	done, answer := a.Binding(pod, binding.Target.Name)
	if !done {
		return answer
	}
	a.Mu.Lock()
	defer a.Mu.Unlock()
	pod, _ = a.Kinds["pods"].Objects[KeyOf(pod)].(*v1.Pod)
	switch {
	case pod == nil:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, binding.Name)
	case pod.UID != binding.UID, pod.Spec.NodeName != "", pod.DeletionTimestamp != nil:
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, binding.Name, fmt.Errorf("the pod already has a node or another UID"))
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
	pod, _ := a.Kinds["pods"].Objects[key].(*v1.Pod)
	return pod
}

// patchStatus applies a status patch of the scheduler.
func (a *API) patchStatus(key string, patch []byte) error {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	pod, _ := a.Kinds["pods"].Objects[key].(*v1.Pod)
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

// Nodes returns all nodes, by name.
func (a *API) Nodes() []*v1.Node { return objectsOf[*v1.Node](a, "nodes") }

// Pods returns all pods, by namespace and name.
func (a *API) Pods() []*v1.Pod { return objectsOf[*v1.Pod](a, "pods") }

// objectsOf returns all objects of a kind, by name.
func objectsOf[T metav1.Object](a *API, kind string) []T {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	objects := a.Kinds[kind].Objects
	all := make([]T, 0, len(objects))
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		all = append(all, objects[key].(T))
	}
	return all
}
