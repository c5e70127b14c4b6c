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

// found are victims that need not be looked for.
type chosenVictims struct {
	preemption.Interface
	victims *extenderv1.Victims
}

// PodEligibleToPreemptOthers was asked where it can be answered.
func (*chosenVictims) PodEligibleToPreemptOthers(context.Context, *v1.Pod, *fwk.Status) (bool, string) {
	return true, ""
}

// GetOffsetAndNumCandidates is for one node.
func (*chosenVictims) GetOffsetAndNumCandidates(int32) (int32, int32) { return 0, 1 }

// SelectVictimsOnNode returns those that were found.
func (f *chosenVictims) SelectVictimsOnNode(
	context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo, []*preemption.DomainVictim, []*policyv1.PodDisruptionBudget,
) ([]*v1.Pod, int, *fwk.Status) {
	return f.victims.Pods, int(f.victims.NumPDBViolations), nil
}

// oneNode is a handle that shows one node only.
type oneNode struct {
	framework.Framework
	info fwk.NodeInfo
}

// MutableSnapshotSharedLister lists the node.
func (o *oneNode) MutableSnapshotSharedLister() fwk.MutableSnapshotSharedLister {
	return &oneNodeLister{o.Framework.MutableSnapshotSharedLister(), o.info}
}

type oneNodeLister struct {
	fwk.MutableSnapshotSharedLister
	info fwk.NodeInfo
}

// NodeInfos lists the node.
func (l *oneNodeLister) NodeInfos() fwk.NodeInfoLister {
	return &oneNodeInfos{l.MutableSnapshotSharedLister.NodeInfos(), l.info}
}

type oneNodeInfos struct {
	fwk.NodeInfoLister
	info fwk.NodeInfo
}

// List is the node.
func (l *oneNodeInfos) List() ([]fwk.NodeInfo, error) { return []fwk.NodeInfo{l.info}, nil }

// Get is the node, by its name.
func (l *oneNodeInfos) Get(name string) (fwk.NodeInfo, error) {
	if name != l.info.Node().Name {
		return nil, fmt.Errorf("node %s is with the replica that owns it", name)
	}
	return l.info, nil
}
