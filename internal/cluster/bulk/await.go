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

// ErrStalled says that waiting made no progress for too long.
var ErrStalled = errors.New("no progress")

// AwaitNodesReady waits until every node of the range is Ready.
func AwaitNodesReady(ctx context.Context, clients *Clients, o Options, stall time.Duration) error {
	return await(ctx, clients, nodeKind, "", &corev1.Node{}, o, stall, &tally{is: NodeReady})
}

// AwaitPodsRunning waits until every pod of the range runs.
func AwaitPodsRunning(ctx context.Context, clients *Clients, namespace string, o Options, stall time.Duration) error {
	return await(ctx, clients, podKind, namespace, &corev1.Pod{}, o, stall, &tally{is: PodRunning})
}

// AwaitPodsGone waits until no pod of the range exists.
func AwaitPodsGone(ctx context.Context, clients *Clients, namespace string, o Options, stall time.Duration) error {
	exists := func(runtime.Object) bool { return true }
	return await(ctx, clients, podKind, namespace, &corev1.Pod{}, o, stall, &tally{is: exists, gone: true})
}

func await(ctx context.Context, clients *Clients, kind kind, namespace string, example runtime.Object, o Options, stall time.Duration, t *tally) error {
	t.wanted, t.have = o.Range.Names(), sets.New[string]()
	t.synced = make(chan struct{})
	watching, stop := context.WithCancel(ctx)
	defer stop()
	source := cache.ToListWatcherWithWatchListSemantics(
		cache.NewListWatchFromClient(clients.core(0), kind.resource, namespace, fields.Everything()),
		clients.connections[0])
	reflector := cache.NewReflectorWithOptions(source, example, t, cache.ReflectorOptions{})
	go reflector.RunWithContext(watching)

	const poll = 100 * time.Millisecond
	last, lastProgress := -1, time.Now()
	for {
		done, known := t.done()
		if known {
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
		case <-time.After(poll):
		}
	}
}

// tally is what a reflector fills instead of a cache: of all objects only the
// names of those that count are kept.
type tally struct {
	is     func(runtime.Object) bool
	gone   bool // count the names that are not there
	wanted sets.Set[string]
	synced chan struct{}

	mu       sync.Mutex
	have     sets.Set[string]
	syncOnce sync.Once
}

// verdict is all that is kept of an object.
type verdict struct {
	metav1.ObjectMeta
	counts bool
}

// done is not known before the first list has come.
func (t *tally) done() (done int, known bool) {
	select {
	case <-t.synced:
	default:
		return 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return t.wanted.Len() - t.have.Len(), true
	}
	return t.have.Len(), true
}

func (t *tally) Add(object any) error { return t.Update(object) }

func (t *tally) Update(object any) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.put(object)
}

func (t *tally) Delete(object any) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	judged, err := t.judge(object)
	if err != nil {
		return err
	}
	t.have.Delete(judged.(*verdict).Name)
	return nil
}

// Replace is called with the first list, and when a watch has to start over.
func (t *tally) Replace(objects []any, _ string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.have = sets.New[string]()
	for _, object := range objects {
		if err := t.put(object); err != nil {
			return err
		}
	}
	t.syncOnce.Do(func() { close(t.synced) })
	return nil
}

func (t *tally) Resync() error { return nil }

// Transformer keeps the first list small while it streams in.
func (t *tally) Transformer() cache.TransformFunc { return t.judge }

func (t *tally) judge(object any) (any, error) {
	if judged, done := object.(*verdict); done {
		return judged, nil
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	return &verdict{
		ObjectMeta: metav1.ObjectMeta{Name: accessor.GetName(), Namespace: accessor.GetNamespace()},
		counts:     t.is(object.(runtime.Object)),
	}, nil
}

func (t *tally) put(object any) error {
	result, err := t.judge(object)
	if err != nil {
		return err
	}
	judged := result.(*verdict)
	switch {
	case !t.wanted.Has(judged.Name):
	case judged.counts:
		t.have.Insert(judged.Name)
	default:
		t.have.Delete(judged.Name)
	}
	return nil
}
