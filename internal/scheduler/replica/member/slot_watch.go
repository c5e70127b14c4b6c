package member

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// object is a pod or a node.
type object interface {
	comparable
	metav1.Object
	runtime.Object
}

// slotWatcher watches the objects whose UIDs are in the hash slots of a replica. Added slots get a
// watch of their own, so that the others need not be listed again.
type slotWatcher[T object] struct {
	// listerWatcher lists and watches with a shard selector.
	listerWatcher func(selector string) toolscache.ListerWatcher
	// trim reduces objects to what scheduling reads.
	trim toolscache.TransformFunc
	// changed is called for each change, in order and with the lock held. before or after is nil
	// for a new or deleted object; listing is set for the first list of its slots.
	changed func(before, after T, listing bool)
	// listed is called after a list.
	listed func()
	kind   T

	// synced is set when all objects in all slots were listed.
	synced atomic.Bool

	mu      sync.Mutex
	objects map[types.UID]T
	owned   []bool
	watches []*slotWatch[T]
}

// slotWatch is the watch of some slots.
type slotWatch[T object] struct {
	watcher   *slotWatcher[T]
	slots     []bool
	slotsLeft int
	synced    bool
	stop      context.CancelFunc
}

func newSlotWatcher[T object](kind T, with func(selector string) toolscache.ListerWatcher, trim toolscache.TransformFunc, changed func(before, after T, listing bool), listed func()) *slotWatcher[T] {
	return &slotWatcher[T]{
		kind: kind, listerWatcher: with, trim: trim, changed: changed, listed: listed,
		objects: map[types.UID]T{}, owned: make([]bool, membership.SlotCount),
	}
}

// own sets the slots of this replica. It returns the objects in slots that were removed, and the
// slots that were added.
func (in *slotWatcher[T]) own(ctx context.Context, slots []int) (lost []T, gained []int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	owned := make([]bool, membership.SlotCount)
	for _, slot := range slots {
		owned[slot] = true
		if !in.owned[slot] {
			gained = append(gained, slot)
		}
	}
	in.owned = owned
	for uid, object := range in.objects {
		if !owned[membership.SlotOf(uid)] {
			lost = append(lost, object)
			delete(in.objects, uid)
		}
	}
	in.watches = slices.DeleteFunc(in.watches, (*slotWatch[T]).stopIfIdle)
	if len(gained) > 0 {
		in.watch(ctx, gained)
	}
	in.updateSynced()
	return lost, gained
}

// stopIfIdle stops a watch that has no slots any more, and returns whether it did.
func (w *slotWatch[T]) stopIfIdle() bool {
	for slot, watched := range w.slots {
		if watched && !w.watcher.owned[slot] {
			w.slots[slot] = false
			w.slotsLeft--
		}
	}
	if w.slotsLeft == 0 {
		w.stop()
	}
	return w.slotsLeft == 0
}

func (in *slotWatcher[T]) watch(ctx context.Context, slots []int) {
	w := &slotWatch[T]{watcher: in, slots: make([]bool, membership.SlotCount), slotsLeft: len(slots)}
	for _, slot := range slots {
		w.slots[slot] = true
	}
	in.watches = append(in.watches, w)
	ctx, w.stop = context.WithCancel(ctx)
	reflector := toolscache.NewReflectorWithOptions(in.listerWatcher(membership.Selector(slots)), in.kind, w, toolscache.ReflectorOptions{})
	go reflector.RunWithContext(ctx)
}

// updateSynced updates synced.
func (in *slotWatcher[T]) updateSynced() {
	in.synced.Store(!slices.ContainsFunc(in.watches, func(w *slotWatch[T]) bool { return !w.synced }))
}

// keys returns the UIDs of all objects.
func (in *slotWatcher[T]) keys() []types.UID {
	in.mu.Lock()
	defer in.mu.Unlock()
	keys := make([]types.UID, 0, len(in.objects))
	for uid := range in.objects {
		keys = append(keys, uid)
	}
	return keys
}

// visit calls f with an object, if there is one, under the lock.
func (in *slotWatcher[T]) visit(uid types.UID, f func(T)) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if object, ok := in.objects[uid]; ok {
		f(object)
	}
}

// take converts an item of a watch; false if it is not in the slots of the watch.
func (w *slotWatch[T]) take(item any) (object T, concern bool, err error) {
	if w.watcher.trim != nil {
		if item, err = w.watcher.trim(item); err != nil {
			return object, false, err
		}
	}
	object, ok := item.(T)
	// The API server may not support selectors, and slots may have been removed since.
	return object, ok && w.slots[membership.SlotOf(object.GetUID())], nil
}

func (w *slotWatch[T]) set(item any) error {
	w.watcher.mu.Lock()
	defer w.watcher.mu.Unlock()
	object, concern, err := w.take(item)
	if err != nil || !concern {
		return err
	}
	before := w.watcher.objects[object.GetUID()]
	w.watcher.objects[object.GetUID()] = object
	w.watcher.changed(before, object, false)
	return nil
}

// Add stores a new version of an object.
func (w *slotWatch[T]) Add(item any) error { return w.set(item) }

// Update stores a new version of an object.
func (w *slotWatch[T]) Update(item any) error { return w.set(item) }

// Delete removes an object.
func (w *slotWatch[T]) Delete(item any) error {
	w.watcher.mu.Lock()
	defer w.watcher.mu.Unlock()
	object, concern, err := w.take(item)
	if err != nil || !concern {
		return err
	}
	w.forget(object.GetUID())
	return nil
}

func (w *slotWatch[T]) forget(uid types.UID) {
	before, ok := w.watcher.objects[uid]
	if ok {
		var none T
		delete(w.watcher.objects, uid)
		w.watcher.changed(before, none, !w.synced)
	}
}

// Replace replaces all objects by a list.
func (w *slotWatch[T]) Replace(items []any, _ string) error {
	w.watcher.mu.Lock()
	listed := map[types.UID]bool{}
	for _, item := range items {
		object, concern, err := w.take(item)
		if err != nil {
			w.watcher.mu.Unlock()
			return err
		}
		if !concern {
			continue
		}
		listed[object.GetUID()] = true
		before := w.watcher.objects[object.GetUID()]
		w.watcher.objects[object.GetUID()] = object
		var none T
		if !w.synced || before == none || before.GetResourceVersion() != object.GetResourceVersion() {
			w.watcher.changed(before, object, !w.synced)
		}
	}
	for uid := range w.watcher.objects {
		if w.slots[membership.SlotOf(uid)] && !listed[uid] {
			w.forget(uid)
		}
	}
	w.synced = true
	w.watcher.updateSynced()
	w.watcher.mu.Unlock()
	w.watcher.listed()
	return nil
}

// Resync does nothing.
func (*slotWatch[T]) Resync() error { return nil }
