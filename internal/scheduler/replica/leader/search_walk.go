package leader

import (
	"context"
	"errors"
	"slices"
	"time"

	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
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

// maxExcluded is the number of nodes that the leader's plugins may reject for a pod before the leader gives up. Nodes are
// rejected while claims of other pods are being bound: owners do not know yet that these claims use volumes or devices of
// their nodes.
const maxExcluded = 256

// walkNodes finds the node for a pod among all nodes, or checks the one node that scope names. Plugins that later
// reserve volumes or claims need state for the chosen node, so their filters run for this node again in the
// leader. If they reject the node, the owners are queried again without it.
func (l *Search) walkNodes(ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo, scope wire.Query) (kubescheduler.ScheduleResult, error) {
	none := kubescheduler.ScheduleResult{}
	var inUse []string
	again := recheck{search: l, profile: profile, pod: pod, reserved: scope.Reserved, termKeys: scope.TermKeys}
	// Each excluded node allows another query: the search makes progress.
	for queries := 0; queries < maxQueries+min(len(again.excluded), maxExcluded); queries++ {
		r, err := l.query(ctx, profile, pod, &wire.Query{NodeByNode: true, Reasons: true, Offers: 1, Node: scope.Node, Reserved: scope.Reserved, TermKeys: again.termKeys, Exclude: again.excluded, InUse: inUse})
		if err != nil {
			return none, l.explainRejection(pod, err)
		}
		// The next query need not find out again which topology keys the owners need.
		again.termKeys = r.class.agreement.TermKeys
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
				return none, core.ErrIncomplete
			}
			l.rejected = rejectedNodes{pod.Pod.UID, again.excluded}
			return none, again.explain(ctx, state, r, scope.Node == "")
		}
		fits, err := again.fits(ctx, state, r.answer.Names[pick.Node])
		if err != nil {
			return none, err
		}
		if fits {
			// The answer is not valid for another pod.
			r.validUntil = time.Time{}
			return l.result(r, pick, state, pod), nil
		}
	}
	return none, errTooManyQueries
}

// without returns the strings of a list that are not in another.
func without(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}
