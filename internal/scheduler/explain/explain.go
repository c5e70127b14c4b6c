// Package explain implements `dist-scheduler explain`: why a pod is placed on a node, and why not on another one.
package explain

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterfile"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/offline"
)

// Explanation is why a pod is placed on a node.
type Explanation struct {
	Pod       string `json:"pod"`
	Scheduler string `json:"scheduler"`
	// BoundTo is the node that the pod is bound to. It is explained as if it were not.
	BoundTo string `json:"boundTo,omitempty"`
	// HeldBack is why the scheduling queue holds the pod back, such as a scheduling gate. It is explained as if it were not.
	HeldBack string `json:"heldBack,omitempty"`
	// Search is "index" or "full scan", and FullScanReason why it is the latter.
	Search         string `json:"search"`
	FullScanReason string `json:"fullScanReason,omitempty"`
	// NominatedTo is the node to which preemption has nominated the pod. It is tried first.
	NominatedTo string `json:"nominatedTo,omitempty"`
	// ChosenNode is the first of BestNodes, of which schedulers choose one at random. It is "" if no node fits.
	ChosenNode string   `json:"chosenNode,omitempty"`
	BestNodes  []string `json:"bestNodes"`
	// Nodes is the number of all nodes, and Fitting that of the nodes that fit.
	Nodes   int `json:"nodes"`
	Fitting int `json:"fitting"`
	// Message is what the pod's condition says if no node fits.
	Message    string                `json:"message,omitempty"`
	Rejections []Rejection           `json:"rejections,omitempty"`
	Scores     []offline.NodeScore   `json:"scores,omitempty"`
	Preemption *PreemptionSuggestion `json:"preemption,omitempty"`
	// Node is the answer for the node of --node.
	Node *NodeAnswer `json:"node,omitempty"`
	// ScoresCompared is true if the total scores of the index were compared with those of the plugins.
	ScoresCompared bool     `json:"scoresCompared"`
	Deviations     []string `json:"deviations"`
	Notes          []string `json:"notes,omitempty"`
}

// Rejection is a reason for which nodes do not fit.
type Rejection struct {
	Plugin string   `json:"plugin"`
	Reason string   `json:"reason"`
	Count  int      `json:"count"`
	Nodes  []string `json:"nodes"`
	// Resolvable is true if evicting pods could help.
	Resolvable bool `json:"resolvableByPreemption"`
}

// PreemptionSuggestion is what preemption would do for a pod that fits on no node.
type PreemptionSuggestion struct {
	Node       string   `json:"node,omitempty"`
	Victims    []string `json:"victims,omitempty"`
	Candidates int      `json:"candidates"`
	Violations int64    `json:"disruptionBudgetViolations"`
	Reason     string   `json:"reason,omitempty"`
}

// NodeAnswer is why a node was chosen or not.
type NodeAnswer struct {
	Name string `json:"name"`
	// Verdict is one of the constants below.
	Verdict string `json:"verdict"`
	// Rejections are the reasons of all plugins that reject the node.
	Rejections []PluginRejection `json:"rejections,omitempty"`
	// Score is the score of the node, Behind how far it is behind the best, and Differences by which plugins.
	Score       *offline.NodeScore `json:"score,omitempty"`
	Behind      int64              `json:"behind"`
	Differences []Difference       `json:"differences,omitempty"`
	BestNode    string             `json:"bestNode,omitempty"`
}

// Verdicts about a node.
const (
	Chosen   = "has the highest score"
	Tied     = "has the highest score too; one of these nodes is chosen at random"
	Outdone  = "fits, but other nodes have a higher score"
	Rejected = "does not fit"
)

// PluginRejection is why a plugin rejects a node.
type PluginRejection struct {
	Plugin  string   `json:"plugin"`
	Reasons []string `json:"reasons"`
}

// Difference is by how much the best node is ahead according to one plugin, times its weight.
type Difference struct {
	Plugin string `json:"plugin"`
	Points int64  `json:"points"`
}

