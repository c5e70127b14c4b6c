package rank

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
)

// asker asks those filters about nodes that the class of a pod does not contain: filters for volumes and resource claims, and
// out-of-tree filters. It uses the cycle state of the pod, where these plugins leave what they need to bind the pod.
type asker struct {
	profile *Profile
	state   fwk.CycleState
	pod     *v1.Pod
	// plugins are the filters that are asked, and others are all other filters. skipped are those that PreFilter has skipped.
	plugins, others, skipped sets.Set[string]
	// only are the names of the nodes to which PreFilter plugins restrict the pod; nil for all nodes.
	only  sets.Set[string]
	needs needs
	// asks is the number of nodes asked about.
	asks int
}

// newAsker runs PreFilter for a pod. It returns [ReasonRejected] if the pod is rejected; the full scan then runs PreFilter
// again and reports why.
func (r *Ranker) newAsker(ctx context.Context, p *Profile, state fwk.CycleState, pod *v1.Pod) (*asker, error) {
	a := &asker{profile: p, state: state, pod: pod}
	run := func(f func()) { r.Cluster.Snapshot.HideNodes(true, f) }
	if p.foreignPreFilter {
		// An out-of-tree plugin may read nodes in PreFilter. Upstream's plugins read them all then, too.
		run = func(f func()) { f() }
	}
	var status *fwk.Status
	run(func() {
		var only *fwk.PreFilterResult
		if only, status, _ = p.Framework.RunPreFilterPlugins(ctx, state, pod); !only.AllNodes() {
			a.only = only.NodeNames
		}
	})
	if !status.IsSuccess() {
		return nil, ReasonRejected
	}
	a.skipped = state.GetSkipFilterPlugins()
	a.plugins = p.filters.Difference(nodeLocalPlugins).Difference(IndexPlugins).Difference(a.skipped)
	a.others = p.filters.Difference(a.plugins)
	return a, r.findNeeds(a)
}

// findNeeds sets what the volumes and claims of the pod require.
func (r *Ranker) findNeeds(a *asker) error {
	a.needs.sure = r.storage != nil && len(a.plugins.Intersection(a.profile.foreign)) == 0 && !a.plugins.Has(pluginnames.VolumeRestrictions)
	if a.plugins.Has(pluginnames.VolumeBinding) && r.storage != nil {
		claims, err := readClaims(a.state)
		if err != nil {
			return err
		}
		a.needs.addVolumes(r.storage, r.Cluster, a.pod, claims, a.plugins)
	} else if len(a.plugins.Difference(a.profile.foreign)) > 0 {
		a.needs.sure = false
	}
	if a.plugins.Has(pluginnames.DynamicResources) {
		var counted *devices
		if r.storage != nil {
			counted = r.storage.devices
		}
		return a.needs.addDevices(counted, a.profile.Framework, a.pod)
	}
	return nil
}

// conditions returns what the volumes of the pod require.
func (a *asker) conditions() *conditions {
	if a == nil {
		return &conditions{}
	}
	return &a.needs.conditions
}

// ask returns whether the filters accept a node, with and without the pods that are nominated to it.
func (a *asker) ask(ctx context.Context, n *cache.Node) (bool, error) {
	a.asks++
	a.state.SetSkipFilterPlugins(a.others)
	defer a.state.SetSkipFilterPlugins(a.skipped)
	status := a.profile.Framework.RunFilterPluginsWithNominatedPods(ctx, a.state, a.pod, n.Info)
	if status.IsSuccess() || status.IsRejected() {
		return status.IsSuccess(), nil
	}
	return false, status.AsError()
}

// nodes returns the names and hostnames of the only nodes on which the pod may run; nil if there is no such list.
func (a *asker) nodes() sets.Set[string] {
	all := []sets.Set[string]{a.only, a.needs.nodes}
	if names, named := namedByPod(&a.pod.Spec); named {
		all = append(all, names)
	}
	var fewest sets.Set[string]
	for _, names := range all {
		if names != nil && (fewest == nil || len(names) < len(fewest)) {
			fewest = names
		}
	}
	return fewest
}

// mostCandidates is the largest number of nodes that are evaluated one by one because of labels. Upstream's full scan runs on all
// cores, so it is faster with more.
const mostCandidates = 1000

// rankAsking finds the node for a pod with volumes, claims, named nodes or out-of-tree filters. reason is why the index alone
// cannot find it.
func (r *Ranker) rankAsking(ctx context.Context, p *Profile, state fwk.CycleState, pod *framework.PodInfo, reason FallbackReason) (kubescheduler.ScheduleResult, error) {
	none := kubescheduler.ScheduleResult{}
	switch {
	case p == nil || p.unknown != "" && len(p.foreign) == 0, p.requestsDevices(&pod.Pod.Spec):
		return none, reason
	case r.extenderInterested(pod.Pod):
		return none, reasonExtender
	}
	a, err := r.newAsker(ctx, p, state, pod.Pod)
	if err != nil {
		return none, err
	}
	d := decision{Ranker: r, profile: p, state: state, pod: pod, prefiltered: true}
	names, foreign := a.nodes(), a.plugins.HasAny(p.foreign.UnsortedList()...)
	switch {
	case a.needs.unfit:
		return none, reasonUnschedulable
	case names != nil && !foreign:
		return d.amongFew(ctx, candidates(r.Cluster, names))
	case len(a.needs.perNode) > 0:
		if foreign {
			return none, ReasonNamedNodes
		}
		nodes := admitted(r.Cluster, a.needs.perNode)
		if len(nodes) > mostCandidates {
			return none, ReasonNamedNodes
		}
		return d.amongFew(ctx, nodes)
	case names != nil || NamesNodes(&pod.Pod.Spec) || p.addedAffinity.namesNodes:
		return none, ReasonNamedNodes
	case a.needs.scores:
		return none, reasonScores
	case len(a.plugins) == 0:
		// The volumes of the pod do not restrict it.
		return d.byClass(ctx, nil)
	}
	return d.byClass(ctx, a)
}
