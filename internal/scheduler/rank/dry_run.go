package rank

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// NewDryRuns returns another instance of upstream's preemption plugin. Its handle uses the counters of the
// index in place of the plugins that would read all nodes.
func NewDryRuns(ctx context.Context, fw framework.Framework, cfg config.KubeSchedulerProfile) (*defaultpreemption.DefaultPreemption, error) {
	for _, plugin := range cfg.PluginConfig {
		if args, ok := plugin.Args.(*config.DefaultPreemptionArgs); ok {
			return defaultpreemption.New(ctx, args, &countingHandle{fw}, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
		}
	}
	return nil, fmt.Errorf("profile %s has no arguments for plugin %s", cfg.SchedulerName, pluginnames.DefaultPreemption)
}

// countingHandle is the framework handle through which a preemption dry run calls plugins.
type countingHandle struct{ framework.Framework }

// dryRun has the counters for one evaluation of preemption.
type dryRun struct {
	class      *Class
	indexClass *index.Class
	// mu serializes the dry runs of several nodes, which upstream evaluates in parallel.
	mu sync.Mutex
	// counts are the counters summed over all replicas.
	counts *index.Merged
}

// dryRunKey is the key of dryCounts in the cycle state.
const dryRunKey = fwk.StateKey("k8s-1m.dev/dry-run")

// dryCounts are the changes of the counters by the pods that a dry run has removed from or added back to one
// node.
type dryCounts struct {
	run   *dryRun
	delta []int64
}

// Clone returns a copy for the dry run of another node.
func (d *dryCounts) Clone() fwk.StateData {
	return &dryCounts{run: d.run, delta: append([]int64(nil), d.delta...)}
}

// countsOf returns the dryCounts in a cycle state; nil if it has none.
func countsOf(state fwk.CycleState) *dryCounts {
	data, err := state.Read(dryRunKey)
	if err != nil {
		return nil
	}
	return data.(*dryCounts)
}

// RunPreFilterExtensionRemovePod subtracts a pod that the dry run removes from a node.
func (h *countingHandle) RunPreFilterExtensionRemovePod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, removed fwk.PodInfo, info fwk.NodeInfo) *fwk.Status {
	countsOf(state).add(removed, -1)
	return h.Framework.RunPreFilterExtensionRemovePod(ctx, state, pod, removed, info)
}

// RunPreFilterExtensionAddPod adds a pod that the dry run adds back to a node.
func (h *countingHandle) RunPreFilterExtensionAddPod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, added fwk.PodInfo, info fwk.NodeInfo) *fwk.Status {
	countsOf(state).add(added, 1)
	return h.Framework.RunPreFilterExtensionAddPod(ctx, state, pod, added, info)
}

// RunFilterPluginsWithNominatedPods runs the filter plugins that read one node, and checks the counters.
func (h *countingHandle) RunFilterPluginsWithNominatedPods(ctx context.Context, state fwk.CycleState, pod *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	status := h.Framework.RunFilterPluginsWithNominatedPods(ctx, state, pod, info)
	if !status.IsSuccess() && !status.IsRejected() {
		return status
	}
	return countsOf(state).firstStatus(info.Node().Name, status)
}

// add adds a pod to the counters if by is 1, or subtracts it if by is -1.
func (d *dryCounts) add(pod fwk.PodInfo, by int64) {
	if len(d.delta) == 0 {
		return
	}
	if object := pod.GetPod(); object.DeletionTimestamp != nil {
		// Upstream's PreFilter does not count a terminating pod, but the dry run subtracts it like
		// any other pod. To get the same counters, ignore that the pod terminates.
		notTerminating := *object
		notTerminating.DeletionTimestamp = nil
		pod = cache.WithPod(pod.(*framework.PodInfo), &notTerminating)
	}
	d.run.mu.Lock()
	defer d.run.mu.Unlock()
	for _, amount := range d.run.class.Amounts(d.run.class.cluster.Names.Kind(pod)) {
		d.delta[amount.Counter] += by * amount.By
	}
}

// firstStatus returns the status with which upstream rejects a node first: because of other pods, with the changed
// counters, or the given one; nil if the node is not rejected.
func (d *dryCounts) firstStatus(node string, status *fwk.Status) *fwk.Status {
	if len(d.delta) == 0 || status.IsRejected() && !d.run.class.asksCountersBefore(status.Plugin()) {
		return status
	}
	d.run.mu.Lock()
	defer d.run.mu.Unlock()
	return d.run.firstStatus(d.run.class.cluster.Nodes[node].ID, status, d.delta)
}

// proposeAround proposes victims while nominated pods count on their nodes. The answer has the summary of the
// same nodes: if it offers one, no pod needs to be evicted.
func (r *Ranker) proposeAround(
	ctx context.Context, query *wire.Query, a *wire.Answer, cl *Class, indexClass *index.Class, pod *v1.Pod, nominated []index.Nominated, refused map[index.NodeID]*fwk.Status,
) (err error) {
	indexClass.WithNominated(nominated, func() { err = r.propose(ctx, query, a, cl, indexClass, pod, refused) })
	return err
}

