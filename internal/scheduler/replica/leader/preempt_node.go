package leader

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// chosenVictims makes upstream's evaluator use victims that were already chosen.
type chosenVictims struct {
	preemption.Interface
	victims *extenderv1.Victims
}

// PodEligibleToPreemptOthers returns true: the owner of the node has checked it.
func (*chosenVictims) PodEligibleToPreemptOthers(context.Context, *v1.Pod, *fwk.Status) (bool, string) {
	return true, ""
}

// GetOffsetAndNumCandidates returns the offset 0 and the number 1, because there is one node.
func (*chosenVictims) GetOffsetAndNumCandidates(int32) (int32, int32) { return 0, 1 }

// SelectVictimsOnNode returns the chosen victims.
func (f *chosenVictims) SelectVictimsOnNode(
	context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo, []*preemption.DomainVictim, []*policyv1.PodDisruptionBudget,
) ([]*v1.Pod, int, *fwk.Status) {
	return f.victims.Pods, int(f.victims.NumPDBViolations), nil
}

// oneNode is a framework whose snapshot lists only one node.
type oneNode struct {
	framework.Framework
	info fwk.NodeInfo
}

// MutableSnapshotSharedLister returns a lister of only the one node.
func (o *oneNode) MutableSnapshotSharedLister() fwk.MutableSnapshotSharedLister {
	return &oneNodeLister{o.Framework.MutableSnapshotSharedLister(), o.info}
}

type oneNodeLister struct {
	fwk.MutableSnapshotSharedLister
	info fwk.NodeInfo
}

// NodeInfos returns a lister of only the one node.
func (l *oneNodeLister) NodeInfos() fwk.NodeInfoLister {
	return &oneNodeInfos{l.MutableSnapshotSharedLister.NodeInfos(), l.info}
}

type oneNodeInfos struct {
	fwk.NodeInfoLister
	info fwk.NodeInfo
}

// List returns the one node.
func (l *oneNodeInfos) List() ([]fwk.NodeInfo, error) { return []fwk.NodeInfo{l.info}, nil }

// Get returns the one node, or an error for any other name.
func (l *oneNodeInfos) Get(name string) (fwk.NodeInfo, error) {
	if name != l.info.Node().Name {
		return nil, fmt.Errorf("node %s is not known to the leader: only the replica that owns it has it", name)
	}
	return l.info, nil
}
