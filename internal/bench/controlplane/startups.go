package controlplane

import (
	"context"
	"fmt"
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

const poll = 50 * time.Millisecond

// startups is what a reflector fills instead of a cache: of each pod it keeps how far it
// has come. It is for pods of one namespace.
type startups struct {
	// prefix of the pods whose startup is measured; all of them count.
	prefix string

	mu         sync.Mutex
	pods       map[types.NamespacedName]stage
	sent       map[string]time.Time
	bound      int
	running    int
	lastBound  time.Time
	lastRun    time.Time
	asOthers   *experiment.Latencies
	fromClient *experiment.Latencies
	// A pod that starts later than the limit, if there is one, is late.
	limit    time.Duration
	lateOnes int
}

// stage of a pod.
type stage int

const (
	pending stage = iota
	bound
	running
)

// watchPods follows the pods of the namespace until ctx ends. The startup of a pod is
// measured as clusterloader2 does: from its creationTimestamp, which has no fractions of
// a second, until the watch shows it running; and beside that from when the request to
// create it was sent, if sending says so.
func (t *turn) watchPods(ctx context.Context, prefix string) *startups {
	return t.watchNamespace(ctx, namespace, newStartups(prefix))
}

func newStartups(prefix string) *startups {
	return &startups{
		prefix: prefix, pods: map[types.NamespacedName]stage{}, sent: map[string]time.Time{},
		asOthers: experiment.NewLatencies(), fromClient: experiment.NewLatencies(),
	}
}

func (t *turn) watchNamespace(ctx context.Context, namespace string, s *startups) *startups {
	source := cache.ToListWatcherWithWatchListSemantics(
		cache.NewListWatchFromClient(t.Client.CoreV1().RESTClient(), "pods", namespace, fields.Everything()), t.Client)
	reflector := cache.NewReflectorWithOptions(source, &corev1.Pod{}, s, cache.ReflectorOptions{})
	go reflector.RunWithContext(ctx)
	return s
}

// sending notes that the request to create a pod is sent now.
func (s *startups) sending(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[name] = time.Now()
}

// restart forgets what was measured, not what is there; the next pods have this prefix.
func (s *startups) restart(prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prefix, s.sent = prefix, map[string]time.Time{}
	s.asOthers, s.fromClient = experiment.NewLatencies(), experiment.NewLatencies()
}

// measured so far: as others measure, and from the client's request on.
func (s *startups) measured() (asOthers, fromClient *experiment.Latencies) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asOthers, s.fromClient
}

// counts of pods that exist and have come so far.
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

// late ones of those that started.
func (s *startups) late() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lateOnes
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

func (s *startups) put(object any) {
	pod := object.(*corev1.Pod)
	id := nameOf(pod)
	now, before := time.Now(), s.pods[id]
	is := pending
	switch {
	case bulk.PodRunning(pod):
		is = running
	case pod.Spec.NodeName != "":
		is = bound
	}
	s.pods[id] = max(is, before)
	if is >= bound && before < bound {
		s.bound++
		s.lastBound = now
	}
	if is < running || before == running {
		return
	}
	s.running++
	s.lastRun = now
	if !strings.HasPrefix(pod.Name, s.prefix) {
		return
	}
	took := now.Sub(pod.CreationTimestamp.Time)
	s.asOthers.Record(took)
	if s.limit > 0 && took > s.limit {
		s.lateOnes++
	}
	if sent, known := s.sent[pod.Name]; known {
		s.fromClient.Record(now.Sub(sent))
		delete(s.sent, pod.Name)
	}
}

// Add is of cache.ReflectorStore, as are those below.
func (s *startups) Add(object any) error { return s.Update(object) }

// Update notes what is new about a pod.
func (s *startups) Update(object any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(object)
	return nil
}

// Delete forgets a pod.
func (s *startups) Delete(object any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pod, ok := object.(*corev1.Pod); ok {
		delete(s.pods, nameOf(pod))
	}
	return nil
}

// Replace is called with the first list, and when a watch has to start over.
func (s *startups) Replace(objects []any, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := map[types.NamespacedName]bool{}
	for _, object := range objects {
		s.put(object)
		there[nameOf(object.(*corev1.Pod))] = true
	}
	for id := range s.pods {
		if !there[id] {
			delete(s.pods, id)
		}
	}
	return nil
}

// Resync has nothing to do.
func (s *startups) Resync() error { return nil }

var _ cache.ReflectorStore = &startups{}

// await until as many as wanted are done, or nothing changes for the timeout.
func (t *turn) await(ctx context.Context, what string, wanted int, done func() int) error {
	task := t.Display.Task(what, wanted)
	changed, before := time.Now(), -1
	for {
		now := done()
		task.Set(now)
		if now >= wanted {
			task.Done(fmt.Sprint(now))
			return nil
		}
		if now != before {
			changed, before = time.Now(), now
		}
		if time.Since(changed) > t.timeout {
			task.Fail(fmt.Sprintf("%d of %d", now, wanted))
			return fmt.Errorf("%s: %w for %s at %d of %d", what, bulk.ErrStalled, t.timeout, now, wanted)
		}
		select {
		case <-ctx.Done():
			task.Interrupt()
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

// wait for so long, whatever happens.
func (t *turn) wait(ctx context.Context, what string, d time.Duration) error {
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

// awaitRunning until so many pods of the namespace run.
func (t *turn) awaitRunning(ctx context.Context, s *startups, wanted int) error {
	return t.await(ctx, "pods running", wanted, func() int {
		_, _, running := s.counts()
		return running
	})
}

// awaitGone until no more than so many pods of the namespace are left.
func (t *turn) awaitGone(ctx context.Context, s *startups, left int) error {
	most, _, _ := s.counts()
	return t.await(ctx, "pods gone", most-left, func() int {
		exist, _, _ := s.counts()
		return most - exist
	})
}
