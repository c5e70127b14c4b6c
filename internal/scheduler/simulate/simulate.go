// Package simulate implements `dist-scheduler simulate`: what would happen if pods were created in a cluster.
package simulate

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterfile"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/offline"
)

// Report is the result of a simulation.
type Report struct {
	Seed uint64 `json:"seed"`
	// Pods are the pods in the order in which they were placed for the first time.
	Pods   []PodResult `json:"pods"`
	Counts Counts      `json:"counts"`
	// Search counts the decisions by what made them.
	Search      Search       `json:"search"`
	Preemptions []Preemption `json:"preemptions"`
	// Resources are the requests in the whole cluster, by resource; Nodes and Zones those on each node that got pods, and in
	// each zone.
	Resources []Usage      `json:"resources"`
	Zones     []ZoneResult `json:"zones"`
	Nodes     []NodeResult `json:"nodes"`
	// Deviations are differences between dist-scheduler and kube-scheduler; none are expected.
	Deviations []string `json:"deviations"`
	Notes      []string `json:"notes,omitempty"`
}

// Counts are numbers of pods by their state at the end.
type Counts struct {
	Placed        int `json:"placed"`
	Unschedulable int `json:"unschedulable"`
	HeldBack      int `json:"heldBack"`
	// Preempted are pods of the simulation that were placed and then evicted, and Evicted pods that ran before.
	Preempted int `json:"preempted"`
	Evicted   int `json:"evicted"`
}

// Search counts decisions.
type Search struct {
	Decisions int `json:"decisions"`
	ByIndex   int `json:"byIndex"`
	// FullScan counts decisions of the full scan by reason.
	FullScan map[string]int `json:"fullScan"`
	// Equal is the number of decisions that kube-scheduler's plugins make too.
	Equal int `json:"equalToKubeScheduler"`
}

// States of a pod at the end.
const (
	Placed        = "placed"
	Unschedulable = "unschedulable"
	HeldBack      = "held back"
	Preempted     = "preempted"
)

// PodResult is what happened to a pod.
type PodResult struct {
	Pod      string `json:"pod"`
	State    string `json:"state"`
	Node     string `json:"node,omitempty"`
	Zone     string `json:"zone,omitempty"`
	Priority int32  `json:"priority"`
	// Ties is the number of nodes with the highest score, from which the seed chose.
	Ties int `json:"ties,omitempty"`
	// Score is the score of the node; nil if only one node fits.
	Score  *int64 `json:"score,omitempty"`
	Reason string `json:"reason,omitempty"`

	pod *v1.Pod
}

// Preemption is an eviction of pods for another one.
type Preemption struct {
	Pod        string   `json:"pod"`
	Node       string   `json:"node"`
	Victims    []string `json:"victims"`
	Violations int64    `json:"disruptionBudgetViolations"`
}

// Orders of the pods.
const (
	ByQueue = "queue"
	ByFile  = "file"
)

// Options are the options of [Run].
type Options struct {
	Objects *clusterfile.Objects
	// Pods are the pods to place; nil places the pending pods of the cluster.
	Pods    []*v1.Pod
	Config  *config.KubeSchedulerConfiguration
	Plugins frameworkruntime.Registry
	// Seed decides between nodes with equal scores.
	Seed uint64
	// Order is ByQueue (by priority, as the scheduling queue) or ByFile.
	Order string
}

// simulation is the state of a run.
type simulation struct {
	Options
	cluster *offline.Cluster
	random  *rand.Rand
	report  *Report
	zones   map[string]string
	// results are the results of the pods of the simulation, by UID.
	results map[types.UID]*PodResult
}

// Run places pods one after the other. Pods that do not fit are tried again after others were placed. Evicted pods end
// at once.
func Run(ctx context.Context, o Options) (*Report, error) {
	pods, err := takePods(&o)
	if err != nil {
		return nil, err
	}
	s := &simulation{
		Options: o, random: rand.New(rand.NewPCG(o.Seed, o.Seed)), zones: map[string]string{}, results: map[types.UID]*PodResult{},
		report: &Report{Seed: o.Seed, Pods: []PodResult{}, Preemptions: []Preemption{}, Deviations: []string{}, Search: Search{FullScan: map[string]int{}}},
	}
	if s.cluster, err = offline.New(ctx, offline.Options{Objects: o.Objects, Config: o.Config, Plugins: o.Plugins}); err != nil {
		return nil, err
	}
	s.report.Notes = append(s.report.Notes, s.cluster.Notes...)
	before, err := s.usage()
	if err != nil {
		return nil, err
	}
	results, err := s.place(ctx, pods)
	if err != nil {
		return nil, err
	}
	after, err := s.usage()
	if err != nil {
		return nil, err
	}
	s.count(results)
	s.report.summarize(before, after)
	return s.report, nil
}

