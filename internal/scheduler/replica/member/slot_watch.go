package member

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
)

// object is a pod or a node.
type object interface {
	comparable
	metav1.Object
	runtime.Object
}

// slotWatcher watches the objects whose UIDs are in the hash slots of a replica. Slots that are added
// later get a separate watch, so that the objects in the other slots are not listed again.
type slotWatcher[T object] struct {
	// listerWatcher returns a ListerWatcher for a shard selector.
	listerWatcher func(selector string) toolscache.ListerWatcher
	// trim removes the fields that scheduling does not read; nil keeps all fields.
	trim toolscache.TransformFunc
	// changed is called for each change, in order and with the lock held. before is nil for a new
	// object, and after for a deleted one. listing is true during the first list of a watch.
	changed func(before, after T, listing bool)
	// listed is called after each list, without the lock.
	listed func()
	// kind is an empty object of the watched type.
	kind T

	// synced is true if the first list of each watch is complete.
	synced atomic.Bool
	// progress counts the objects that first lists have delivered, and the complete first lists.
	progress atomic.Int64

	mu      sync.Mutex
	objects map[types.UID]T
	owned   []bool
	watches []*slotWatch[T]
}

// slotWatch is one watch of some slots. It implements the store of a reflector.
type slotWatch[T object] struct {
	watcher *slotWatcher[T]
	// slots are the watched slots that this replica still owns, and slotsLeft is their number.
	slots     []bool
	slotsLeft int
	// synced is true after the first list. Until then, seen are the objects that attempts to list have
	// delivered.
	synced bool
	seen   sets.Set[types.UID]
	// version is the resource version of the last list, event or bookmark.
	version string
	stop    context.CancelFunc
}

func newSlotWatcher[T object](kind T, listerWatcher func(selector string) toolscache.ListerWatcher, trim toolscache.TransformFunc, changed func(before, after T, listing bool), listed func()) *slotWatcher[T] {
	return &slotWatcher[T]{
		kind: kind, listerWatcher: listerWatcher, trim: trim, changed: changed, listed: listed,
		objects: map[types.UID]T{}, owned: make([]bool, membership.SlotCount),
	}
}

// setSlots sets the slots that this replica owns. It returns the objects in slots that the replica has
// lost, and the slots that it has gained.
func (s *slotWatcher[T]) setSlots(ctx context.Context, slots []int) (lost []T, gained []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owned := make([]bool, membership.SlotCount)
	for _, slot := range slots {
		owned[slot] = true
		if !s.owned[slot] {
			gained = append(gained, slot)
		}
	}
	s.owned = owned
	for uid, object := range s.objects {
		if !owned[membership.SlotOf(uid)] {
			lost = append(lost, object)
			delete(s.objects, uid)
		}
	}
	s.watches = slices.DeleteFunc(s.watches, (*slotWatch[T]).stopIfIdle)
	if len(gained) > 0 {
		s.watch(ctx, gained)
	}
	s.updateSynced()
	return lost, gained
}

// stopIfIdle removes the slots that this replica has lost from a watch. If none are left, it stops the
// watch and returns true.
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

// watch starts a watch of some slots.
func (s *slotWatcher[T]) watch(ctx context.Context, slots []int) {
	w := &slotWatch[T]{watcher: s, slots: make([]bool, membership.SlotCount), slotsLeft: len(slots), seen: sets.New[types.UID]()}
	for _, slot := range slots {
		w.slots[slot] = true
	}
	s.watches = append(s.watches, w)
	ctx, w.stop = context.WithCancel(ctx)
	reflector := toolscache.NewReflectorWithOptions(s.listerWatcher(membership.Selector(slots)), s.kind, w, toolscache.ReflectorOptions{})
	go reflector.RunWithContext(ctx)
}

// Transformer returns a function that a reflector calls for each object of a list as soon as the API server has
// sent it. It counts the objects that no earlier attempt to list has delivered.
func (w *slotWatch[T]) Transformer() toolscache.TransformFunc {
	return func(item any) (any, error) {
		w.watcher.mu.Lock()
		defer w.watcher.mu.Unlock()
		if object, ok := item.(T); ok && !w.synced && !w.seen.Has(object.GetUID()) {
			w.seen.Insert(object.GetUID())
			w.watcher.progress.Add(1)
		}
		return item, nil
	}
}

