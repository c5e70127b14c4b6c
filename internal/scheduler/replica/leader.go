package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// leader finds nodes for pods by asking the replicas that own them. For pods of one
// class that come one after the other it asks once.
type Leader struct {
	// ranker has no nodes; it knows profiles, and gives names to what others answer.
	*rank.Ranker
	ask func(ctx context.Context, ask *wire.Ask, all bool) (*wire.Answer, error)
	// here calls a function while nothing else looks at what plugins see.
	here func(func())
	// nodes is how many there are, by what replicas last said.
	Nodes func() int
	// chosen is told of nodes that pods with claims go to.
	chosen func(*v1.Node)
	// heldUp is told of pods that have no node because replicas did not answer.
	heldUp    func(*v1.Pod)
	classes   map[string]*ledClass
	Run       *run
	disturbed atomic.Bool
	// index tells by being another one that all names were given anew.
	index *index.Index
}

// ledClass is a class as the leader has it.
type ledClass struct {
	*rank.Class
	agreed rank.Agreement
	own    []index.Amount
	// asked is when it was last asked about, and then for so much, of which so much was
	// used.
	asked  time.Time
	wanted wire.Wanted
	used   index.Used
}

// run is pods of one class that are placed by one answer.
type run struct {
	key    string
	class  *ledClass
	answer *wire.Answer
	merged *index.Merged
	until  time.Time
	// picked is the pod that a node was last picked for, until it is assumed to be there.
	picked types.UID
}

const (
	// An answer is not used for longer. What happens to nodes and pods ends a run; only what
	// other nodes have of images comes with the next.
	runLife = time.Second
	// Questions for one pod, while the shards find more that they have to agree on.
	maxAsks = 16
	// Classes that are remembered.
	maxLed = 4096
)

var errUnsettled = errors.New("the shards do not come to an answer: what other pods demand changes all the time")

func NewLeader(r *rank.Ranker, here func(func()), ask func(context.Context, *wire.Ask, bool) (*wire.Answer, error)) *Leader {
	return &Leader{Ranker: r, here: here, ask: ask, classes: map[string]*ledClass{}}
}

// SchedulePod finds the node for a pod.
func (l *Leader) SchedulePod(
	ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo,
) (result kubescheduler.ScheduleResult, err error) {
	defer l.Rescue(ctx, pod.Pod, &err)
	result, err = l.schedulePod(ctx, fw, state, pod)
	if l.heldUp != nil && (errors.Is(err, errIncomplete) || errors.Is(err, errNobody)) {
		l.heldUp(pod.Pod)
	}
	return result, err
}

func (l *Leader) schedulePod(
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
		r, err := l.start(ctx, profile, pod, &wire.Ask{Only: only, Offers: 1, Steps: 1})
		if err != nil {
			return none, l.refine(pod, err)
		}
		if pick, outcome := r.merged.Choose(); outcome == index.Chosen {
			return l.result(r, pick, state, pod), nil
		}
	}
	return l.rank(ctx, profile, state, pod)
}

// rank places a pod by the answer that is there, or by new ones.
func (l *Leader) rank(ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error) {
	r := l.current(profile, pod)
	for range maxAsks {
		fresh := r == nil
		if fresh {
			var err error
			if r, err = l.start(ctx, profile, pod, &wire.Ask{}); err != nil {
				return kubescheduler.ScheduleResult{}, l.refine(pod, err)
			}
		}
		pick, outcome := r.merged.Choose()
		switch {
		case outcome == index.Chosen:
			return l.result(r, pick, state, pod), nil
		case outcome == index.Unfit && fresh:
			return kubescheduler.ScheduleResult{}, l.unfit(ctx, profile, state, pod)
		}
		runEnds.WithLabelValues("used up").Inc()
		l.Run, r = nil, nil
	}
	return kubescheduler.ScheduleResult{}, errUnsettled
}

// current is the run that a pod belongs to; nil if there has to be a new one.
func (l *Leader) current(profile *rank.Profile, pod *framework.QueuedPodInfo) *run {
	r, why := l.Run, ""
	switch disturbed := l.disturbed.Swap(false); {
	case r == nil:
		return nil
	case disturbed:
		why = "disturbed"
	case r.picked != "":
		why = "failed"
	case time.Now().After(r.until):
		why = "old"
	case l.Outdated.Load() || l.index != l.Cluster.Index:
		why = "outdated"
	default:
		// An error is that of the class, which the next question is about.
		key, err := rank.ClassKey(l.Cluster, profile, pod.PodInfo)
		if err == nil && r.key == string(key) {
			return r
		}
		why = "other"
	}
	runEnds.WithLabelValues(why).Inc()
	l.Run = nil
	return nil
}