// Options are the options of [Explain].
type Options struct {
	// Pod is the name of a pod of the cluster, as NAMESPACE/NAME or NAME, or a file with one pod; "-" is standard input.
	Pod string
	// Node is the node to explain; "" explains the choice.
	Node    string
	Objects *clusterfile.Objects
	Config  *config.KubeSchedulerConfiguration
	Plugins frameworkruntime.Registry
	Stdin   io.Reader
}

// Explain explains where a pod would be placed.
func Explain(ctx context.Context, o Options) (*Explanation, error) {
	pod, e, err := findPod(o)
	if err != nil {
		return nil, err
	}
	cluster, err := offline.New(ctx, offline.Options{Objects: o.Objects, Config: o.Config, Plugins: o.Plugins})
	if err != nil {
		return nil, err
	}
	e.Notes = append(e.Notes, cluster.Notes...)
	if err := cluster.AddPod(pod); err != nil {
		return nil, err
	}
	if err := cluster.Profile(pod); err != nil {
		return nil, err
	}
	e.HeldBack = cluster.Held(ctx, pod)
	decision, err := cluster.Decide(ctx, pod)
	if err != nil {
		return nil, err
	}
	nodes, err := cluster.Nodes(pod.Spec.SchedulerName)
	if err != nil {
		return nil, err
	}
	e.describe(decision, nodes)
	if decision.Err != nil {
		if err := e.suggest(ctx, cluster, decision); err != nil {
			return nil, err
		}
	}
	if o.Node != "" {
		return e, e.answer(ctx, cluster, decision, nodes, o.Node)
	}
	return e, nil
}

// findPod returns the pod to explain, as if it were not scheduled, and removes it from the cluster.
func findPod(o Options) (*v1.Pod, *Explanation, error) {
	e := &Explanation{BestNodes: []string{}, Deviations: []string{}}
	pod, err := fromCluster(o)
	if err != nil {
		return nil, nil, err
	}
	if pod == nil {
		loaded, err := clusterfile.LoadPods(o.Pod, o.Stdin, o.Objects)
		if err != nil {
			return nil, nil, err
		}
		pod = loaded.List[0]
		e.Notes = loaded.Notes
		if len(loaded.List) > 1 {
			e.Notes = append(e.Notes, fmt.Sprintf("%s has %d pods; the first one is explained", o.Pod, len(loaded.List)))
		}
		if known := o.Objects.Pod(pod.Namespace, pod.Name); known != nil {
			e.BoundTo = known.Spec.NodeName
		}
	} else {
		e.BoundTo = pod.Spec.NodeName
		if e.BoundTo == "" {
			e.NominatedTo = pod.Status.NominatedNodeName
		}
		pod = pod.DeepCopy()
		clusterfile.Unbind(pod)
		pod.Status.NominatedNodeName = e.NominatedTo
	}
	o.Objects.RemovePod(pod.Namespace, pod.Name)
	e.Pod, e.Scheduler = klog.KObj(pod).String(), pod.Spec.SchedulerName
	return pod, e, nil
}

// fromCluster returns the pod of the cluster with the given name; nil if the name is that of a file.
func fromCluster(o Options) (*v1.Pod, error) {
	if o.Pod == clusterfile.Stdin || clusterfile.Exists(o.Pod) {
		return nil, nil
	}
	namespace, name, found := strings.Cut(o.Pod, "/")
	if !found {
		namespace, name = metav1.NamespaceDefault, o.Pod
	}
	if pod := o.Objects.Pod(namespace, name); pod != nil {
		return pod, nil
	}
	return nil, fmt.Errorf("--pod %s: there is no such file, and no pod %s in the cluster", o.Pod, klog.KRef(namespace, name))
}

// describe fills in what the decision says.
func (e *Explanation) describe(d *offline.Decision, nodes []fwk.NodeInfo) {
	e.Search = "index"
	if !d.ByIndex {
		e.Search, e.FullScanReason = "full scan", d.Fallback
	}
	e.Nodes, e.Fitting, e.ChosenNode = len(nodes), len(d.Stock.Feasible), d.Node
	if len(d.Stock.Best) > 0 {
		e.BestNodes, e.Scores = d.Stock.Best, d.Stock.Feasible
	}
	if slices.Contains(e.BestNodes, d.Node) {
		// Which of them it is depends on chance; the output should not.
		e.ChosenNode = e.BestNodes[0]
	}
	e.ScoresCompared = d.ScoresCompared
	e.Deviations = append(e.Deviations, d.Deviations...)
	if d.Err != nil {
		e.Message = d.Err.Error()
	}
	e.Rejections = rejections(d, nodes)
}

