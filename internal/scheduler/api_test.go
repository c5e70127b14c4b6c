package scheduler

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
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

// api is an API server in memory for nodes and pods, which lists, watches and binds,
// and misbehaves as it is told to.
type api struct {
	mu      sync.Mutex
	version int
	kinds   map[string]*kindOfObject
	// binds that took place, by pod. An answer may say otherwise.
	binds map[types.UID]int
	// binding says what becomes of a bind: whether it takes place, and the answer.
	// It is called without the lock, so it may block.
	binding func(pod *v1.Pod, node string) (done bool, answer error)
	// disorder makes scripted informers hear events twice, or late, if it is set.
	disorder *rand.Rand
	silent   bool
	// said are the conditions that pods had.
	said map[string][]v1.PodCondition
}

// kindOfObject is nodes, or pods.
type kindOfObject struct {
	objects map[string]metav1.Object
	history []watch.Event
	// oldest version that a watch can begin at.
	oldest  int
	streams []*stream
	// scripted informers are told without a watch.
	scripted []*scripted
}

func newAPI() *api {
	return &api{
		kinds: map[string]*kindOfObject{
			"nodes": {objects: map[string]metav1.Object{}}, "pods": {objects: map[string]metav1.Object{}},
		},
		binds:   map[types.UID]int{},
		said:    map[string][]v1.PodCondition{},
		binding: func(*v1.Pod, string) (bool, error) { return true, nil },
	}
}

// stream is a watch.
type stream struct {
	events chan watch.Event
	done   chan struct{}
	stop   sync.Once
}

func (s *stream) Stop()                          { s.stop.Do(func() { close(s.done) }) }
func (s *stream) ResultChan() <-chan watch.Event { return s.events }

// send sends a copy, as over a wire: whoever watches may change what it gets.
func (s *stream) send(event watch.Event) {
	event.Object = event.Object.DeepCopyObject()
	select {
	case s.events <- event:
	case <-s.done:
	}
}

// client is one for this server; what it does not keep, the fake keeps.
func (a *api) client() *fake.Clientset {
	client := fake.NewClientset()
	for kind := range a.kinds {
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
		if pod := a.pod(get.GetNamespace() + "/" + get.GetName()); pod != nil {
			return true, pod.DeepCopy(), nil
		}
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, get.GetName())
	})
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		binding := action.(clienttesting.CreateAction).GetObject().(*v1.Binding)
		return true, binding, a.bind(binding)
	})
	client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		return true, &v1.Pod{}, a.patchStatus(patch.GetNamespace()+"/"+patch.GetName(), patch.GetPatch())
	})
	client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.DeleteAction).GetName()
		pod := a.pod(action.GetNamespace() + "/" + name)
		if pod == nil {
			return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
		}
		a.remove(pod)
		return true, nil, nil
	})
	return client
}

func (a *api) list(kind string) runtime.Object {
	a.mu.Lock()
	defer a.mu.Unlock()
	about := metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}
	if kind == "nodes" {
		list := &v1.NodeList{ListMeta: about}
		for _, object := range a.kinds[kind].objects {
			list.Items = append(list.Items, *object.(*v1.Node).DeepCopy())
		}
		return list
	}
	list := &v1.PodList{ListMeta: about}
	for _, object := range a.kinds[kind].objects {
		list.Items = append(list.Items, *object.(*v1.Pod).DeepCopy())
	}
	return list
}

