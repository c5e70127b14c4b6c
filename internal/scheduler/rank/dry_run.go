package rank

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// NewDryRuns makes another instance of upstream's preemption plugin. Its handle takes counts from
// the index for plugins that would read all nodes.
func NewDryRuns(ctx context.Context, fw framework.Framework, cfg config.KubeSchedulerProfile) (*defaultpreemption.DefaultPreemption, error) {
	for _, plugin := range cfg.PluginConfig {
		if args, ok := plugin.Args.(*config.DefaultPreemptionArgs); ok {
			return defaultpreemption.New(ctx, args, &countingHandle{fw}, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
		}
	}
	return nil, fmt.Errorf("profile %s has no arguments for plugin %s", cfg.SchedulerName, pluginnames.DefaultPreemption)
}

// countingHandle is the handle through which a dry run calls plugins.
type countingHandle struct{ framework.Framework }

// dryRun has the counts for one evaluation of preemption.
type dryRun struct {
	class *Class
	found *index.Class
	mu    sync.Mutex
	// counts are the counters of all shards together.
	counts *index.Merged
}

// dryRunKey is the key of the counts in the state of a scheduling cycle.
const dryRunKey = fwk.StateKey("k8s-1m.dev/dry-run")

// dryCounts is the change of the counters by pods that were removed from or added to one node.
type dryCounts struct {
	run   *dryRun
	delta []int64
}

// Clone copies the counts for another node.
func (d *dryCounts) Clone() fwk.StateData {
	return &dryCounts{run: d.run, delta: append([]int64(nil), d.delta...)}
}

// countsOf returns the counts in the state of a cycle, or nil.
func countsOf(state fwk.CycleState) *dryCounts {
	data, err := state.Read(dryRunKey)
	if err != nil {
		return nil
	}
	return data.(*dryCounts)
}

// RunPreFilterExtensionRemovePod counts a pod that is removed from a node.
func (h *countingHandle) RunPreFilterExtensionRemovePod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, leaves fwk.PodInfo, info fwk.NodeInfo) *fwk.Status {
	countsOf(state).add(leaves, -1)
	return h.Framework.RunPreFilterExtensionRemovePod(ctx, state, pod, leaves, info)
}

// RunPreFilterExtensionAddPod counts a pod that is added back.
func (h *countingHandle) RunPreFilterExtensionAddPod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, comes fwk.PodInfo, info fwk.NodeInfo) *fwk.Status {
	countsOf(state).add(comes, 1)
	return h.Framework.RunPreFilterExtensionAddPod(ctx, state, pod, comes, info)
}

// RunFilterPluginsWithNominatedPods runs the plugins that read one node, and then checks the
// counters.
func (h *countingHandle) RunFilterPluginsWithNominatedPods(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	if status := h.Framework.RunFilterPluginsWithNominatedPods(ctx, state, pod, info); !status.IsSuccess() {
		return status
	}
	return countsOf(state).admit(info.Node().Name)
}

// add counts a pod that was added or removed.
func (d *dryCounts) add(pod fwk.PodInfo, by int64) {
	if len(d.delta) == 0 {
		return
	}
	if object := pod.GetPod(); object.DeletionTimestamp != nil {
		// Upstream removes terminating pods, which it did not count.
		living := *object
		living.DeletionTimestamp = nil
		pod = cache.WithPod(pod.(*framework.PodInfo), &living)
	}
	d.run.mu.Lock()
	defer d.run.mu.Unlock()
	for _, amount := range d.run.class.Amounts(d.run.class.cluster.Names.Kind(pod)) {
		d.delta[amount.Counter] += by * amount.By
	}
}

// admit checks the counters for a node.
func (d *dryCounts) admit(node string) *fwk.Status {
	if len(d.delta) == 0 {
		return nil
	}
	d.run.mu.Lock()
	defer d.run.mu.Unlock()
	cl := d.run.class
	standing := d.run.found.NodeCounts(cl.cluster.Nodes[node].ID)
	why, counter, refused := d.run.counts.RefusedWith(&standing, d.delta)
	if !refused {
		return nil
	}
	return StatusOf(cl.CounterRefusal(why, counter, 1))
}

