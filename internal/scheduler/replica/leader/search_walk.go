package leader

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// walk places a pod whose nodes have to be evaluated one by one.
func (l *Search) walk(ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error) {
	if only := pod.Pod.Status.NominatedNodeName; only != "" {
		result, err := l.walkTo(ctx, profile, state, pod, only)
		var unfit *framework.FitError
		if !errors.As(err, &unfit) {
			return result, err
		}
	}
	return l.walkTo(ctx, profile, state, pod, "")
}

// walkTo does so for one node, or for all if only is "". Plugins that reserve volumes or claims
// later need their state for the chosen node, so they run here again for it. If they reject it,
// another node is chosen.
func (l *Search) walkTo(ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo, only string) (kubescheduler.ScheduleResult, error) {
	none := kubescheduler.ScheduleResult{}
	var except []string
	inUse := false
	for range maxQueries {
		r, err := l.query(ctx, profile, pod, &wire.Query{NodeByNode: true, Reasons: true, Offers: 1, Node: only, Exclude: except, InUse: inUse})
		if err != nil {
			return none, l.explainRejection(pod, err)
		}
		if r.answer.InUse && !inUse {
			// Shards without the pods that use the claim do not know that it is in use.
			inUse = true
			continue
		}
		r.class.WriteState(state)
		pick, outcome := r.merged.Choose()
		if outcome != index.Chosen {
			if len(r.answer.Absent) > 0 {
				return none, errIncomplete
			}
			return none, r.fitError(pod.Pod)
		}
		name := r.answer.Names[pick.Node]
		suits, err := l.fitsChosen(ctx, profile, state, pod, name)
		if err != nil {
			return none, err
		}
		if suits {
			// The answer does not tell where another pod fits.
			r.validUntil = time.Time{}
			return l.result(r, pick, state, pod), nil
		}
		except = append(except, name)
	}
	return none, errNoAgreement
}

// fitsChosen runs the plugins for the chosen node, because only the leader knows claims that are
// reserved and not bound yet.
func (l *Search) fitsChosen(ctx context.Context, profile *rank.Profile, state fwk.CycleState, pod *framework.QueuedPodInfo, name string) (bool, error) {
	r, err := l.query(ctx, profile, pod, &wire.Query{NodeByNode: true, Node: name, IncludeNode: true, Offers: 1})
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
