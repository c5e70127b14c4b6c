package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
)

// Decision is a decision of both schedulers about a pod.
type Decision struct {
	Pod *v1.Pod
	// ByIndex is true if the index of dist-scheduler found the node. Otherwise upstream's search did, and Fallback is
	// the reason.
	ByIndex  bool
	Fallback string
	// Node is the node that dist-scheduler chose, and Feasible how many nodes it found to fit. Err is its error if no
	// node fits.
	Node     string
	Feasible int
	Err      error
	// Stock is the decision of kube-scheduler's plugins about all nodes.
	Stock Evaluation
	// Deviations are differences between the two; none are expected.
	Deviations []string
	// ScoresCompared is true if the total score of each node was compared with that of the index.
	ScoresCompared bool

	states map[*side]fwk.CycleState
}

// Evaluation is what kube-scheduler's plugins say about all nodes.
type Evaluation struct {
	// Feasible are the nodes that fit, sorted by score, then by name.
	Feasible []NodeScore
	// Best are the names of the nodes with the highest score, sorted. Each of them is a correct choice.
	Best []string
	// FitError has the reasons for the nodes that do not fit.
	FitError *framework.FitError
}

// NodeScore is a node that fits, with its scores. If only one node fits, kube-scheduler computes no scores.
type NodeScore struct {
	Node    string        `json:"node"`
	Total   int64         `json:"total"`
	Plugins []PluginScore `json:"plugins,omitempty"`
}

// PluginScore is the score of one plugin for a node.
type PluginScore struct {
	Plugin string `json:"plugin"`
	// Raw is the result of the plugin. Normalized is from 0 to 100. The total is the sum of Normalized times Weight.
	Raw        int64 `json:"raw"`
	Normalized int64 `json:"normalized"`
	Weight     int64 `json:"weight"`
}

// Decide finds a node for a pod with both schedulers, and compares their decisions. The pod must be in the cluster, without
// a node.
func (c *Cluster) Decide(ctx context.Context, pod *v1.Pod) (*Decision, error) {
	if err := c.Profile(pod); err != nil {
		return nil, err
	}
	d := &Decision{Pod: pod, states: map[*side]fwk.CycleState{}}
	for _, s := range c.sides() {
		if err := s.refresh(pod.Spec.SchedulerName); err != nil {
			return nil, err
		}
		d.states[s] = framework.NewCycleState()
	}
	if err := c.evaluate(ctx, d); err != nil {
		return nil, err
	}
	if err := c.search(ctx, d); err != nil {
		return nil, err
	}
	c.compare(ctx, d)
	return d, nil
}

// evaluate runs kube-scheduler's plugins on all nodes.
func (c *Cluster) evaluate(ctx context.Context, d *Decision) error {
	fw, state := c.stock.framework(d.Pod.Spec.SchedulerName), d.states[c.stock]
	nodes, err := c.stock.snapshot(d.Pod.Spec.SchedulerName).NodeInfos().List()
	if err != nil {
		return err
	}
	feasible, refused, err := reference.Filter(ctx, fw, state, d.Pod, nodes)
	if err != nil {
		return fmt.Errorf("filtering nodes: %w", err)
	}
	d.Stock.FitError = refused
	for _, node := range feasible {
		d.Stock.Feasible = append(d.Stock.Feasible, NodeScore{Node: node.Node().Name})
	}
	if len(feasible) > 1 {
		scores, err := reference.Score(ctx, fw, state, d.Pod, feasible)
		if err != nil {
			return fmt.Errorf("scoring nodes: %w", err)
		}
		weights := map[string]int64{}
		for _, plugin := range fw.ListPlugins().Score.Enabled {
			weights[plugin.Name] = int64(plugin.Weight)
		}
		for i := range scores {
			d.Stock.Feasible[i] = nodeScore(&scores[i], weights)
		}
	}
	slices.SortFunc(d.Stock.Feasible, func(a, b NodeScore) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), strings.Compare(a.Node, b.Node))
	})
	for _, node := range d.Stock.Feasible {
		if node.Total == d.Stock.Feasible[0].Total {
			d.Stock.Best = append(d.Stock.Best, node.Node)
		}
	}
	return nil
}

// nodeScore converts the scores of upstream's framework, which are multiplied by the weights.
func nodeScore(scores *fwk.NodePluginScores, weights map[string]int64) NodeScore {
	node := NodeScore{Node: scores.Name, Total: scores.TotalScore}
	raw := map[string]int64{}
	for _, score := range scores.RawScores {
		raw[score.Name] = score.Score
	}
	for _, score := range scores.Scores {
		weight := max(1, weights[score.Name])
		node.Plugins = append(node.Plugins, PluginScore{score.Name, raw[score.Name], score.Score / weight, weight})
	}
	slices.SortFunc(node.Plugins, func(a, b PluginScore) int { return strings.Compare(a.Plugin, b.Plugin) })
	return node
}