// propose adds to an answer the best node of this replica on which a pod would fit if other pods were evicted.
func (r *Ranker) propose(
	ctx context.Context, query *wire.Query, a *wire.Answer, cl *Class, indexClass *index.Class, pod *v1.Pod, refused map[index.NodeID]*fwk.Status,
) error {
	if len(query.Counters) != len(cl.Spec.Counters) {
		return errors.New("the affinity terms of other pods have changed since the query for the counters")
	}
	run := &dryRun{class: cl, indexClass: indexClass, counts: cl.mergedCounters(query)}
	potential, own := run.potential(refused, pod.Status.NominatedNodeName)
	evaluator := cl.profile.DryRuns.Evaluator
	if eligible, reason := evaluator.PodEligibleToPreemptOthers(ctx, pod, own); !eligible {
		a.Ineligible = reason
		return nil
	}
	if len(potential) == 0 {
		return nil
	}
	state := cl.state.Clone()
	state.Write(dryRunKey, &dryCounts{run: run, delta: make([]int64, len(cl.Spec.Counters))})
	budgets, err := cl.profile.Framework.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	offset, wanted := evaluator.GetOffsetAndNumCandidates(int32(len(potential)))
	candidates, statuses, err := evaluator.DryRunPreemption(ctx, state, pod, potential, budgets, offset, wanted)
	if err != nil && len(candidates) == 0 {
		return err
	}
	refusals := a.CopyRefusals()
	statuses.ForEachExplicitNode(func(_ string, status *fwk.Status) { refusals.Add(refusalOf(status, 1)) })
	a.Refusals = refusals.List()
	if best := evaluator.SelectCandidate(ctx, candidates); best != nil {
		candidate := wire.Candidate{Node: best.Name(), Violations: best.Victims().NumPDBViolations}
		for _, victim := range best.Victims().Pods {
			candidate.Victims = append(candidate.Victims, wire.MarshalObject(trimVictim(victim)))
		}
		a.Candidates = []wire.Candidate{candidate}
	}
	return nil
}

// trimVictim returns a pod with those parts of the spec that matter for the choice among candidates and for the eviction.
func trimVictim(pod *v1.Pod) *v1.Pod {
	trimmed := *pod
	trimmed.Spec = v1.PodSpec{
		NodeName: pod.Spec.NodeName, SchedulerName: pod.Spec.SchedulerName,
		Priority: pod.Spec.Priority, PriorityClassName: pod.Spec.PriorityClassName, PreemptionPolicy: pod.Spec.PreemptionPolicy,
	}
	return &trimmed
}

// mergedCounters returns the counters of all replicas from a query, with the value numbers of this replica. It
// leaves the query as it is: in the leader's process, the query is being sent to other replicas.
func (cl *Class) mergedCounters(query *wire.Query) *index.Merged {
	summary := index.Summary{Counters: slices.Clone(query.Counters)}
	for i := range summary.Counters {
		summary.Counters[i].Values = slices.Clone(summary.Counters[i].Values)
	}
	summary.Renumber(func(value int32) int32 { return cl.cluster.Names.ValueNumber(query.Values[value]) }, func(profile int32) int32 { return profile })
	return index.NewMerged(cl.Spec, nil, &summary)
}

// potential returns the nodes on which the pod may fit if other pods are evicted, and the status of the node
// with a name.
func (d *dryRun) potential(refused map[index.NodeID]*fwk.Status, name string) (nodes []fwk.NodeInfo, nominatedStatus *fwk.Status) {
	for _, n := range d.class.cluster.Nodes {
		if n.Position < 0 {
			continue
		}
		status := refused[n.ID]
		if number, ok := d.indexClass.RefusalOf(n.ID); status == nil && ok && !d.class.agreed.PerNode {
			status = d.class.refusals[number]
		}
		if status == nil || d.class.asksCountersBefore(status.Plugin()) {
			status = d.firstStatus(n.ID, status, nil)
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

// firstStatus returns the status with which upstream rejects a node first: because of other pods, or the given
// status; nil if the node is not rejected. more is added to the counters of the node.
func (d *dryRun) firstStatus(id index.NodeID, status *fwk.Status, more []int64) *fwk.Status {
	nodeCounts := d.indexClass.NodeCounts(id)
	if status.IsRejected() {
		refusal := refusalOf(status, 1)
		refusal.Counts = &nodeCounts
		return StatusOf(d.class.FirstRefusal(refusal, d.counts, more))
	}
	if reason, counter, refused := d.counts.RefusedWith(&nodeCounts, more); refused {
		return StatusOf(d.class.CounterRefusal(reason, counter, 1))
	}
	return nil
}
