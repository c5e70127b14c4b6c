package scheduler

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/index"
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

// explains says whether the verdicts are all there is to say of why no node fits.
// Where other pods matter, preemption needs what plugins would have counted.
func (cl *class) explains() bool {
	return len(cl.spec.Counters) == 0 && cl.cluster.index.Len() > 0
}

// fitError says of all nodes why they do not fit. The reason that most nodes share
// stands for all that are not named, so that not each of them has to be.
func (cl *class) fitError(found *index.Class, pod *v1.Pod) *framework.FitError {
	refused := make([][]index.Slot, len(cl.refusals))
	found.Refused(func(number int32, slots []index.Slot) {
		refused[number] = append(refused[number], slots...)
	})
	most := 0
	for number := range refused {
		if len(refused[number]) > len(refused[most]) {
			most = number
		}
	}
	diagnosis := framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus()}
	diagnosis.NodeToStatus.SetAbsentNodesStatus(cl.refusals[most])
	for number, slots := range refused {
		if len(slots) == 0 {
			continue
		}
		diagnosis.AddPluginStatus(cl.refusals[number])
		if number == most {
			continue
		}
		for _, slot := range slots {
			diagnosis.NodeToStatus.Set(cl.cluster.bySlot[slot].info.Node().Name, cl.refusals[number])
		}
	}
	return &framework.FitError{Pod: pod, NumAllNodes: cl.cluster.index.Len(), Diagnosis: diagnosis}
}
