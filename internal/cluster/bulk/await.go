package bulk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
)

// ErrStalled means that no further object reached the awaited state within the stall timeout.
var ErrStalled = errors.New("no progress")

// AwaitNodesReady waits until every node of the range is Ready. The error wraps ErrStalled if there is no
// progress for the duration stall.
func AwaitNodesReady(ctx context.Context, clients *Clients, o Options, stall time.Duration) error {
	return await(ctx, clients, nodeKind, "", &corev1.Node{}, o, stall, &matchCounter{matches: NodeReady})
}

// AwaitPodsRunning waits until every pod of the range runs or has succeeded. The error wraps ErrStalled if
// there is no progress for the duration stall.
func AwaitPodsRunning(ctx context.Context, clients *Clients, namespace string, o Options, stall time.Duration) error {
	return await(ctx, clients, podKind, namespace, &corev1.Pod{}, o, stall, &matchCounter{matches: PodRunning})
}

// AwaitPodsGone waits until no pod of the range exists. The error wraps ErrStalled if there is no progress
// for the duration stall.
func AwaitPodsGone(ctx context.Context, clients *Clients, namespace string, o Options, stall time.Duration) error {
	exists := func(runtime.Object) bool { return true }
	return await(ctx, clients, podKind, namespace, &corev1.Pod{}, o, stall, &matchCounter{matches: exists, countMissing: true})
}

// await watches the objects of a kind until all objects of the range are in the state that c counts.
func await(ctx context.Context, clients *Clients, kind kind, namespace string, example runtime.Object, o Options, stall time.Duration, c *matchCounter) error {
	c.wanted, c.matching = o.Range.Names(), sets.New[string]()
	c.synced = make(chan struct{})
	watchContext, stop := context.WithCancel(ctx)
	defer stop()
	source := cache.ToListWatcherWithWatchListSemantics(
		cache.NewListWatchFromClient(clients.core(0), kind.resource, namespace, fields.Everything()),
		clients.connections[0])
	reflector := cache.NewReflectorWithOptions(source, example, c, cache.ReflectorOptions{})
	go reflector.RunWithContext(watchContext)

	const pollInterval = 100 * time.Millisecond
	last, lastProgress := -1, time.Now()
	for {
		done, synced := c.done()
		if synced {
			o.Progress(done)
		}
		if done == o.Range.Count {
			return nil
		}
		if done != last {
			last, lastProgress = done, time.Now()
		}
		if time.Since(lastProgress) > stall {
			return fmt.Errorf("%w for %s at %d of %d %s", ErrStalled, stall, done, o.Range.Count, kind.resource)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}

// matchCounter counts the objects of a range that match a condition. It is the store of a reflector, but
// keeps only the names of matching objects.
type matchCounter struct {
	matches      func(runtime.Object) bool
	countMissing bool             // count the names that do not match, instead of those that match
	wanted       sets.Set[string] // names of the range
	synced       chan struct{}    // closed when the first list is complete

	mu       sync.Mutex
	matching sets.Set[string] // names in wanted of objects that match
	syncOnce sync.Once
}

// match is what Transformer makes of an object: its name, and whether it matches.
type match struct {
	metav1.ObjectMeta
	matches bool
}

// done counts the objects that are in the awaited state. synced is false until the first list is complete.
func (c *matchCounter) done() (done int, synced bool) {
	select {
	case <-c.synced:
	default:
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.countMissing {
		return c.wanted.Len() - c.matching.Len(), true
	}
	return c.matching.Len(), true
}

// Add implements [cache.ReflectorStore].
func (c *matchCounter) Add(object any) error { return c.Update(object) }

// Update implements [cache.ReflectorStore].
func (c *matchCounter) Update(object any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record(object)
}

// Delete implements [cache.ReflectorStore].
func (c *matchCounter) Delete(object any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	transformed, err := c.transform(object)
	if err != nil {
		return err
	}
	c.matching.Delete(transformed.(*match).Name)
	return nil
}

// Replace implements [cache.ReflectorStore]. The reflector calls it with the first list, and with another
// list whenever it cannot resume the watch.
func (c *matchCounter) Replace(objects []any, _ string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.matching = sets.New[string]()
	for _, object := range objects {
		if err := c.record(object); err != nil {
			return err
		}
	}
	c.syncOnce.Do(func() { close(c.synced) })
	return nil
}

// Resync implements [cache.ReflectorStore].
func (c *matchCounter) Resync() error { return nil }

// Transformer implements [cache.TransformingStore]. The reflector transforms each object of the first list
// when it receives the object, so the list needs little memory.
func (c *matchCounter) Transformer() cache.TransformFunc { return c.transform }

func (c *matchCounter) transform(object any) (any, error) {
	if transformed, done := object.(*match); done {
		return transformed, nil
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	return &match{
		ObjectMeta: metav1.ObjectMeta{Name: accessor.GetName(), Namespace: accessor.GetNamespace()},
		matches:    c.matches(object.(runtime.Object)),
	}, nil
}

func (c *matchCounter) record(object any) error {
	result, err := c.transform(object)
	if err != nil {
		return err
	}
	transformed := result.(*match)
	switch {
	case !c.wanted.Has(transformed.Name):
	case transformed.matches:
		c.matching.Insert(transformed.Name)
	default:
		c.matching.Delete(transformed.Name)
	}
	return nil
}