// takePods returns the pods to place, and removes them from the cluster if they are its pending pods.
func takePods(o *Options) ([]*v1.Pod, error) {
	if o.Pods != nil {
		for _, pod := range o.Pods {
			if o.Objects.Pod(pod.Namespace, pod.Name) != nil {
				return nil, fmt.Errorf("pod %s exists in the cluster already; use another name", klog.KObj(pod))
			}
		}
		return o.Pods, nil
	}
	var pending []*v1.Pod
	for _, pod := range o.Objects.Pods() {
		if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && !offline.Terminated(pod) {
			pending = append(pending, pod)
			o.Objects.RemovePod(pod.Namespace, pod.Name)
		}
	}
	if len(pending) == 0 {
		return nil, fmt.Errorf("the cluster has no pending pods; name pods to place with --pods")
	}
	slices.SortStableFunc(pending, func(a, b *v1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return pending, nil
}

// place places the pods: in passes over those that have no node, until a pass places none.
func (s *simulation) place(ctx context.Context, pods []*v1.Pod) ([]*PodResult, error) {
	if s.Order == ByQueue {
		slices.SortStableFunc(pods, func(a, b *v1.Pod) int {
			return cmp.Compare(corev1helpers.PodPriority(b), corev1helpers.PodPriority(a))
		})
	}
	var results, waiting []*PodResult
	for _, pod := range pods {
		result := &PodResult{Pod: klog.KObj(pod).String(), State: Unschedulable, Priority: corev1helpers.PodPriority(pod), pod: pod}
		results = append(results, result)
		if err := s.cluster.Profile(pod); err != nil {
			return nil, err
		}
		if err := s.cluster.AddPod(pod); err != nil {
			return nil, err
		}
		s.results[pod.UID] = result
		if reason := s.cluster.Held(ctx, pod); reason != "" {
			result.State, result.Reason = HeldBack, reason
			continue
		}
		waiting = append(waiting, result)
	}
	for progress := true; progress && len(waiting) > 0; {
		progress = false
		var again []*PodResult
		for _, result := range waiting {
			if err := s.schedule(ctx, result); err != nil {
				return nil, err
			}
			if result.State == Unschedulable {
				again = append(again, result)
			} else {
				progress = true
			}
		}
		waiting = again
	}
	return results, nil
}

// schedule makes a decision about a pod, and places it. If it fits on no node, pods are evicted for it, if that helps.
func (s *simulation) schedule(ctx context.Context, result *PodResult) error {
	decision, err := s.decide(ctx, result)
	if err != nil {
		return result.failed(ctx, err)
	}
	if decision.Err == nil {
		return s.bind(ctx, result, decision)
	}
	result.Reason = decision.Err.Error()
	preemption, err := s.cluster.Preempt(ctx, decision)
	if err != nil {
		return err
	}
	s.deviate(result, preemption.Deviations)
	if preemption.Node == "" {
		return nil
	}
	if err := s.evict(result, preemption); err != nil {
		return err
	}
	if result.pod, err = s.cluster.Nominate(result.pod, preemption.Node); err != nil {
		return err
	}
	if decision, err = s.decide(ctx, result); err != nil {
		return result.failed(ctx, err)
	}
	if decision.Err != nil {
		result.Reason = decision.Err.Error()
		return nil
	}
	return s.bind(ctx, result, decision)
}

// failed records an error of a plugin, which concerns only this pod. Schedulers would try the pod again later. It returns the
// error if the run was interrupted.
func (r *PodResult) failed(ctx context.Context, err error) error {
	r.Reason = "error: " + err.Error()
	return ctx.Err()
}

// decide makes a decision and counts it.
func (s *simulation) decide(ctx context.Context, result *PodResult) (*offline.Decision, error) {
	decision, err := s.cluster.Decide(ctx, result.pod)
	if err != nil {
		return nil, err
	}
	search := &s.report.Search
	search.Decisions++
	if decision.ByIndex {
		search.ByIndex++
	} else {
		search.FullScan[decision.Fallback]++
	}
	if len(decision.Deviations) == 0 {
		search.Equal++
	}
	s.deviate(result, decision.Deviations)
	return decision, nil
}

func (s *simulation) deviate(result *PodResult, deviations []string) {
	for _, deviation := range deviations {
		s.report.Deviations = append(s.report.Deviations, result.Pod+": "+deviation)
	}
}

// bind places a pod on one of the best nodes. dist-scheduler and kube-scheduler choose between them at random; here the seed
// decides.
func (s *simulation) bind(ctx context.Context, result *PodResult, d *offline.Decision) error {
	node := d.Node
	if slices.Contains(d.Stock.Best, node) {
		node = d.Stock.Best[s.random.IntN(len(d.Stock.Best))]
	}
	placed, reason, err := s.cluster.Place(ctx, d, node)
	if err != nil {
		return err
	}
	if reason != "" {
		result.Reason = fmt.Sprintf("no reservation on %s: %s", node, reason)
		return nil
	}
	result.pod, result.State, result.Node, result.Zone, result.Ties, result.Reason = placed, Placed, node, s.zones[node], len(d.Stock.Best), ""
	for _, score := range d.Stock.Feasible {
		if score.Node == node && len(score.Plugins) > 0 {
			total := score.Total
			result.Score = &total
		}
	}
	return nil
}

// evict evicts the victims of a preemption.
func (s *simulation) evict(result *PodResult, p *offline.Preemption) error {
	entry := Preemption{Pod: result.Pod, Node: p.Node, Violations: p.Violations}
	for _, victim := range p.Victims {
		if err := s.cluster.Evict(victim); err != nil {
			return err
		}
		name := klog.KObj(victim).String()
		entry.Victims = append(entry.Victims, name)
		if own := s.results[victim.UID]; own != nil {
			own.State, own.Reason = Preempted, fmt.Sprintf("evicted from %s for %s", p.Node, result.Pod)
		} else {
			s.report.Counts.Evicted++
		}
	}
	slices.Sort(entry.Victims)
	s.report.Preemptions = append(s.report.Preemptions, entry)
	return nil
}

// count adds the results to the report.
func (s *simulation) count(results []*PodResult) {
	for _, result := range results {
		s.report.Pods = append(s.report.Pods, *result)
		switch result.State {
		case Placed:
			s.report.Counts.Placed++
		case Unschedulable:
			s.report.Counts.Unschedulable++
		case HeldBack:
			s.report.Counts.HeldBack++
		case Preempted:
			s.report.Counts.Preempted++
		}
	}
}

// usage returns what is requested on each node now.
func (s *simulation) usage() (map[string]*nodeUsage, error) {
	nodes, err := s.cluster.Nodes(offline.DefaultProfile(s.Config))
	if err != nil {
		return nil, err
	}
	all := map[string]*nodeUsage{}
	for _, info := range nodes {
		node := info.Node()
		s.zones[node.Name] = node.Labels[v1.LabelTopologyZone]
		all[node.Name] = newNodeUsage(info, s.zones[node.Name])
	}
	return all, nil
}

// newNodeUsage copies the sums of a node.
func newNodeUsage(info fwk.NodeInfo, zone string) *nodeUsage {
	u := &nodeUsage{zone: zone, requested: map[string]int64{}, allocatable: map[string]int64{}}
	allocatable, requested := info.GetAllocatable().(*framework.Resource), info.GetRequested().(*framework.Resource)
	set := func(into map[string]int64, r *framework.Resource) {
		into[string(v1.ResourceCPU)], into[string(v1.ResourceMemory)] = r.MilliCPU, r.Memory
		into[string(v1.ResourceEphemeralStorage)] = r.EphemeralStorage
		for name, amount := range r.ScalarResources {
			into[string(name)] = amount
		}
	}
	set(u.allocatable, allocatable)
	set(u.requested, requested)
	u.allocatable[string(v1.ResourcePods)] = int64(allocatable.AllowedPodNumber)
	u.requested[string(v1.ResourcePods)] = int64(len(info.GetPods()))
	return u
}

// names returns the names of the resources of a usage, sorted; CPU, memory and pods come first.
func names(resources map[string]bool) []string {
	order := []string{string(v1.ResourceCPU), string(v1.ResourceMemory), string(v1.ResourcePods)}
	var list []string
	for name := range resources {
		list = append(list, name)
	}
	slices.SortFunc(list, func(a, b string) int {
		rank := func(name string) int {
			if at := slices.Index(order, name); at >= 0 {
				return at
			}
			return len(order)
		}
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a, b))
	})
	return list
}