// start asks the shards about the class of a pod; for as many offers as runs of the class
// need, unless the question says otherwise.
func (l *Leader) start(ctx context.Context, profile *rank.Profile, pod *framework.QueuedPodInfo, ask *wire.Ask) (*run, error) {
	l.Run = nil
	object, err := pod.Pod.Marshal()
	if err != nil {
		return nil, err
	}
	ask.Pod, ask.Profile = object, profile.Framework.ProfileName()
	// The pod will be there for those that follow.
	kind := l.Cluster.Names.Kind(pod.PodInfo)
	key, class, err := l.classOf(profile, pod.PodInfo, ask.Walk)
	if err != nil {
		return nil, err
	}
	if ask.Walk {
		class.agreed.Demands = ask.Demands
	}
	if ask.Offers == 0 {
		class.wanted, class.used = class.wanted.Next(class.used), index.Used{}
		ask.Offers, ask.Steps = class.wanted.Offers, class.wanted.Steps
	}
	for range maxAsks {
		if err := l.prepare(ctx, class, profile, pod.PodInfo, kind); err != nil {
			delete(l.classes, key)
			return nil, err
		}
		ask.Demands = class.agreed.Demands
		answer, err := l.ask(ctx, ask, len(class.Spec.Counters) > 0)
		if err != nil {
			return nil, err
		}
		if !answer.Missing.Empty() {
			class.agreed.Demands = class.agreed.And(answer.Missing)
			class.Class = nil
			continue
		}
		l.see(answer.Visible)
		merged, err := l.merge(class, answer)
		if err != nil {
			return nil, err
		}
		return &run{key: key, class: class, answer: answer, until: time.Now().Add(runLife), merged: merged}, nil
	}
	return nil, errUnsettled
}

// classOf is the class of a pod, with its key. One for which each node is looked at by
// itself is not kept.
func (l *Leader) classOf(profile *rank.Profile, pod *framework.PodInfo, walk bool) (string, *ledClass, error) {
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
		return key, &ledClass{agreed: rank.Agreement{MayGrow: true, PerNode: true}}, nil
	}
	led := l.classes[key]
	if led == nil {
		l.makeRoom()
		led = &ledClass{agreed: rank.Agreement{MayGrow: true}}
		l.classes[key] = led
	}
	led.asked = time.Now()
	return key, led, nil
}

// prepare makes a class, unless it is there; pods of it are of a kind.
func (l *Leader) prepare(ctx context.Context, led *ledClass, profile *rank.Profile, pod *framework.PodInfo, kind index.KindID) (err error) {
	if led.Class != nil && !led.Stale() {
		return nil
	}
	l.here(func() { led.Class, err = rank.NewClass(ctx, l.Cluster, profile, pod, &led.agreed) })
	if err != nil {
		return err
	}
	led.own = nil
	if len(led.Spec.Counters) > 0 {
		led.own = led.Amounts(kind)
	}
	return nil
}

// makeRoom forgets the older half of the classes once there are too many.
func (l *Leader) makeRoom() {
	if len(l.classes) < maxLed {
		return
	}
	ages := make([]int64, 0, len(l.classes))
	for _, class := range l.classes {
		ages = append(ages, class.asked.UnixNano())
	}
	slices.Sort(ages)
	for key, class := range l.classes {
		if class.asked.UnixNano() <= ages[len(ages)/2] {
			delete(l.classes, key)
		}
	}
}

// see notes labels of pods that selectors look at.
func (l *Leader) see(visible []string) {
	names := &l.Cluster.Names
	if before := names.Visible.Len(); names.Visible.Insert(visible...).Len() > before {
		names.Version++
	}
}

