package realcluster

import (
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	resourcehelper "k8s.io/component-helpers/resource"
)

// binds is the store of a reflector. It records when the watch first showed each pod, and the node of each
// pod, but does not cache the pods.
type binds struct {
	// prefix selects the measured pods. Other pods only use capacity of nodes.
	prefix string
	now    func() time.Time

	mu        sync.Mutex
	firstSeen map[string]time.Time
	boundPods map[string]boundPod     // pods that have a node
	counted   int                     // measured pods that have a node
	last      time.Time               // when counted increased last
	latency   *hdrhistogram.Histogram // in microseconds
}

// boundPod is the node of a pod, and what the pod uses there.
type boundPod struct {
	node     string
	requests corev1.ResourceList
}

func newBinds(prefix string, now func() time.Time) *binds {
	return &binds{
		prefix: prefix, now: now, firstSeen: map[string]time.Time{}, boundPods: map[string]boundPod{},
		latency: hdrhistogram.New(1, int64(time.Hour/time.Microsecond), 3),
	}
}

// bound returns the number of measured pods that have a node, and the time of the last bind.
func (b *binds) bound() (count int, last time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counted, b.last
}

// overcommitted returns the number of nodes whose pods request more than the node can allocate. A node that
// does not exist has no capacity.
func (b *binds) overcommitted(nodes []corev1.Node) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	free := make(map[string]corev1.ResourceList, len(nodes))
	for i := range nodes {
		free[nodes[i].Name] = nodes[i].Status.Allocatable.DeepCopy()
	}
	overcommitted := map[string]bool{}
	for _, pod := range b.boundPods {
		ofNode := free[pod.node]
		if ofNode == nil {
			overcommitted[pod.node] = true
			continue
		}
		for name, request := range pod.requests {
			rest := ofNode[name]
			rest.Sub(request)
			ofNode[name] = rest
			if rest.Sign() < 0 {
				overcommitted[pod.node] = true
			}
		}
	}
	return len(overcommitted)
}

// put records a pod. The caller holds the lock.
func (b *binds) put(object any) {
	pod := object.(*corev1.Pod)
	now := b.now()
	first, known := b.firstSeen[pod.Name]
	if !known {
		first = now
		b.firstSeen[pod.Name] = now
	}
	if pod.Spec.NodeName == "" {
		return
	}
	_, hadNode := b.boundPods[pod.Name]
	b.boundPods[pod.Name] = boundPod{pod.Spec.NodeName, requestsOf(pod)}
	if hadNode || !strings.HasPrefix(pod.Name, b.prefix) {
		return
	}
	b.counted++
	b.last = now
	if known {
		_ = b.latency.RecordValue(min(max(1, now.Sub(first).Microseconds()), b.latency.HighestTrackableValue()))
	}
}

// requestsOf returns the resource requests of a pod, including the pod itself as one of the resource pods.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	requests[corev1.ResourcePods] = onePod
	return requests
}

func (b *binds) Add(object any) error { return b.Update(object) }

func (b *binds) Update(object any) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.put(object)
	return nil
}

func (b *binds) Delete(object any) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if pod, ok := object.(*corev1.Pod); ok {
		delete(b.boundPods, pod.Name)
	}
	return nil
}

// Replace receives the first list, and another list when a watch has to start over.
func (b *binds) Replace(objects []any, _ string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, object := range objects {
		b.put(object)
	}
	return nil
}

func (b *binds) Resync() error { return nil }

var _ cache.ReflectorStore = &binds{}
