package leader

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Search finds nodes for pods by querying the replicas that own them. Consecutive pods of one class
// share the answer of one query.
type Search struct {
	// The ranker has the profiles and no nodes. It gives numbers to names in answers.
	*rank.Ranker
	owners Owners
	// exclusively calls a function while nothing else reads or writes what plugins see.
	exclusively func(func())
	classes     map[string]*searchClass
	batch       *podBatch
	// invalidated is set when something has happened that the current answer does not include.
	invalidated atomic.Bool
	// index is the ranker's index when the classes were made. It is replaced when all numbers are
	// reassigned.
	index *index.Index
}

// Owners are the replicas that own nodes.
type Owners interface {
	// Query sends a query to all owners and merges their answers; with all set it waits for each
	// of them.
	Query(ctx context.Context, query *wire.Query, all bool) (*wire.Answer, error)
	// Nodes returns how many nodes the owners last reported.
	Nodes() int
	// KeepNode lets plugins look up a node that was chosen for a pod with claims.
	KeepNode(*v1.Node)
	// Delay notes a pod that got no node because replicas did not answer.
	Delay(*v1.Pod)
}

// EndBatch discards the current answer, so that the next pod sends a query.
func (l *Search) EndBatch() { l.batch = nil }

// podBatch is a batch of pods of one class that are placed by one answer.
type podBatch struct {
	key        string
	class      *searchClass
	answer     *wire.Answer
	merged     *index.Merged
	validUntil time.Time
	// picked is the pod for which a node was last chosen, until it is assumed there.
	picked types.UID
}

const (
	// An answer is reused for at most batchLife. Changes of nodes and pods end a batch earlier;
	// only image counts of other nodes may be that old.
	batchLife = time.Second
	// Queries for one pod, while replicas report topology keys that were not agreed on.
	maxQueries = 16
	// Classes that are kept.
	maxClasses = 4096
)

var errNoAgreement = errors.New("shards keep reporting new topology keys: affinity terms of other pods change too often")

// NewSearch makes a search among the nodes of some owners.
func NewSearch(r *rank.Ranker, exclusively func(func()), o Owners) *Search {
	return &Search{Ranker: r, exclusively: exclusively, owners: o, classes: map[string]*searchClass{}}
}

// SchedulePod finds the node for a pod.
func (l *Search) SchedulePod(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
) (result kubescheduler.ScheduleResult, err error) {
	defer l.Rescue(ctx, pod.Pod, &err)
	result, err = l.schedulePod(ctx, fw, state, pod)
	if errors.Is(err, errIncomplete) || errors.Is(err, errNoAnswer) {
		l.owners.Delay(pod.Pod)
	}
	return result, err
}

func (l *Search) schedulePod(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
) (kubescheduler.ScheduleResult, error) {
	none := kubescheduler.ScheduleResult{}
	profile := l.Profiles[fw.ProfileName()]
	switch reason := l.Unrankable(profile, pod.Pod); reason {
	case "":
	case rank.ReasonVolumes, rank.ReasonClaims, rank.ReasonNamedNodes:
		rank.Fallbacks.WithLabelValues(string(reason)).Inc()
		return l.walk(ctx, profile, state, pod)
	default:
		return none, reason
	}
	if only := pod.Pod.Status.NominatedNodeName; only != "" {
		r, err := l.query(ctx, profile, pod, &wire.Query{Node: only, Offers: 1, Steps: 1})
		if err != nil {
			return none, l.explainRejection(pod, err)
		}
		if pick, outcome := r.merged.Choose(); outcome == index.Chosen {
			return l.result(r, pick, state, pod), nil
		}
	}
	return l.rank(ctx, profile, state, pod)
}