// proposeAround proposes victims while nominated pods are counted on their nodes. It evaluates each
// node by itself if the query asks for that.
func (r *Ranker) proposeAround(
	ctx context.Context, query *wire.Query, cl *Class, found *index.Class, pod *v1.Pod, around []index.Nominated, refused map[index.NodeID]*fwk.Status,
) (a *wire.Answer, err error) {
	found.WithNominated(around, func() {
		if query.NodeByNode {
			w := &nodeWalk{ctx: ctx, class: cl, pod: pod, refused: refused}
			for _, id := range w.nodeIDs("") {
				if _, err = w.verdict(id); err != nil {
					return
				}
			}
		}
		a, err = r.propose(ctx, query, cl, found, pod, refused)
	})
	return a, err
}

// propose finds the best node here on which a pod would fit if other pods were evicted.
func (r *Ranker) propose(
	ctx context.Context, query *wire.Query, cl *Class, found *index.Class, pod *v1.Pod, refused map[index.NodeID]*fwk.Status,
) (*wire.Answer, error) {
	if len(query.Counters) != len(cl.Spec.Counters) {
		return nil, errors.New("affinity terms of other pods have changed since they were counted")
	}
	a := &wire.Answer{Values: []string{wire.NoValue, ""}}
	run := &dryRun{class: cl, found: found, counts: cl.mergedCounters(query)}
	potential, own := run.potential(refused, pod.Status.NominatedNodeName)
	evaluator := cl.profile.DryRuns.Evaluator
	if eligible, why := evaluator.PodEligibleToPreemptOthers(ctx, pod, own); !eligible {
		a.Ineligible = why
		return a, nil
	}
	a.Summary.Nodes = r.Cluster.Index.Len()
	if len(potential) == 0 {
		return a, nil
	}
	state := cl.state.Clone()
	state.Write(dryRunKey, &dryCounts{run: run, delta: make([]int64, len(cl.Spec.Counters))})
	budgets, err := cl.profile.Framework.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Lister().List(labels.Everything())
	if err != nil {
		return nil, err
	}
	offset, wanted := evaluator.GetOffsetAndNumCandidates(int32(len(potential)))
	candidates, statuses, err := evaluator.DryRunPreemption(ctx, state, pod, potential, budgets, offset, wanted)
	if err != nil && len(candidates) == 0 {
		return nil, err
	}
	statuses.ForEachExplicitNode(func(_ string, status *fwk.Status) {
		a.AddRefusal(wire.Refusal{Code: int(status.Code()), Plugin: status.Plugin(), Reasons: status.Reasons(), Nodes: 1})
	})
	if best := evaluator.SelectCandidate(ctx, candidates); best != nil {
		candidate := wire.Candidate{Node: best.Name(), Violations: best.Victims().NumPDBViolations}
		for _, victim := range best.Victims().Pods {
			candidate.Victims = append(candidate.Victims, wire.MarshalObject(victim))
		}
		a.Candidates = []wire.Candidate{candidate}
	}
	return a, nil
}

// mergedCounters returns the counters of all shards, with the numbers that are used here.
func (cl *Class) mergedCounters(query *wire.Query) *index.Merged {
	summary := index.Summary{Counters: query.Counters}
	summary.Renumber(func(value int32) int32 { return cl.cluster.Names.ValueNumber(query.Values[value]) }, func(profile int32) int32 { return profile })
	return index.NewMerged(cl.Spec, nil, &summary)
}

// potential returns the nodes where evicting pods may help, and the status of one node.
func (d *dryRun) potential(refused map[index.NodeID]*fwk.Status, name string) (nodes []fwk.NodeInfo, nominatedStatus *fwk.Status) {
	for _, n := range d.class.cluster.Nodes {
		if n.Position < 0 {
			continue
		}
		status := refused[n.ID]
		if number, ok := d.found.RefusalOf(n.ID); status == nil && ok && !d.class.agreed.PerNode {
			status = d.class.refusals[number]
		}
		if status == nil {
			standing := d.found.NodeCounts(n.ID)
			if why, counter, ok := d.counts.RefusedWith(&standing, nil); ok {
				status = StatusOf(d.class.CounterRefusal(why, counter, 1))
			}
		}
		if status.Code() == fwk.Unschedulable {
			nodes = append(nodes, n.Info)
		}
		if n.Info.Node().Name == name {
			nominatedStatus = status
		}
	}
	return nodes, nominatedStatus
}
