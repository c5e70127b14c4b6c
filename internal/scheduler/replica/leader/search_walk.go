package leader

import (
	"context"
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// walk finds the node for a pod for which owners have to evaluate each node: first its nominated node,
// then all nodes.
func (l *Search) walk(ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error) {
	if only := pod.Pod.Status.NominatedNodeName; only != "" {
		result, err := l.walkNodes(ctx, profile, state, pod, wire.Query{Node: only})
		var unfit *framework.FitError
		if !errors.As(err, &unfit) {
			return result, err
		}
	}
	return l.walkNodes(ctx, profile, state, pod, wire.Query{})
}

// walkNodes finds the node for a pod among all nodes, or checks the one node that scope names. Plugins that later
// reserve volumes or claims need state for the chosen node, so their filters run for this node again in the
// leader. If they reject the node, the owners are queried again without it.
func (l *Search) walkNodes(ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo, scope wire.Query) (kubescheduler.ScheduleResult, error) {
	none := kubescheduler.ScheduleResult{}
	var excluded, inUse []string
	for range maxQueries {
		r, err := l.query(ctx, profile, pod, &wire.Query{NodeByNode: true, Reasons: true, Offers: 1, Node: scope.Node, Reserved: scope.Reserved, Exclude: excluded, InUse: inUse})
		if err != nil {
			return none, l.explainRejection(pod, err)
		}
		if more := without(r.answer.InUse, inUse); len(more) > 0 {
			// An owner knows that a claim is in use only if a pod on its nodes uses it. Query again
			// and tell all owners.
			inUse = append(inUse, more...)
			continue
		}
		r.class.WriteState(state)
		pick, outcome := r.merged.Choose()
		if outcome != index.Chosen {
			if len(r.answer.Absent) > 0 {
				return none, errIncomplete
			}
			l.rejected = rejectedNodes{pod.Pod.UID, excluded}
			return none, r.fitError(pod.Pod)
		}
		name := r.answer.Names[pick.Node]
		fits, err := l.fitsNode(ctx, profile, state, pod, &wire.Query{NodeByNode: true, Node: name, Reserved: scope.Reserved, IncludeNode: true, Offers: 1})
		if err != nil {
			return none, err
		}
		if fits {
			// The answer is not valid for another pod.
			r.validUntil = time.Time{}
			return l.result(r, pick, state, pod), nil
		}
		excluded = append(excluded, name)
	}
	return none, errTooManyQueries
}

// without returns the strings of a list that are not in another.
func without(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}

// fitsNode runs the filters of the leader's plugins for the chosen node, for which the query asks. Only the leader
// knows which claims are reserved but not bound yet. It skips the plugins that the index evaluates.
func (l *Search) fitsNode(ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo, query *wire.Query) (bool, error) {
	r, err := l.query(ctx, profile, pod, query)
	if err != nil || len(r.answer.Node) == 0 {
		return false, err
	}
	info, node := framework.NewNodeInfo(), &v1.Node{}
	if err := node.Unmarshal(r.answer.Node); err != nil {
		return false, err
	}
	info.SetNode(node)
	for _, data := range r.answer.Pods {
		other := &v1.Pod{}
		if err := other.Unmarshal(data); err != nil {
			return false, err
		}
		info.AddPod(other)
	}
	// Plugins look up the node when they bind claims.
	l.owners.KeepNode(node)
	skipped := state.GetSkipFilterPlugins()
	state.SetSkipFilterPlugins(skipped.Union(rank.IndexPlugins))
	defer state.SetSkipFilterPlugins(skipped)
	status := profile.Framework.RunFilterPlugins(ctx, state, pod.Pod, info)
	if status.IsSuccess() || status.IsRejected() {
		return status.IsSuccess(), nil
	}
	return false, status.AsError()
}
