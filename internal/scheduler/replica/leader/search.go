package leader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Search finds nodes for pods by querying the owners of nodes. Consecutive pods of one class share the
// answer to one query.
type Search struct {
	// The ranker has the profiles, but no nodes. It assigns the leader's numbers to the strings in
	// answers.
	*rank.Ranker
	owners Owners
	// exclusively calls a function while nothing else reads or writes the data that plugins read.
	exclusively func(func())
	classes     map[string]*searchClass
	batch       *podBatch
	// unfit are the pods that fit on no node, while the current answer would remain valid for them.
	unfit map[unfitKey]*unfit
	// invalidated is true if the cluster has changed since the current answer.
	invalidated atomic.Bool
	// victims are the pods that preempting pods are evicting; nil in tests without an API server.
	victims *victims
	// rejected are the nodes that the leader's own plugins have rejected for the last pod that was
	// evaluated node by node.
	rejected rejectedNodes
	// index is the index for which the classes were made. The ranker replaces its index when it
	// reassigns all numbers.
	index *index.Index
	// knownLabels are the versions of the referenced labels that this search has from each replica.
	knownLabels map[string]int64
}

// Owners are the replicas that own nodes.
type Owners interface {
	// Query sends a query to all owners and merges their answers. If all is true, it waits for the
	// answers of all owners, and returns an error if one is missing.
	Query(ctx context.Context, query *wire.Query, all bool) (*wire.Answer, error)
	// Nodes returns the total number of nodes in the last status reports of the owners.
	Nodes() int
	// KeepNode stores the node that was chosen for a pod with volumes or resource claims, because
	// plugins look it up while they bind the pod.
	KeepNode(*v1.Node)
	// Earlier returns the node on which a leader of an earlier term has reserved capacity for a pod; "" if
	// none has. ReleaseEarlier releases this reservation.
	Earlier(types.UID) string
	ReleaseEarlier(types.UID)
	// IsUnsettled returns whether a leader of an earlier term has reserved capacity for a pod that is not known
	// to be bound or deleted.
	IsUnsettled(types.UID) bool
	// RetryWhenAllAnswer schedules the retry of a pod that got no node because an owner did not
	// answer.
	RetryWhenAllAnswer(*v1.Pod)
}

// rejectedNodes are the nodes that the leader's own plugins have rejected for a pod.
type rejectedNodes struct {
	pod   types.UID
	names []string
}

// EndBatch discards the current answer, and what is known about unfit pods, so that the next pod sends a query.
func (l *Search) EndBatch() {
	l.batch = nil
	clear(l.unfit)
}

// podBatch is a batch of consecutive pods of one class that are placed with one answer.
type podBatch struct {
	key        string
	class      *searchClass
	answer     *wire.Answer
	merged     *index.Merged
	validUntil time.Time
	// priority is the priority of the queried pod, and nominations the version of the nominations that count
	// in the answer.
	priority    int32
	nominations int64
	// picked is the pod for which a node was last chosen; "" after that pod was assumed.
	picked types.UID
}

const (
	// batchLife is the time for which an answer is reused. Changes of nodes and pods end a batch
	// earlier, so that only image counts can be out of date.
	batchLife = time.Second
	// maxQueries is the number of queries for one pod. A query is repeated with more topology keys,
	// with another node excluded, or after the offers of an answer were used up.
	maxQueries = 16
	// maxClasses is the number of classes at which the older half is discarded.
	maxClasses = 4096
)

var errTooManyQueries = fmt.Errorf("no node was chosen in %d queries: nodes, or affinity terms of other pods, change too often", maxQueries)

// NewSearch returns a search among the nodes of the owners.
func NewSearch(r *rank.Ranker, exclusively func(func()), o Owners) *Search {
	return &Search{Ranker: r, exclusively: exclusively, owners: o, classes: map[string]*searchClass{}, unfit: map[unfitKey]*unfit{}, knownLabels: map[string]int64{}}
}

// SchedulePod finds the node for a pod.
func (l *Search) SchedulePod(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
) (result kubescheduler.ScheduleResult, err error) {
	defer l.Rescue(ctx, pod.Pod, &err)
	result, err = l.schedulePod(ctx, fw, state, pod)
	if errors.Is(err, core.ErrIncomplete) || errors.Is(err, core.ErrNoAnswer) {
		l.owners.RetryWhenAllAnswer(pod.Pod)
	}
	return result, err
}

func (l *Search) schedulePod(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
) (kubescheduler.ScheduleResult, error) {
	none := kubescheduler.ScheduleResult{}
	profile := l.Profiles[fw.ProfileName()]
	if node := l.owners.Earlier(pod.Pod.UID); node != "" {
		result, fits, err := l.complete(ctx, profile, state, pod, node)
		if fits || err != nil {
			return result, err
		}
		l.owners.ReleaseEarlier(pod.Pod.UID)
	}
	switch reason := l.Unrankable(profile, pod.Pod); reason {
	case "":
	case rank.ReasonVolumes, rank.ReasonClaims, rank.ReasonNamedNodes:
		rank.Fallbacks.WithLabelValues(string(reason)).Inc()
		return l.walk(ctx, profile, state, pod)
	default:
		return none, reason
	}
	if only := pod.Pod.Status.NominatedNodeName; only != "" {
		result, fits, err := l.rankNode(ctx, profile, state, pod, &wire.Query{Node: only})
		if fits || err != nil {
			return result, err
		}
	}
	return l.rank(ctx, profile, state, pod)
}

