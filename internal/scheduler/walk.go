package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// walk looks at each node by itself, for a pod with volumes, claims, or nodes that it
// names: what it asks of nodes is in no state. What other pods have to do with it is
// counted as for all others.
type walk struct {
	ctx    context.Context
	class  *class
	pod    *v1.Pod
	except sets.Set[string]
	// refused are the nodes that do not fit, with why; those that nominated pods bar are
	// in it from the start.
	refused map[index.Slot]*fwk.Status
}

// slots are the nodes to be looked at: all, or those that the pod can go to at all.
func (w *walk) slots(only string) []index.Slot {
	c := w.class.cluster
	names := w.class.named
	if only != "" {
		names = sets.New(only)
	}
	var slots []index.Slot
	if names != nil {
		for name := range names {
			if n := c.present(name); n != nil {
				slots = append(slots, n.slot)
			}
		}
		w.refuseOthers(names)
		return slots
	}
	for _, n := range c.nodes {
		if n.position >= 0 {
			slots = append(slots, n.slot)
		}
	}
	return slots
}

// refuseOthers notes why all nodes do not fit that the pod does not name.
func (w *walk) refuseOthers(names sets.Set[string]) {
	status := fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", w.class.by))
	for _, n := range w.class.cluster.nodes {
		if n.position >= 0 && !names.Has(n.info.Node().Name) {
			w.refused[n.slot] = status
		}
	}
}

func (w *walk) verdict(slot index.Slot) (index.Verdict, error) {
	if w.refused[slot] != nil {
		return index.Verdict{}, nil
	}
	n := w.class.cluster.bySlot[slot]
	if w.except.Has(n.info.Node().Name) {
		w.refused[slot] = fwk.NewStatus(fwk.Unschedulable, "node(s) did not have what the pod claims, after all")
		return index.Verdict{}, nil
	}
	verdict, refused, err := w.class.ask(w.class.state, n.info)
	if refused != nil {
		w.refused[slot] = refused
	}
	return verdict, err
}

// walk places a pod for which each node has to be looked at by itself.
func (l *leader) walk(ctx context.Context, profile *profile, state fwk.CycleState, pod *framework.QueuedPodInfo) (upstream.ScheduleResult, error) {
	if only := pod.Pod.Status.NominatedNodeName; only != "" {
		result, err := l.walkTo(ctx, profile, state, pod, only)
		var unfit *framework.FitError
		if !errors.As(err, &unfit) {
			return result, err
		}
	}
	return l.walkTo(ctx, profile, state, pod, "")
}

// walkTo does so with one node, or with all. What plugins want to know later, when they
// reserve what the pod claims, they find out here, about the node that is chosen; if it
// is not right after all, it is another one.
func (l *leader) walkTo(ctx context.Context, profile *profile, state fwk.CycleState, pod *framework.QueuedPodInfo, only string) (upstream.ScheduleResult, error) {
	none := upstream.ScheduleResult{}
	var except []string
	inUse := false
	for range maxAsks {
		r, err := l.start(ctx, profile, pod, &wire.Ask{Walk: true, Why: true, Offers: 1, Only: only, Except: except, InUse: inUse})
		if err != nil {
			return none, l.refine(pod, err)
		}
		if r.answer.InUse && !inUse {
			// Whoever has not the pods that use it does not know.
			inUse = true
			continue
		}
		r.class.adopt(state)
		pick, outcome := r.merged.Choose()
		if outcome != index.Chosen {
			if len(r.answer.Absent) > 0 {
				return none, errIncomplete
			}
			return none, r.fitError(pod.Pod)
		}
		name := r.answer.Names[pick.Slot]
		suits, err := l.suits(ctx, profile, state, pod, name)
		if err != nil {
			return none, err
		}
		if suits {
			// Nothing is known of where another would go.
			r.until = time.Time{}
			return l.result(r, pick, state, pod), nil
		}
		except = append(except, name)
	}
	return none, errUnsettled
}

// suits asks the plugins about the node that was chosen, as the leader knows what pods
// claim that are not bound yet.
func (l *leader) suits(ctx context.Context, profile *profile, state fwk.CycleState, pod *framework.QueuedPodInfo, name string) (bool, error) {
	r, err := l.start(ctx, profile, pod, &wire.Ask{Walk: true, Only: name, Whole: true, Offers: 1})
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
	if l.chosen != nil {
		// Plugins look the node up when they bind what the pod claims.
		l.chosen(node)
	}
	skipped := state.GetSkipFilterPlugins()
	state.SetSkipFilterPlugins(skipped.Union(ours))
	defer state.SetSkipFilterPlugins(skipped)
	status := profile.framework.RunFilterPlugins(ctx, state, pod.Pod, info)
	if status.IsSuccess() || status.IsRejected() {
		return status.IsSuccess(), nil
	}
	return false, status.AsError()
}