// merge makes groups of what the shards answered, in the numbers of the leader.
func (l *Leader) merge(class *ledClass, answer *wire.Answer) (*index.Merged, error) {
	if err := answer.Summary.Suits(&class.Spec); err != nil {
		return nil, fmt.Errorf("what replicas have answered: %w", err)
	}
	answer.Summary.Renumber(
		func(value int32) int32 { return l.Cluster.Names.ValueNumber(answer.Values[value]) },
		func(profile int32) int32 {
			key := []byte(answer.Profiles[profile])
			return class.ProfileNumber(key, class.ImagesOf(key))
		},
	)
	l.Cluster.RemoteNodes = answer.Summary.Nodes
	for i, name := range class.Images[:min(len(class.Images), len(answer.Images))] {
		l.Cluster.Images[name] = &fwk.ImageStateSummary{Size: answer.Images[i].Size, NumNodes: int(answer.Images[i].Nodes)}
	}
	return index.NewMerged(class.Spec, class.own, &answer.Summary), nil
}

// result is what a pick means.
func (l *Leader) result(r *run, pick index.Pick, state fwk.CycleState, pod *framework.QueuedPodInfo) kubescheduler.ScheduleResult {
	r.class.WriteState(state)
	r.class.used = r.merged.Used()
	r.picked = pod.Pod.UID
	l.Run = r
	rank.Walked.Observe(float64(pick.Groups))
	return kubescheduler.ScheduleResult{
		SuggestedHost: r.answer.Names[pick.Slot], EvaluatedNodes: r.merged.Nodes(), FeasibleNodes: pick.Fitting,
	}
}

// disturb says that something has happened that answers do not know of.
func (l *Leader) disturb() { l.disturbed.Store(true) }

// placed says that a pod is assumed to be where it was last picked to be, and returns
// what its class demands.
func (l *Leader) Placed(uid types.UID) wire.Demands {
	if l.Run == nil || l.Run.picked != uid {
		return wire.Demands{}
	}
	l.Run.picked = ""
	return l.Run.class.agreed.Demands
}

// unfit says why a pod fits nowhere.
func (l *Leader) unfit(ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo) error {
	r, err := l.start(ctx, profile, pod, &wire.Ask{Offers: 1, Why: true})
	if err != nil {
		return l.refine(pod, err)
	}
	if len(r.answer.Absent) > 0 {
		// It may fit where nothing is known of, which is soon known again.
		return errIncomplete
	}
	r.class.WriteState(state)
	return r.fitError(pod.Pod)
}

// fitError is what an answer says of why a pod fits nowhere.
func (r *run) fitError(pod *v1.Pod) error {
	if r.merged.Nodes() == 0 {
		return kubescheduler.ErrNoNodesAvailable
	}
	diagnosis := framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus(), UnschedulablePlugins: sets.New(r.class.NamingPlugins...)}
	refusals := r.answer.Refusals
	r.merged.Refused(func(why index.Refusal, counter, nodes int) {
		refusals = append(refusals, r.class.CounterRefusal(why, counter, nodes))
	})
	slices.SortStableFunc(refusals, func(a, b wire.Refusal) int { return b.Nodes - a.Nodes })
	number := 0
	for i := range refusals {
		status := fwk.NewStatus(fwk.Code(refusals[i].Code), refusals[i].Reasons...).WithPlugin(refusals[i].Plugin)
		diagnosis.AddPluginStatus(status)
		if i == 0 {
			diagnosis.NodeToStatus.SetAbsentNodesStatus(status)
			continue
		}
		// Names stay with the shards.
		for range refusals[i].Nodes {
			number++
			diagnosis.NodeToStatus.Set(fmt.Sprintf("#%d", number), status)
		}
	}
	return &framework.FitError{Pod: pod, NumAllNodes: r.merged.Nodes(), Diagnosis: diagnosis}
}

// refine makes the error of a pod that plugins reject before they look at nodes.
func (l *Leader) refine(pod *framework.QueuedPodInfo, err error) error {
	var rejected rank.Rejection
	if !errors.As(err, &rejected) {
		return err
	}
	diagnosis := framework.Diagnosis{
		NodeToStatus: framework.NewDefaultNodeToStatus(), UnschedulablePlugins: rejected.Plugins, PreFilterMsg: rejected.Status.Message(),
	}
	diagnosis.NodeToStatus.SetAbsentNodesStatus(rejected.Status)
	diagnosis.AddPluginStatus(rejected.Status)
	return &framework.FitError{Pod: pod.Pod, NumAllNodes: l.Nodes(), Diagnosis: diagnosis}
}