// complete places a pod on the node on which an earlier leader has reserved capacity for it, and returns whether
// the pod fits there. The bind of that leader may still arrive: then both binds are for the same node. If the pod
// was placed on another node, a third pod could take the reserved capacity first.
func (l *Search) complete(
	ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo, node string,
) (result kubescheduler.ScheduleResult, fits bool, err error) {
	query := wire.Query{Node: node, Reserved: pod.Pod.UID}
	if reason := l.Unrankable(profile, pod.Pod); reason == "" {
		result, fits, err = l.rankNode(ctx, profile, state, pod, &query)
	} else {
		result, err = l.walkNodes(ctx, profile, state, pod, query)
		fits = err == nil
	}
	if errors.As(err, new(*framework.FitError)) {
		return result, false, nil
	}
	return result, fits, err
}

// rankNode returns whether a pod fits on the only node of a query.
func (l *Search) rankNode(
	ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo, query *wire.Query,
) (result kubescheduler.ScheduleResult, fits bool, err error) {
	query.Offers, query.Steps = 1, 1
	r, err := l.query(ctx, profile, pod, query)
	if err != nil {
		return result, false, l.explainRejection(pod, err)
	}
	pick, outcome := r.merged.Choose()
	switch {
	case outcome == index.Chosen:
		// The answer is not valid for another pod.
		r.validUntil = time.Time{}
		return l.result(r, pick, state, pod), true, nil
	case query.Reserved != "" && len(r.answer.Absent) > 0:
		return result, false, core.ErrIncomplete
	}
	return result, false, nil
}

// rank chooses a node from the current answer, or from the answers to new queries. It sends none if the pod is known to fit
// on no node.
func (l *Search) rank(ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error) {
	r := l.currentBatch(profile, pod)
	if r == nil {
		if known := l.recallUnfit(profile, pod.PodInfo); known != nil {
			known.class.WriteState(state)
			return kubescheduler.ScheduleResult{}, known.reasons.fitError(pod.Pod)
		}
	}
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
			return l.explainUnfit(ctx, profile, state, pod)
		}
		batchEnds.WithLabelValues("exhausted").Inc()
		l.batch, r = nil, nil
	}
	return kubescheduler.ScheduleResult{}, errTooManyQueries
}

// currentBatch returns the current batch if a pod can be placed with its answer. Otherwise it ends the
// batch and returns nil.
func (l *Search) currentBatch(profile *rank.Profile, pod *framework.QueuedPodInfo) *podBatch {
	r, reason := l.batch, ""
	switch changed := l.forgetIfChanged(); {
	case r == nil:
		return nil
	case changed:
		reason = "cluster_changed"
	case r.picked != "":
		reason = "pod_failed"
	case time.Now().After(r.validUntil):
		reason = "expired"
	case l.outdated():
		reason = "outdated"
	case !l.leavesSameRoom(r, pod.Pod):
		reason = "nominations"
	default:
		// If the key has an error, the next query returns it.
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

// leavesSameRoom returns whether a pod must leave room for the same nominated pods as the pods of a batch: for
// other pods of at least its priority.
func (l *Search) leavesSameRoom(r *podBatch, pod *v1.Pod) bool {
	return r.priority == corev1helpers.PodPriority(pod) && r.nominations == l.Nominations.Version() && !l.Nominations.Has(pod.UID)
}

// query queries the owners for the class of a pod. If query.Offers is 0, the number of offers depends
// on how many the previous batch of the class used.
func (l *Search) query(ctx context.Context, profile *rank.Profile, pod *framework.QueuedPodInfo, query *wire.Query) (*podBatch, error) {
	l.batch = nil
	object, err := pod.Pod.Marshal()
	if err != nil {
		return nil, err
	}
	query.Pod, query.Profile = object, profile.Framework.ProfileName()
	key, class, err := l.classOf(profile, pod.PodInfo, query.NodeByNode)
	if err != nil {
		return nil, err
	}
	if query.NodeByNode {
		class.agreement.TermKeys = query.TermKeys
	}
	if query.Offers == 0 {
		class.wanted, class.used = class.wanted.Next(class.used), index.Used{}
		query.Offers, query.Steps = class.wanted.Offers, class.wanted.Steps
	}
	for range maxQueries {
		// Before the query, so that a later nomination ends the batch.
		nominations := l.Nominations.Version()
		if err := l.prepare(ctx, class, profile, pod.PodInfo); err != nil {
			delete(l.classes, key)
			return nil, err
		}
		query.TermKeys = class.agreement.TermKeys
		// The caller may change its query for the next one while a slow replica is still being sent this one.
		sent := *query
		sent.KnownLabels = maps.Clone(l.knownLabels)
		answer, err := l.owners.Query(ctx, &sent, len(class.Spec.Counters) > 0)
		if err != nil {
			return nil, err
		}
		if !answer.Missing.Empty() {
			// Query again with the missing topology keys, for which the class has to be made again.
			l.Cluster.Names.NoteCarried(answer.Missing)
			class.agreement.TermKeys = class.agreement.Union(answer.Missing)
			class.Class = nil
			continue
		}
		l.addReferencedLabels(answer)
		merged, err := l.merge(class, answer)
		if err != nil {
			return nil, err
		}
		return &podBatch{
			key: key, class: class, answer: answer, validUntil: time.Now().Add(batchLife), merged: merged,
			priority: corev1helpers.PodPriority(pod.Pod), nominations: nominations,
		}, nil
	}
	return nil, errTooManyQueries
}

// invalidate makes the next pod end the current batch, because the cluster has changed since the answer.
func (l *Search) invalidate() { l.invalidated.Store(true) }

// Placed reports that a pod is assumed on the node that was last chosen. It returns the term keys of the
// pod's class.
func (l *Search) Placed(uid types.UID) wire.TermKeys {
	if l.batch == nil || l.batch.picked != uid {
		return wire.TermKeys{}
	}
	l.batch.picked = ""
	return l.batch.class.agreement.TermKeys
}
