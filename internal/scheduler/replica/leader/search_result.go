package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// merge prepares the choice among the groups in an answer. It replaces the numbers in the answer by
// those of the leader.
func (l *Search) merge(class *searchClass, answer *wire.Answer) (*index.Merged, error) {
	if err := answer.Summary.CheckSpec(&class.Spec); err != nil {
		return nil, fmt.Errorf("answer of the replicas: %w", err)
	}
	for i := range answer.Refusals {
		if counts := answer.Refusals[i].Counts; counts != nil {
			if err := counts.CheckSpec(&class.Spec); err != nil {
				return nil, fmt.Errorf("answer of the replicas: %w", err)
			}
		}
	}
	answer.Renumber(
		func(value int32) int32 { return l.Cluster.Names.ValueNumber(answer.Values[value]) },
		func(imageSet int32) int32 {
			key := []byte(answer.ImageSets[imageSet])
			return class.ImageSetNumber(key, class.ImagesOf(key))
		},
	)
	l.Cluster.RemoteNodes = answer.Summary.Nodes
	setImages(l.Cluster.Images, class.Images, answer.Images)
	return index.NewMerged(class.Spec, class.ownAmounts, &answer.Summary), nil
}

// setImages replaces the images of the leader by those in an answer. Others are not needed: there is one batch at
// a time, and its scores read only the images of its own pods.
func setImages(images map[string]*fwk.ImageStateSummary, names []string, reported []wire.Image) {
	clear(images)
	for i, name := range names[:min(len(names), len(reported))] {
		images[name] = &fwk.ImageStateSummary{Size: reported[i].Size, NumNodes: int(reported[i].Nodes)}
	}
}

// result makes r the current batch and converts a choice to the result of the scheduling cycle. It forgets which pods do
// not fit, because the placed pod counts for them.
func (l *Search) result(r *podBatch, pick index.Pick, state fwk.CycleState, pod *framework.QueuedPodInfo) kubescheduler.ScheduleResult {
	r.class.WriteState(state)
	r.class.used = r.merged.Used()
	r.picked = pod.Pod.UID
	l.batch = r
	clear(l.unfit)
	rank.Walked.Observe(float64(pick.Groups))
	return kubescheduler.ScheduleResult{
		SuggestedHost: r.answer.Names[pick.Node], EvaluatedNodes: r.merged.Nodes(), FeasibleNodes: pick.Fitting,
	}
}

// explainUnfit queries the owners for the reasons for which a pod fits on no node. If it fits on a node by
// now, because the nodes have changed since the previous query, explainUnfit chooses this node: reasons for
// the other nodes would make preemption evict pods needlessly.
func (l *Search) explainUnfit(ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error) {
	none := kubescheduler.ScheduleResult{}
	r, err := l.query(ctx, profile, pod, &wire.Query{Offers: 1, Reasons: true})
	if err != nil {
		return none, l.explainRejection(pod, err)
	}
	if pick, outcome := r.merged.Choose(); outcome == index.Chosen {
		return l.result(r, pick, state, pod), nil
	}
	if len(r.answer.Absent) > 0 {
		// The pod may fit on a node of an owner that did not answer.
		return none, core.ErrIncomplete
	}
	r.class.WriteState(state)
	l.rememberUnfit(r, pod.Pod)
	return none, r.fitError(pod.Pod)
}

// fitError converts the reasons in an answer to upstream's error.
func (r *podBatch) fitError(pod *v1.Pod) error {
	if r.merged.Nodes() == 0 {
		return kubescheduler.ErrNoNodesAvailable
	}
	diagnosis := framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus(), UnschedulablePlugins: sets.New(r.class.NamingPlugins...)}
	refusals := make([]wire.Refusal, 0, len(r.answer.Refusals))
	for _, refusal := range r.answer.Refusals {
		refusals = append(refusals, r.class.FirstRefusal(refusal, r.merged, nil))
	}
	r.merged.EachRefused(func(reason index.Refusal, counter, nodes int) {
		refusals = append(refusals, r.class.CounterRefusal(reason, counter, nodes))
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
		// Owners report numbers of nodes, not names, so the nodes get made-up names.
		for range refusals[i].Nodes {
			number++
			diagnosis.NodeToStatus.Set(fmt.Sprintf("#%d", number), status)
		}
	}
	return &framework.FitError{Pod: pod, NumAllNodes: r.merged.Nodes(), Diagnosis: diagnosis}
}

// explainRejection returns upstream's error for a pod that a plugin has rejected for all nodes. It
// returns other errors unchanged.
func (l *Search) explainRejection(pod *framework.QueuedPodInfo, err error) error {
	var rejected rank.Rejection
	if !errors.As(err, &rejected) {
		return err
	}
	diagnosis := framework.Diagnosis{
		NodeToStatus: framework.NewDefaultNodeToStatus(), UnschedulablePlugins: rejected.Plugins, PreFilterMsg: rejected.Status.Message(),
	}
	diagnosis.NodeToStatus.SetAbsentNodesStatus(rejected.Status)
	diagnosis.AddPluginStatus(rejected.Status)
	return &framework.FitError{Pod: pod.Pod, NumAllNodes: l.owners.Nodes(), Diagnosis: diagnosis}
}
