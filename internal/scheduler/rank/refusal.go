package rank

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/podtopologyspread"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// CounterRefusal returns the status with which upstream's plugins reject a number of nodes because of other
// pods.
func (cl *Class) CounterRefusal(reason index.Refusal, counter, nodes int) wire.Refusal {
	refusal := func(code fwk.Code, plugin, reason string) wire.Refusal {
		return wire.Refusal{Code: int(code), Plugin: plugin, Reasons: []string{reason}, Nodes: nodes}
	}
	switch reason {
	case index.NoLabel:
		return refusal(fwk.UnschedulableAndUnresolvable, pluginnames.PodTopologySpread, podtopologyspread.ErrReasonNodeLabelNotMatch)
	case index.Skewed:
		return refusal(fwk.Unschedulable, pluginnames.PodTopologySpread, podtopologyspread.ErrReasonConstraintsNotMatch)
	case index.Unmet:
		return refusal(fwk.UnschedulableAndUnresolvable, pluginnames.InterPodAffinity, interpodaffinity.ErrReasonAffinityRulesNotMatch)
	}
	for _, own := range cl.terms.avoid {
		if own == counter {
			return refusal(fwk.Unschedulable, pluginnames.InterPodAffinity, interpodaffinity.ErrReasonAntiAffinityRulesNotMatch)
		}
	}
	return refusal(fwk.Unschedulable, pluginnames.InterPodAffinity, interpodaffinity.ErrReasonExistingAntiAffinityRulesNotMatch)
}

// FirstRefusal returns the refusal by the plugin that upstream asks first: the given one of a plugin that reads one
// node, or one because of other pods. merged has the counters of all replicas, and more is added to those of the node.
//
// Upstream asks all plugins while nominated pods count, and then once more without these pods. A plugin that reads one node
// rejects it the first time if it does so at all, so the refusals of the second time do not matter.
func (cl *Class) FirstRefusal(refusal wire.Refusal, merged *index.Merged, more []int64) wire.Refusal {
	if refusal.Counts == nil {
		return refusal
	}
	reason, counter, refused := merged.RefusedWithNominated(refusal.Counts, more)
	if refused {
		first := cl.CounterRefusal(reason, counter, refusal.Nodes)
		if cl.profile.filterOrder[first.Plugin] < cl.profile.filterOrder[refusal.Plugin] {
			return first
		}
	}
	return refusal
}

// asksCountersBefore returns whether other pods may forbid nodes for the class, and upstream asks a plugin that
// the counters replace before the given one.
func (cl *Class) asksCountersBefore(plugin string) bool {
	position, filters := cl.profile.filterOrder[plugin]
	if !filters || !cl.dependsOnOtherPods() {
		return false
	}
	for replaced := range IndexPlugins {
		if first, enabled := cl.profile.filterOrder[replaced]; enabled && first < position {
			return true
		}
	}
	return false
}

// StatusOf converts a refusal to the status of its plugin.
func StatusOf(refusal wire.Refusal) *fwk.Status {
	return fwk.NewStatus(fwk.Code(refusal.Code), refusal.Reasons...).WithPlugin(refusal.Plugin)
}

// refusal returns the number of a status with which a plugin rejects a node. Equal statuses have the same
// number. Each node may have another status, for example because of a taint of its own.
func (cl *Class) refusal(status *fwk.Status) int32 {
	refusal := refusalOf(status, 0)
	cl.refusalKey = refusal.AppendKey(cl.refusalKey[:0])
	number, fresh := cl.refusalNumbers.Of(cl.refusalKey)
	if fresh {
		cl.refusals = append(cl.refusals, status)
	}
	return number
}

// dependsOnOtherPods returns whether other pods decide where the pods of the class fit.
func (cl *Class) dependsOnOtherPods() bool {
	return len(cl.Spec.Hard)+len(cl.Spec.Forbid)+len(cl.Spec.Require) > 0
}

// explainsUnfit returns whether the verdicts contain all reasons for which no node fits. If the class
// depends on other pods, they do not, and preemption needs the counts of upstream's PreFilter.
func (cl *Class) explainsUnfit() bool { return !cl.dependsOnOtherPods() && cl.cluster.Index.Len() > 0 }

// fitsWithNominated runs the filter plugins that read one node, with the node's nominated pods counted as
// running.
func (cl *Class) fitsWithNominated(ctx context.Context, pod *v1.Pod, n *cache.Node) *fwk.Status {
	return cl.profile.Framework.RunFilterPluginsWithNominatedPods(ctx, cl.state, pod, n.Info)
}

// fitError returns upstream's error with the reason for each node. The reason that applies to most nodes is
// the default for nodes that are not listed, so that most nodes need not be listed. evaluated are the
// statuses of nodes that replace those of the index.
func (cl *Class) fitError(indexClass *index.Class, pod *v1.Pod, evaluated map[index.NodeID]*fwk.Status) *framework.FitError {
	refused := make([][]index.NodeID, len(cl.refusals))
	indexClass.EachRefused(func(number int32, ids []index.NodeID) {
		for _, id := range ids {
			if evaluated[id] == nil {
				refused[number] = append(refused[number], id)
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
	refuse := func(id index.NodeID, status *fwk.Status) {
		diagnosis.NodeToStatus.Set(cl.cluster.ByID[id].Info.Node().Name, status)
	}
	for number, ids := range refused {
		switch {
		case len(ids) == 0:
			continue
		case number == most:
			diagnosis.NodeToStatus.SetAbsentNodesStatus(cl.refusals[most])
		default:
			for _, id := range ids {
				refuse(id, cl.refusals[number])
			}
		}
		diagnosis.AddPluginStatus(cl.refusals[number])
	}
	for id, status := range evaluated {
		refuse(id, status)
		diagnosis.AddPluginStatus(status)
	}
	return &framework.FitError{Pod: pod, NumAllNodes: cl.cluster.Index.Len(), Diagnosis: diagnosis}
}
