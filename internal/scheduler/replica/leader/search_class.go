package leader

import (
	"context"
	"slices"
	"time"

	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// ledClass is a class as the leader has it.
type searchClass struct {
	*rank.Class
	agreed     rank.Agreement
	ownAmounts []index.Amount
	// asked is when it was last asked about, and then for so much, of which so much was
	// used.
	lastQuery time.Time
	wanted    wire.Wanted
	used      index.Used
}

// classOf is the class of a pod, with its key. One for which each node is looked at by
// itself is not kept.
func (l *Search) classOf(profile *rank.Profile, pod *framework.PodInfo, walk bool) (string, *searchClass, error) {
	if l.Outdated.Swap(false) || l.index != l.Cluster.Index {
		clear(l.classes)
		l.index = l.Cluster.Index
	}
	scratch, err := rank.ClassKey(l.Cluster, profile, pod)
	if err != nil {
		return "", nil, err
	}
	key := string(scratch)
	if walk {
		return key, &searchClass{agreed: rank.Agreement{MayGrow: true, PerNode: true}}, nil
	}
	led := l.classes[key]
	if led == nil {
		l.makeRoom()
		led = &searchClass{agreed: rank.Agreement{MayGrow: true}}
		l.classes[key] = led
	}
	led.lastQuery = time.Now()
	return key, led, nil
}

// prepare makes a class, unless it is there; pods of it are of a kind.
func (l *Search) prepare(ctx context.Context, led *searchClass, profile *rank.Profile, pod *framework.PodInfo, kind index.KindID) (err error) {
	if led.Class != nil && !led.Stale() {
		return nil
	}
	l.exclusively(func() { led.Class, err = rank.NewClass(ctx, l.Cluster, profile, pod, &led.agreed) })
	if err != nil {
		return err
	}
	led.ownAmounts = nil
	if len(led.Spec.Counters) > 0 {
		led.ownAmounts = led.Amounts(kind)
	}
	return nil
}

// makeRoom forgets the older half of the classes once there are too many.
func (l *Search) makeRoom() {
	if len(l.classes) < maxClasses {
		return
	}
	ages := make([]int64, 0, len(l.classes))
	for _, class := range l.classes {
		ages = append(ages, class.lastQuery.UnixNano())
	}
	slices.Sort(ages)
	for key, class := range l.classes {
		if class.lastQuery.UnixNano() <= ages[len(ages)/2] {
			delete(l.classes, key)
		}
	}
}

// see notes labels of pods that selectors look at.
func (l *Search) addVisibleLabels(visible []string) {
	names := &l.Cluster.Names
	if before := names.Visible.Len(); names.Visible.Insert(visible...).Len() > before {
		names.Version++
	}
}
