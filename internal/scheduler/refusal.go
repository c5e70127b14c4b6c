package scheduler

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
)

// refusal is the number of a status with which plugins refuse a node.
func (cl *class) refusal(status *fwk.Status) int32 {
	same := func(known *fwk.Status) bool {
		return known.Code() == status.Code() && known.Plugin() == status.Plugin() &&
			slices.Equal(known.Reasons(), status.Reasons())
	}
	if number := slices.IndexFunc(cl.refusals, same); number >= 0 {
		return int32(number)
	}
	cl.refusals = append(cl.refusals, status)
	return int32(len(cl.refusals) - 1)
}

// relational says whether other pods decide where those of the class fit.
func (cl *class) relational() bool {
	return len(cl.spec.Hard)+len(cl.spec.Forbid)+len(cl.spec.Require) > 0
}

// explains says whether the verdicts are all there is to say of why no node fits.
// Where other pods matter, preemption needs what plugins would have counted.
func (cl *class) explains() bool { return !cl.relational() && cl.cluster.index.Len() > 0 }

// admits says whether a pod of the class, which is not relational, fits on a node
// beside the pods that run there and those that are nominated to.
func (cl *class) admits(ctx context.Context, pod *v1.Pod, n *node) *fwk.Status {
	return cl.profile.framework.RunFilterPluginsWithNominatedPods(ctx, cl.state, pod, n.info)
}

// fitError says of all nodes why they do not fit; some were asked for this pod. The
// reason that most nodes share stands for all that are not named, so that not each
// of them has to be.
func (cl *class) fitError(found *index.Class, pod *v1.Pod, asked map[index.Slot]*fwk.Status) *framework.FitError {
	refused := make([][]index.Slot, len(cl.refusals))
	found.Refused(func(number int32, slots []index.Slot) {
		for _, slot := range slots {
			if asked[slot] == nil {
				refused[number] = append(refused[number], slot)
			}
		}
	})
	most := 0
	for number := range refused {
		if len(refused[number]) > len(refused[most]) {
			most = number
		}
	}
	diagnosis := framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus()}
	refuse := func(slot index.Slot, status *fwk.Status) {
		diagnosis.NodeToStatus.Set(cl.cluster.bySlot[slot].info.Node().Name, status)
	}
	for number, slots := range refused {
		switch {
		case len(slots) == 0:
			continue
		case number == most:
			diagnosis.NodeToStatus.SetAbsentNodesStatus(cl.refusals[most])
		default:
			for _, slot := range slots {
				refuse(slot, cl.refusals[number])
			}
		}
		diagnosis.AddPluginStatus(cl.refusals[number])
	}
	for slot, status := range asked {
		refuse(slot, status)
		diagnosis.AddPluginStatus(status)
	}
	return &framework.FitError{Pod: pod, NumAllNodes: cl.cluster.index.Len(), Diagnosis: diagnosis}
}
