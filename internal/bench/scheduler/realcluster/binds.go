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

// binds is the store of a reflector that records, for each pod, when it was first seen and its
// node, instead of caching it.
type binds struct {
	// prefix selects the measured pods; other pods only use capacity of nodes.
	prefix string
	now    func() time.Time

	mu      sync.Mutex
	seen    map[string]time.Time
	placed  map[string]place
	counted int
	last    time.Time
	latency *hdrhistogram.Histogram // in microseconds
}

type place struct {
	node     string
	requests corev1.ResourceList
}

func newBinds(prefix string, now func() time.Time) *binds {
	return &binds{
		prefix: prefix, now: now, seen: map[string]time.Time{}, placed: map[string]place{},
		latency: hdrhistogram.New(1, int64(time.Hour/time.Microsecond), 3),
	}
}

// bound returns the number of measured pods that have a node, and the time of the last bind.
func (b *binds) bound() (count int, last time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.counted, b.last
}

// overcommitted returns the number of nodes whose pods request more than the node has. A node
// that does not exist has no capacity.
func (b *binds) overcommitted(nodes []corev1.Node) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := make(map[string]corev1.ResourceList, len(nodes))
	for i := range nodes {
		left[nodes[i].Name] = nodes[i].Status.Allocatable.DeepCopy()
	}
	over := map[string]bool{}
	for _, pod := range b.placed {
		has := left[pod.node]
		if has == nil {
			over[pod.node] = true
			continue
		}
		for name, wanted := range pod.requests {
			rest := has[name]
			rest.Sub(wanted)
			has[name] = rest
			if rest.Sign() < 0 {
				over[pod.node] = true
			}
		}
	}
	return len(over)
}

func (b *binds) put(object any) {
	pod := object.(*corev1.Pod)
	now := b.now()
	first, known := b.seen[pod.Name]
	if !known {
		first = now
		b.seen[pod.Name] = now
	}
	if pod.Spec.NodeName == "" {
		return
	}
	_, placed := b.placed[pod.Name]
	b.placed[pod.Name] = place{pod.Spec.NodeName, requestsOf(pod)}
	if placed || !strings.HasPrefix(pod.Name, b.prefix) {
		return
	}
	b.counted++
	b.last = now
	if known {
		_ = b.latency.RecordValue(min(max(1, now.Sub(first).Microseconds()), b.latency.HighestTrackableValue()))
	}
}

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
		delete(b.placed, pod.Name)
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
