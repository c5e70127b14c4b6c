package controlplane

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

const pollInterval = 50 * time.Millisecond

// startups is the store of a reflector. It records the progress of each pod, but does not cache the pod.
type startups struct {
	// prefix selects the pods whose startup is measured. All pods are counted but those whose names begin with ignored,
	// if it is not empty.
	prefix, ignored string

	mu            sync.Mutex
	pods          map[types.NamespacedName]stage
	sent          map[string]time.Time // when the request to create a pod was sent
	bound         int
	running       int
	lastBound     time.Time
	lastRun       time.Time
	sinceCreation *experiment.Latencies
	sinceRequest  *experiment.Latencies
	// lateCount counts the pods whose startup took longer than limit. A limit of 0 means no limit.
	limit     time.Duration
	lateCount int
}

// stage is the progress of a pod.
type stage int

const (
	pending stage = iota
	bound
	running
)

// watchPods watches the pods of the namespace until ctx ends, and measures the startup of pods with this
// prefix. As in clusterloader2, the startup latency counts from the creationTimestamp, which has whole
// seconds, until the watch shows the pod running. If requestSent was called for a pod, the latency since
// then is recorded as well.
func (t *storeRun) watchPods(ctx context.Context, prefix string) *startups {
	return t.watchNamespace(ctx, namespace, newStartups(prefix))
}

// watchOthers is watchPods for all pods but those that fill the cluster.
func (t *storeRun) watchOthers(ctx context.Context) *startups {
	s := newStartups("")
	s.ignored = fillPrefix
	return t.watchNamespace(ctx, namespace, s)
}

func newStartups(prefix string) *startups {
	return &startups{
		prefix: prefix, pods: map[types.NamespacedName]stage{}, sent: map[string]time.Time{},
		sinceCreation: experiment.NewLatencies(), sinceRequest: experiment.NewLatencies(),
	}
}

// watchNamespace starts a watch of the pods of a namespace, whose events it passes to s.
func (t *storeRun) watchNamespace(ctx context.Context, namespace string, s *startups) *startups {
	source := cache.ToListWatcherWithWatchListSemantics(
		cache.NewListWatchFromClient(t.Client.CoreV1().RESTClient(), "pods", namespace, fields.Everything()), t.Client)
	reflector := cache.NewReflectorWithOptions(source, &corev1.Pod{}, s, cache.ReflectorOptions{})
	go reflector.RunWithContext(ctx)
	return s
}

// requestSent records that the request to create a pod is sent now.
func (s *startups) requestSent(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[name] = time.Now()
}

// measureOnly discards the latencies measured so far. From now on, the pods with this prefix are measured.
// The counts of pods are kept.
func (s *startups) measureOnly(prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prefix, s.sent = prefix, map[string]time.Time{}
	s.sinceCreation, s.sinceRequest = experiment.NewLatencies(), experiment.NewLatencies()
}

// measured returns the startup latencies since the creationTimestamp, and those since the request.
func (s *startups) measured() (sinceCreation, sinceRequest *experiment.Latencies) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sinceCreation, s.sinceRequest
}

// counts returns how many pods exist, how many of these are bound, and how many are running.
func (s *startups) counts() (exist, areBound, areRunning int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stage := range s.pods {
		if stage >= bound {
			areBound++
		}
		if stage >= running {
			areRunning++
		}
	}
	return len(s.pods), areBound, areRunning
}

// late returns the number of pods that ran later than the limit after their creation.
func (s *startups) late() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lateCount
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// put records the progress of a pod. The caller holds the lock.
func (s *startups) put(object any) {
	pod := object.(*corev1.Pod)
	if s.ignored != "" && strings.HasPrefix(pod.Name, s.ignored) {
		return
	}
	id := nameOf(pod)
	now, before := time.Now(), s.pods[id]
	phase := pending
	switch {
	case bulk.PodRunning(pod):
		phase = running
	case pod.Spec.NodeName != "":
		phase = bound
	}
	s.pods[id] = max(phase, before)
	if phase >= bound && before < bound {
		s.bound++
		s.lastBound = now
	}
	if phase < running || before == running {
		return
	}
	s.running++
	s.lastRun = now
	if !strings.HasPrefix(pod.Name, s.prefix) {
		return
	}
	took := now.Sub(pod.CreationTimestamp.Time)
	s.sinceCreation.Record(took)
	if s.limit > 0 && took > s.limit {
		s.lateCount++
	}
	if sent, known := s.sent[pod.Name]; known {
		s.sinceRequest.Record(now.Sub(sent))
		delete(s.sent, pod.Name)
	}
}

// Add records the progress of a pod. This and the following methods implement cache.ReflectorStore.
func (s *startups) Add(object any) error { return s.Update(object) }

// Update records the progress of a pod.
func (s *startups) Update(object any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(object)
	return nil
}

// Delete removes a pod.
func (s *startups) Delete(object any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pod, ok := object.(*corev1.Pod); ok {
		delete(s.pods, nameOf(pod))
	}
	return nil
}

// Replace receives the first list, and another list when a watch has to start over.
func (s *startups) Replace(objects []any, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	listed := map[types.NamespacedName]bool{}
	for _, object := range objects {
		s.put(object)
		listed[nameOf(object.(*corev1.Pod))] = true
	}
	for id := range s.pods {
		if !listed[id] {
			delete(s.pods, id)
		}
	}
	return nil
}

// Resync does nothing.
func (s *startups) Resync() error { return nil }

var _ cache.ReflectorStore = &startups{}

// await polls done until it returns at least the wanted number. It returns an error if this takes longer
// than the timeout without any change of the number.
func (t *storeRun) await(ctx context.Context, what string, wanted int, done func() int) error {
	return t.Await(ctx, what, wanted, t.timeout, done)
}

// wait waits for the duration d, and shows that on the display.
func (t *storeRun) wait(ctx context.Context, what string, d time.Duration) error {
	task := t.Display.Task(what, 0)
	task.Say("for " + d.String())
	select {
	case <-ctx.Done():
		task.Interrupt()
		return ctx.Err()
	case <-time.After(d):
		task.Done("done")
		return nil
	}
}

// awaitRunning waits until this number of pods is running.
func (t *storeRun) awaitRunning(ctx context.Context, s *startups, wanted int) error {
	return t.await(ctx, "pods running", wanted, func() int {
		_, _, running := s.counts()
		return running
	})
}

// awaitGone waits until at most this number of pods is left.
func (t *storeRun) awaitGone(ctx context.Context, s *startups, left int) error {
	initial, _, _ := s.counts()
	return t.await(ctx, "pods gone", initial-left, func() int {
		exist, _, _ := s.counts()
		return initial - exist
	})
}
