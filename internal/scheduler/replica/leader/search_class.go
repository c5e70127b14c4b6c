package leader

import (
	"context"
	"maps"
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
	// agreement is what all replicas must know about the class, so that their answers can be merged.
	agreement rank.Agreement
	// ownAmounts are the amounts that a placed pod of the class adds to the counters of the class.
	ownAmounts []index.Amount
	// lastQuery is the time of the last query. wanted is the answer size that it requested, and used
	// is the part of the answer that was used.
	lastQuery time.Time
	wanted    wire.AnswerSize
	used      index.Used
}

// classOf returns the class of a pod and its key. If walk is true, owners evaluate each node for this one
// pod, so it returns a new class and does not store it.
func (l *Search) classOf(profile *rank.Profile, pod *framework.PodInfo, walk bool) (string, *searchClass, error) {
	if replaced := l.index != l.Cluster.Index; l.Outdated.Swap(false) || replaced {
		clear(l.classes)
		clear(l.unfit)
		if replaced {
			// The labels were forgotten with the index.
			clear(l.knownLabels)
		}
		l.index = l.Cluster.Index
	}
	scratch, err := rank.ClassKey(l.Cluster, profile, pod)
	if err != nil {
		return "", nil, err
	}
	key := string(scratch)
	if walk {
		return key, &searchClass{agreement: rank.Agreement{MayGrow: true, PerNode: true}}, nil
	}
	c := l.classes[key]
	if c == nil {
		l.evictClasses()
		c = &searchClass{agreement: rank.Agreement{MayGrow: true}}
		l.classes[key] = c
	}
	c.lastQuery = time.Now()
	return key, c, nil
}

// prepare runs the plugins for a class that has no data yet, or whose data is stale.
func (l *Search) prepare(ctx context.Context, c *searchClass, profile *rank.Profile, pod *framework.PodInfo) (err error) {
	if c.Class != nil && !c.Stale() {
		return nil
	}
	l.exclusively(func() { c.Class, err = rank.NewClass(ctx, l.Cluster, profile, pod, &c.agreement) })
	if err != nil {
		return err
	}
	c.ownAmounts = nil
	if len(c.Spec.Counters) > 0 {
		// Later pods of a batch count this pod as a running pod.
		c.ownAmounts = c.Amounts(l.Cluster.Names.Kind(pod))
	}
	return nil
}

// evictClasses discards the least recently queried half of the classes, if there are too many.
func (l *Search) evictClasses() {
	if len(l.classes) < maxClasses {
		return
	}
	queryTimes := make([]int64, 0, len(l.classes))
	for _, class := range l.classes {
		queryTimes = append(queryTimes, class.lastQuery.UnixNano())
	}
	slices.Sort(queryTimes)
	for key, class := range l.classes {
		if class.lastQuery.UnixNano() <= queryTimes[len(queryTimes)/2] {
			delete(l.classes, key)
		}
	}
}

// addReferencedLabels adds the keys of pod labels to which selectors on other replicas refer.
func (l *Search) addReferencedLabels(answer *wire.Answer) {
	names := &l.Cluster.Names
	if before := names.Visible.Len(); names.Visible.Insert(answer.ReferencedLabels...).Len() > before {
		names.Version++
	}
	if answer.AllLabelsReferenced && !names.AllVisible {
		names.AllVisible = true
		names.Version++
	}
	if len(answer.Absent) == 0 {
		// Forget replicas that have left.
		clear(l.knownLabels)
	}
	maps.Copy(l.knownLabels, answer.LabelVersions)
}
