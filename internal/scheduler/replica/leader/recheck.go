package leader

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// recheck runs the filters of the leader's own plugins on single nodes, for a pod whose nodes are evaluated one by
// one. Only the leader knows which claims are reserved but not bound yet.
type recheck struct {
	search  *Search
	profile *rank.Profile
	pod     *framework.QueuedPodInfo
	// reserved is [wire.Query.Reserved].
	reserved types.UID
	// termKeys is [wire.Query.TermKeys].
	termKeys wire.TermKeys
	// excluded are the names of the nodes that were rejected or have disappeared. rejected are those that were
	// rejected.
	excluded []string
	rejected []rejectedNode
}

// rejectedNode is a node that the leader's own plugins have rejected, with their status.
type rejectedNode struct {
	info   *framework.NodeInfo
	status *fwk.Status
}

// fits returns whether the leader's plugins accept the node that was chosen for the pod. Otherwise it excludes the
// node.
func (c *recheck) fits(ctx context.Context, state fwk.CycleState, node string) (bool, error) {
	info, err := c.fetch(ctx, node)
	if err != nil {
		return false, err
	}
	if info == nil {
		c.excluded = append(c.excluded, node)
		return false, nil
	}
	status := c.filter(ctx, state, info)
	switch {
	case status.IsSuccess():
		return true, nil
	case !status.IsRejected():
		return false, status.AsError()
	}
	c.excluded, c.rejected = append(c.excluded, node), append(c.rejected, rejectedNode{info, status})
	return false, nil
}

// fetch gets a node and its pods from its owner; nil if the node does not exist.
func (c *recheck) fetch(ctx context.Context, node string) (*framework.NodeInfo, error) {
	query := &wire.Query{NodeByNode: true, Node: node, Reserved: c.reserved, TermKeys: c.termKeys, IncludeNode: true, Offers: 1}
	r, err := c.search.query(ctx, c.profile, c.pod, query)
	if err != nil || len(r.answer.Node) == 0 {
		return nil, err
	}
	info, object := framework.NewNodeInfo(), &v1.Node{}
	if err := object.Unmarshal(r.answer.Node); err != nil {
		return nil, err
	}
	info.SetNode(object)
	for _, data := range r.answer.Pods {
		other := &v1.Pod{}
		if err := other.Unmarshal(data); err != nil {
			return nil, err
		}
		info.AddPod(other)
	}
	return info, nil
}

// filter runs the filters for a node, except those of the plugins that the index evaluates.
func (c *recheck) filter(ctx context.Context, state fwk.CycleState, info *framework.NodeInfo) *fwk.Status {
	// Plugins look up the node when they bind claims.
	c.search.owners.KeepNode(info.Node())
	skipped := state.GetSkipFilterPlugins()
	state.SetSkipFilterPlugins(skipped.Union(rank.IndexPlugins))
	defer state.SetSkipFilterPlugins(skipped)
	return c.profile.Framework.RunFilterPlugins(ctx, state, c.pod.Pod, info)
}

// explain returns upstream's error for a pod that fits on no node. r is the last answer, without the excluded nodes.
// If deallocate is true, upstream's PostFilter may deallocate a claim of the pod.
func (c *recheck) explain(ctx context.Context, state fwk.CycleState, r *podBatch, deallocate bool) error {
	refusals := r.answer.CopyRefusals()
	for _, node := range c.rejected {
		refusals.Add(wire.Refusal{
			Code: int(node.status.Code()), Plugin: node.status.Plugin(), Reasons: node.status.Reasons(), Nodes: 1,
		})
	}
	r.answer.Refusals = refusals.List()
	if deallocate {
		if err := c.findUnavailableClaims(ctx, state, r.answer); err != nil {
			return err
		}
	}
	return r.fitError(c.pod.Pod)
}

// findUnavailableClaims makes DynamicResources write into the cycle state which allocated claims of the pod are not
// available on some node, as it does upstream, where it filters all nodes with this state. Its PostFilter deallocates
// one of them.
func (c *recheck) findUnavailableClaims(ctx context.Context, state fwk.CycleState, answer *wire.Answer) error {
	var nodes []*framework.NodeInfo
	for _, node := range c.rejected {
		if node.status.Plugin() == pluginnames.DynamicResources {
			nodes = append(nodes, node.info)
		}
	}
	var fetched []string
	for _, claim := range answer.UnavailableClaims {
		if slices.Contains(fetched, claim.Node) {
			continue
		}
		fetched = append(fetched, claim.Node)
		info, err := c.fetch(ctx, claim.Node)
		if err != nil {
			return err
		}
		if info != nil {
			nodes = append(nodes, info)
		}
	}
	for _, info := range nodes {
		// The owner's status counts. It may differ from this one, if this replica knows newer claims.
		if status := c.filter(ctx, state, info); !status.IsSuccess() && !status.IsRejected() {
			return status.AsError()
		}
	}
	return nil
}