// rank places a pod by the current answer, or by new queries.
func (l *Search) rank(ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error) {
	r := l.currentBatch(profile, pod)
	for range maxQueries {
		fresh := r == nil
		if fresh {
			var err error
			if r, err = l.query(ctx, profile, pod, &wire.Query{}); err != nil {
				return kubescheduler.ScheduleResult{}, l.explainRejection(pod, err)
			}
		}
		pick, outcome := r.merged.Choose()
		switch {
		case outcome == index.Chosen:
			return l.result(r, pick, state, pod), nil
		case outcome == index.Unfit && fresh:
			return kubescheduler.ScheduleResult{}, l.explainUnfit(ctx, profile, state, pod)
		}
		batchEnds.WithLabelValues("exhausted").Inc()
		l.batch, r = nil, nil
	}
	return kubescheduler.ScheduleResult{}, errNoAgreement
}

// currentBatch returns the batch that a pod belongs to; nil if it needs a new query.
func (l *Search) currentBatch(profile *rank.Profile, pod *framework.QueuedPodInfo) *podBatch {
	r, reason := l.batch, ""
	switch disturbed := l.invalidated.Swap(false); {
	case r == nil:
		return nil
	case disturbed:
		reason = "cluster_changed"
	case r.picked != "":
		reason = "pod_failed"
	case time.Now().After(r.validUntil):
		reason = "expired"
	case l.Outdated.Load() || l.index != l.Cluster.Index:
		reason = "outdated"
	default:
		// An error concerns the class, and the next query returns it.
		key, err := rank.ClassKey(l.Cluster, profile, pod.PodInfo)
		if err == nil && r.key == string(key) {
			return r
		}
		reason = "other_class"
	}
	batchEnds.WithLabelValues(reason).Inc()
	l.batch = nil
	return nil
}

// query queries the owners about the class of a pod. Unless the query says otherwise it asks for as
// many offers as earlier batches of the class used.
func (l *Search) query(ctx context.Context, profile *rank.Profile, pod *framework.QueuedPodInfo, query *wire.Query) (*podBatch, error) {
	l.batch = nil
	object, err := pod.Pod.Marshal()
	if err != nil {
		return nil, err
	}
	query.Pod, query.Profile = object, profile.Framework.ProfileName()
	// The pod will run when the next pods are placed.
	kind := l.Cluster.Names.Kind(pod.PodInfo)
	key, class, err := l.classOf(profile, pod.PodInfo, query.NodeByNode)
	if err != nil {
		return nil, err
	}
	if query.NodeByNode {
		class.agreed.TermKeys = query.TermKeys
	}
	if query.Offers == 0 {
		class.wanted, class.used = class.wanted.Next(class.used), index.Used{}
		query.Offers, query.Steps = class.wanted.Offers, class.wanted.Steps
	}
	for range maxQueries {
		if err := l.prepare(ctx, class, profile, pod.PodInfo, kind); err != nil {
			delete(l.classes, key)
			return nil, err
		}
		query.TermKeys = class.agreed.TermKeys
		answer, err := l.owners.Query(ctx, query, len(class.Spec.Counters) > 0)
		if err != nil {
			return nil, err
		}
		if !answer.Missing.Empty() {
			class.agreed.TermKeys = class.agreed.Union(answer.Missing)
			class.Class = nil
			continue
		}
		l.addVisibleLabels(answer.ReferencedLabels)
		merged, err := l.merge(class, answer)
		if err != nil {
			return nil, err
		}
		return &podBatch{key: key, class: class, answer: answer, validUntil: time.Now().Add(batchLife), merged: merged}, nil
	}
	return nil, errNoAgreement
}

// invalidate ends the current batch, because something has happened that its answer does not
// include.
func (l *Search) invalidate() { l.invalidated.Store(true) }

// Placed notes that a pod is assumed on the node that was chosen last, and returns the term keys of
// its class.
func (l *Search) Placed(uid types.UID) wire.TermKeys {
	if l.batch == nil || l.batch.picked != uid {
		return wire.TermKeys{}
	}
	l.batch.picked = ""
	return l.batch.class.agreed.TermKeys
}
