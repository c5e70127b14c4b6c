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
	c.begin(o.Range)
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
// keeps only whether each object matches: there may be a million.
type matchCounter struct {
	matches      func(runtime.Object) bool
	countMissing bool          // count the names that do not match, instead of those that match
	names        Range         // the wanted names
	synced       chan struct{} // closed when the first list is complete

	mu       sync.Mutex
	matching []bool // of the objects of the range, in the order of their numbers
	count    int    // of those that match
	syncOnce sync.Once
}

// begin sets the names that are counted.
func (c *matchCounter) begin(names Range) {
	c.names, c.matching, c.synced = names, make([]bool, names.Count), make(chan struct{})
}

// match is what Transformer makes of an object: its name, and whether it matches. A reflector needs a [metav1.Object], but
// [metav1.ObjectMeta] has 250 bytes.
type match struct {
	metav1.Object   // noMeta
	name, namespace string
	matches         bool
}

// noMeta is what all matches have beside their names: nothing.
var noMeta = &metav1.ObjectMeta{}

// GetName implements [metav1.Object].
func (m *match) GetName() string { return m.name }

// GetNamespace implements [metav1.Object].
func (m *match) GetNamespace() string { return m.namespace }

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
		return c.names.Count - c.count, true
	}
	return c.count, true
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
	c.set(transformed.(*match).name, false)
	return nil
}

// Replace implements [cache.ReflectorStore]. The reflector calls it with the first list, and with another
// list whenever it cannot resume the watch.
func (c *matchCounter) Replace(objects []any, _ string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.matching)
	c.count = 0
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
		Object: noMeta, name: accessor.GetName(), namespace: accessor.GetNamespace(), matches: c.matches(object.(runtime.Object)),
	}, nil
}

func (c *matchCounter) record(object any) error {
	result, err := c.transform(object)
	if err != nil {
		return err
	}
	transformed := result.(*match)
	c.set(transformed.name, transformed.matches)
	return nil
}

// set notes whether an object matches, if its name is one of those that are counted.
func (c *matchCounter) set(name string, matches bool) {
	i, ok := c.names.Index(name)
	if !ok || c.matching[i] == matches {
		return
	}
	c.matching[i] = matches
	if matches {
		c.count++
	} else {
		c.count--
	}
}