// search finds the node as dist-scheduler does.
func (c *Cluster) search(ctx context.Context, d *Decision) error {
	info, _ := framework.NewPodInfo(d.Pod)
	fallbacks := c.parts.Ranker.FallbackCount
	result, err := c.indexed.sched.SchedulePod(ctx, c.indexed.framework(d.Pod.Spec.SchedulerName), d.states[c.indexed], &framework.QueuedPodInfo{PodInfo: info})
	d.ByIndex = c.parts.Ranker.FallbackCount == fallbacks
	if !d.ByIndex {
		d.Fallback = string(c.parts.Ranker.LastFallback)
	}
	d.Node, d.Feasible, d.Err = result.SuggestedHost, result.FeasibleNodes, err
	var unfit *framework.FitError
	if err != nil && !errors.As(err, &unfit) && !errors.Is(err, kubescheduler.ErrNoNodesAvailable) {
		return fmt.Errorf("scheduling pod %s/%s: %w", d.Pod.Namespace, d.Pod.Name, err)
	}
	return nil
}

// compare adds the differences between the two decisions.
func (c *Cluster) compare(ctx context.Context, d *Decision) {
	deviation := func(format string, args ...any) { d.Deviations = append(d.Deviations, fmt.Sprintf(format, args...)) }
	want := len(d.Stock.Feasible)
	switch {
	case d.Err != nil && want > 0:
		deviation("dist-scheduler finds no node (%v), kube-scheduler %s", d.Err, abbreviate(d.Stock.Best))
	case d.Err != nil:
		if d.Stock.FitError != nil && d.Err.Error() != d.Stock.FitError.Error() && !errors.Is(d.Err, kubescheduler.ErrNoNodesAvailable) {
			deviation("dist-scheduler's reasons are %q, kube-scheduler's %q", d.Err, d.Stock.FitError)
		}
	case want == 0:
		deviation("dist-scheduler chooses %s, kube-scheduler finds no node: %v", d.Node, d.Stock.FitError)
	case !slices.Contains(d.Stock.Best, d.Node):
		deviation("dist-scheduler chooses %s, kube-scheduler %s", d.Node, abbreviate(d.Stock.Best))
	case d.Feasible < 1, d.Feasible > want, d.Feasible < want && c.modelled(d.Pod):
		deviation("dist-scheduler finds that %d nodes fit, kube-scheduler %d", d.Feasible, want)
	}
	if d.Err == nil && d.ByIndex && want > 1 && c.modelled(d.Pod) {
		c.compareScores(ctx, d, deviation)
	}
}

// modelled returns whether the index knows all filters and scores of a pod. It then knows for each node whether it fits, and
// its score.
func (c *Cluster) modelled(pod *v1.Pod) bool {
	return c.parts.Ranker.Unrankable(c.parts.Ranker.Profiles[pod.Spec.SchedulerName], pod) == ""
}

// compareScores compares the total score of each node in the index with that of kube-scheduler's plugins. The scores of
// the index are those without nominated pods.
func (c *Cluster) compareScores(ctx context.Context, d *Decision, deviation func(string, ...any)) {
	if len(c.parts.Ranker.Nominations.ByNode()) > 0 {
		return
	}
	info, _ := framework.NewPodInfo(d.Pod)
	class, _, err := c.parts.Ranker.Class(ctx, c.parts.Ranker.Profiles[d.Pod.Spec.SchedulerName], info, nil)
	if err != nil {
		deviation("the index has no scores: %v", err)
		return
	}
	d.ScoresCompared = true
	got := map[string]int64{}
	for id, score := range class.Scores() {
		got[c.parts.Ranker.Cluster.ByID[id].Info.Node().Name] = score
	}
	for _, node := range d.Stock.Feasible {
		if score, fits := got[node.Node]; !fits {
			deviation("the index rejects %s, kube-scheduler does not", node.Node)
		} else if score != node.Total {
			deviation("the index gives %s the score %d, kube-scheduler %d", node.Node, score, node.Total)
		}
		delete(got, node.Node)
	}
	if len(got) > 0 {
		deviation("the index accepts %s, kube-scheduler does not", abbreviate(slices.Sorted(maps.Keys(got))))
	}
}

// Rejections returns for each filter plugin why it rejects a node for the pod of a decision: all of them, not only the
// first one, at which kube-scheduler stops. It returns none if the node fits.
func (c *Cluster) Rejections(ctx context.Context, d *Decision, node string) ([]*fwk.Status, error) {
	fw := c.stock.framework(d.Pod.Spec.SchedulerName)
	info, err := c.stock.snapshot(d.Pod.Spec.SchedulerName).NodeInfos().Get(node)
	if err != nil {
		return nil, err
	}
	state := framework.NewCycleState()
	only, status, plugins := fw.RunPreFilterPlugins(ctx, state, d.Pod)
	if !status.IsSuccess() {
		return []*fwk.Status{status}, nil
	}
	var all []*fwk.Status
	if !only.AllNodes() && !only.NodeNames.Has(node) {
		names := slices.Sorted(maps.Keys(plugins))
		all = append(all, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", names)).WithPlugin(strings.Join(names, ",")))
	}
	for {
		status := fw.RunFilterPluginsWithNominatedPods(ctx, state, d.Pod, info)
		if status.IsSuccess() {
			return all, nil
		}
		skip := sets.New(state.GetSkipFilterPlugins().UnsortedList()...)
		if !status.IsRejected() || skip.Has(status.Plugin()) {
			return append(all, status), nil
		}
		all = append(all, status)
		state.SetSkipFilterPlugins(skip.Insert(status.Plugin()))
	}
}