// updateSynced computes synced from the watches.
func (s *slotWatcher[T]) updateSynced() {
	s.synced.Store(!slices.ContainsFunc(s.watches, func(w *slotWatch[T]) bool { return !w.synced }))
}

// version returns the oldest resource version up to which a watch has received all changes; "" if there
// are no watches.
func (s *slotWatcher[T]) version() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := ""
	for i, w := range s.watches {
		if i == 0 || refresh.IsNewer(oldest, w.version) {
			oldest = w.version
		}
	}
	return oldest
}

// uids returns the UIDs of all objects.
func (s *slotWatcher[T]) uids() []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	uids := make([]types.UID, 0, len(s.objects))
	for uid := range s.objects {
		uids = append(uids, uid)
	}
	return uids
}

// visit calls f with the object that has a UID, if there is one. It holds the lock meanwhile.
func (s *slotWatcher[T]) visit(uid types.UID, f func(T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object, ok := s.objects[uid]; ok {
		f(object)
	}
}

// accept trims an item of the watch and converts it to T. It returns false if the item is not in the slots
// of the watch.
func (w *slotWatch[T]) accept(item any) (object T, ok bool, err error) {
	if w.watcher.trim != nil {
		if item, err = w.watcher.trim(item); err != nil {
			return object, false, err
		}
	}
	object, ok = item.(T)
	// Check the slot, because the API server may not support shard selectors, and this replica may
	// have lost the slot after the watch was started.
	return object, ok && w.slots[membership.SlotOf(object.GetUID())], nil
}

// set stores a new object, or a new version of one.
func (w *slotWatch[T]) set(item any) error {
	w.watcher.mu.Lock()
	defer w.watcher.mu.Unlock()
	object, ok, err := w.accept(item)
	if err != nil || !ok {
		return err
	}
	before := w.watcher.objects[object.GetUID()]
	w.watcher.objects[object.GetUID()] = object
	w.watcher.changed(before, object, false)
	return nil
}

// Add stores a new object.
func (w *slotWatch[T]) Add(item any) error { return w.set(item) }

// Update stores a new version of an object.
func (w *slotWatch[T]) Update(item any) error { return w.set(item) }

// Delete removes an object.
func (w *slotWatch[T]) Delete(item any) error {
	w.watcher.mu.Lock()
	defer w.watcher.mu.Unlock()
	object, ok, err := w.accept(item)
	if err != nil || !ok {
		return err
	}
	w.remove(object.GetUID())
	return nil
}

func (w *slotWatch[T]) remove(uid types.UID) {
	before, ok := w.watcher.objects[uid]
	if ok {
		var none T
		delete(w.watcher.objects, uid)
		w.watcher.changed(before, none, !w.synced)
	}
}

// UpdateResourceVersion records the resource version of an event or a bookmark. The reflector calls it
// after the event was stored.
func (w *slotWatch[T]) UpdateResourceVersion(version string) {
	w.watcher.mu.Lock()
	defer w.watcher.mu.Unlock()
	w.version = version
}

// Replace replaces all objects in the slots of the watch by those of a list.
func (w *slotWatch[T]) Replace(items []any, version string) error {
	w.watcher.mu.Lock()
	w.version = version
	var accepted []T
	listed := sets.New[types.UID]()
	for _, item := range items {
		object, ok, err := w.accept(item)
		if err != nil {
			w.watcher.mu.Unlock()
			return err
		}
		if ok {
			accepted = append(accepted, object)
			listed.Insert(object.GetUID())
		}
	}
	// An object may have been created again under its name, so the earlier one is removed first.
	for uid := range w.watcher.objects {
		if !listed.Has(uid) && w.slots[membership.SlotOf(uid)] {
			w.remove(uid)
		}
	}
	for _, object := range accepted {
		uid := object.GetUID()
		before := w.watcher.objects[uid]
		w.watcher.objects[uid] = object
		var none T
		if !w.synced || before == none || before.GetResourceVersion() != object.GetResourceVersion() {
			w.watcher.changed(before, object, !w.synced)
		}
	}
	if !w.synced {
		w.synced, w.seen = true, nil
		w.watcher.progress.Add(1)
	}
	w.watcher.updateSynced()
	w.watcher.mu.Unlock()
	w.watcher.listed()
	return nil
}

// Resync does nothing: handlers need no resync.
func (*slotWatch[T]) Resync() error { return nil }
