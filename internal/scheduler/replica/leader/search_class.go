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

// searchClass is a pod class of the leader.
type searchClass struct {
	*rank.Class
	agreed rank.Agreement
	// ownAmounts are what a pod of the class adds to its counters.
	ownAmounts []index.Amount
	// lastQuery is when it was last queried. wanted is how much was asked for then, and used is how
	// much of it was used.
	lastQuery time.Time
	wanted    wire.AnswerSize
	used      index.Used
}

// classOf returns the class of a pod and its key. A class whose nodes are evaluated one by one is
// not kept.
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

// prepare makes or updates a class. kind is the kind of its pods.
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

// makeRoom removes the older half of the classes if there are too many.
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

// addVisibleLabels adds labels of pods that selectors of other shards read.
func (l *Search) addVisibleLabels(visible []string) {
	names := &l.Cluster.Names
	if before := names.Visible.Len(); names.Visible.Insert(visible...).Len() > before {
		names.Version++
	}
}