// rejections groups the nodes that do not fit by reason, the most frequent first.
func rejections(d *offline.Decision, nodes []fwk.NodeInfo) []Rejection {
	if d.Stock.FitError == nil {
		return nil
	}
	fits := map[string]bool{}
	for _, node := range d.Stock.Feasible {
		fits[node.Node] = true
	}
	groups := map[string]*Rejection{}
	for _, info := range nodes {
		name := info.Node().Name
		if fits[name] {
			continue
		}
		status := d.Stock.FitError.Diagnosis.NodeToStatus.Get(name)
		reasons := slices.Sorted(slices.Values(status.Reasons()))
		key := status.Plugin() + "\x00" + strings.Join(reasons, "\x00")
		if groups[key] == nil {
			groups[key] = &Rejection{Plugin: status.Plugin(), Reason: strings.Join(reasons, ", "), Resolvable: status.Code() == fwk.Unschedulable}
		}
		groups[key].Count++
		groups[key].Nodes = append(groups[key].Nodes, name)
	}
	var list []Rejection
	for _, group := range groups {
		list = append(list, *group)
	}
	slices.SortFunc(list, func(a, b Rejection) int {
		if a.Count != b.Count {
			return b.Count - a.Count
		}
		return strings.Compare(a.Plugin+a.Reason, b.Plugin+b.Reason)
	})
	return list
}

// suggest adds what preemption would do.
func (e *Explanation) suggest(ctx context.Context, cluster *offline.Cluster, d *offline.Decision) error {
	found, err := cluster.Preempt(ctx, d)
	if err != nil {
		return err
	}
	e.Preemption = &PreemptionSuggestion{Node: found.Node, Candidates: found.Candidates, Violations: found.Violations, Reason: found.Reason}
	for _, victim := range found.Victims {
		e.Preemption.Victims = append(e.Preemption.Victims, klog.KObj(victim).String())
	}
	slices.Sort(e.Preemption.Victims)
	e.Deviations = append(e.Deviations, found.Deviations...)
	return nil
}

// answer adds why a node was chosen or not.
func (e *Explanation) answer(ctx context.Context, cluster *offline.Cluster, d *offline.Decision, nodes []fwk.NodeInfo, name string) error {
	if !slices.ContainsFunc(nodes, func(info fwk.NodeInfo) bool { return info.Node().Name == name }) {
		return fmt.Errorf("--node %s: the cluster has no such node", name)
	}
	e.Node = &NodeAnswer{Name: name, Verdict: Rejected}
	at := slices.IndexFunc(d.Stock.Feasible, func(node offline.NodeScore) bool { return node.Node == name })
	if at < 0 {
		statuses, err := cluster.Rejections(ctx, d, name)
		if err != nil {
			return err
		}
		for _, status := range statuses {
			e.Node.Rejections = append(e.Node.Rejections, PluginRejection{status.Plugin(), status.Reasons()})
		}
		return nil
	}
	best, own := d.Stock.Feasible[0], d.Stock.Feasible[at]
	e.Node.Score, e.Node.Behind, e.Node.BestNode = &own, best.Total-own.Total, best.Node
	switch {
	case e.Node.Behind > 0:
		e.Node.Verdict = Outdone
	case len(d.Stock.Best) > 1:
		e.Node.Verdict = Tied
	default:
		e.Node.Verdict = Chosen
	}
	for i, plugin := range own.Plugins {
		if points := (best.Plugins[i].Normalized - plugin.Normalized) * plugin.Weight; points != 0 {
			e.Node.Differences = append(e.Node.Differences, Difference{plugin.Plugin, points})
		}
	}
	return nil
}