func (a *api) watch(kind, from string) (watch.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.kinds[kind]
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

func keyOf(object metav1.Object) string {
	if object.GetNamespace() == "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}

func (a *api) kindOf(object metav1.Object) *kindOfObject {
	if _, is := object.(*v1.Node); is {
		return a.kinds["nodes"]
	}
	return a.kinds["pods"]
}

// put creates or replaces an object, which is the server's from then on.
func (a *api) put(object metav1.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.putLocked(object)
}

func (a *api) putLocked(object metav1.Object) {
	k, kind := a.kindOf(object), watch.Modified
	if _, exists := k.objects[keyOf(object)]; !exists {
		kind = watch.Added
	}
	k.objects[keyOf(object)] = object
	a.tell(k, kind, object)
}

// remove deletes what is there under the name of an object.
func (a *api) remove(object metav1.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.kindOf(object)
	last := k.objects[keyOf(object)]
	if last == nil {
		return
	}
	delete(k.objects, keyOf(object))
	a.tell(k, watch.Deleted, last.(runtime.Object).DeepCopyObject().(metav1.Object))
}

func (a *api) tell(k *kindOfObject, kind watch.EventType, object metav1.Object) {
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

// deliver sends an event, in disorder if that is wanted.
func (a *api) deliver(s *scripted, event watch.Event) {
	if a.disorder == nil {
		s.send(event)
		return
	}
	switch n := a.disorder.IntN(10); {
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

// gap does something that no watch tells of: they end with the version being too
// old, and have to list.
func (a *api) gap(change func()) {
	a.mu.Lock()
	a.silent = true
	a.mu.Unlock()
	change()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.silent = false
	expired := apierrors.NewResourceExpired("too old resource version").ErrStatus
	for _, k := range a.kinds {
		a.version++
		k.oldest, k.history = a.version, nil
		for _, s := range k.streams {
			s.send(watch.Event{Type: watch.Error, Object: &expired})
		}
		k.streams = nil
		for _, s := range k.scripted {
			s.replace(slices.Collect(maps.Values(k.objects)))
		}
	}
}

// bind puts a pod on a node, as the server does: once, if it is still that pod.
func (a *api) bind(binding *v1.Binding) error {
	pod := a.pod(binding.Namespace + "/" + binding.Name)
	if pod == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, binding.Name)
	}
	done, answer := a.binding(pod, binding.Target.Name)
	if !done {
		return answer
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	pod, _ = a.kinds["pods"].objects[keyOf(pod)].(*v1.Pod)
	switch {
	case pod == nil:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, binding.Name)
	case pod.UID != binding.UID, pod.Spec.NodeName != "", pod.DeletionTimestamp != nil:
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, binding.Name, fmt.Errorf("pod is already assigned, or another"))
	}
	bound := pod.DeepCopy()
	bound.Spec.NodeName = binding.Target.Name
	a.binds[bound.UID]++
	a.putLocked(bound)
	return answer
}

func (a *api) pod(key string) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	pod, _ := a.kinds["pods"].objects[key].(*v1.Pod)
	return pod
}

// patchStatus takes what the scheduler says of a pod.
func (a *api) patchStatus(key string, patch []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	pod, _ := a.kinds["pods"].objects[key].(*v1.Pod)
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
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, key, fmt.Errorf("it is another"))
	}
	a.said[key] = append(a.said[key], changed.Status.Conditions...)
	a.putLocked(changed)
	return nil
}

func (a *api) nodes() []*v1.Node { return objectsOf[*v1.Node](a, "nodes") }
func (a *api) pods() []*v1.Pod   { return objectsOf[*v1.Pod](a, "pods") }

// objectsOf returns all objects of a kind, by name.
func objectsOf[T metav1.Object](a *api, kind string) []T {
	a.mu.Lock()
	defer a.mu.Unlock()
	objects := a.kinds[kind].objects
	all := make([]T, 0, len(objects))
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		all = append(all, objects[key].(T))
	}
	return all
}

func timeoutError() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout, Message: "the server took too long"}}
}

func plainNode(name, cpu string) *v1.Node {
	capacity := resources(cpu, "256Gi")
	capacity[v1.ResourcePods] = quantity("110")
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{v1.LabelHostname: name}},
		Status:     v1.NodeStatus{Allocatable: capacity, Capacity: capacity},
	}
}

func plainPod(name, cpu string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), Labels: map[string]string{}}}
	pod.Spec.SchedulerName = v1.DefaultSchedulerName
	pod.Spec.Containers = []v1.Container{{Name: "main", Image: "pause", Resources: v1.ResourceRequirements{Requests: resources(cpu, "64Mi")}}}
	return pod
}
