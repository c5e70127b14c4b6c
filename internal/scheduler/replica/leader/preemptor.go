package leader

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	schedmetrics "k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/unexported"
)

// Preemptor replaces upstream's preemption plugin in a leader. The owners of nodes run upstream's plugin
// on their nodes and propose victims. The leader chooses among the proposals in upstream's order, and
// upstream's executor evicts the victims.
type Preemptor struct {
	*defaultpreemption.DefaultPreemption
	search  *Search
	profile *rank.Profile
}

// ReplacePreemption replaces upstream's preemption plugin in a profile, if the profile has it.
func ReplacePreemption(ctx context.Context, fw framework.Framework, cfg config.KubeSchedulerProfile, l *Search) (err error) {
	var list *[]fwk.PostFilterPlugin
	if unexported.Field(reflect.ValueOf(fw).Elem(), "postFilterPlugins", &list, &err); err != nil {
		return err
	}
	p := l.Profiles[cfg.SchedulerName]
	for i, plugin := range *list {
		upstream, ok := plugin.(*defaultpreemption.DefaultPreemption)
		if !ok {
			continue
		}
		if err := l.trackVictims(upstream, fw); err != nil {
			return err
		}
		if p.DryRuns, err = rank.NewDryRuns(ctx, fw, cfg); err != nil {
			return err
		}
		(*list)[i] = NewPreemptor(upstream, l, p)
	}
	return nil
}

// trackVictims makes upstream's executor look its victims up in [victims].
func (l *Search) trackVictims(upstream *defaultpreemption.DefaultPreemption, fw framework.Framework) (err error) {
	var lister *corelisters.PodLister
	if unexported.Field(reflect.ValueOf(upstream.Executor).Elem(), "podLister", &lister, &err); err != nil {
		return err
	}
	*lister = l.victims
	attach.WakePreemptors(fw, l.victims.isGone)
	evict := upstream.Executor.PreemptPod
	upstream.Executor.PreemptPod = func(ctx context.Context, c preemption.Candidate, preemptor preemption.ExecutorPreemptor, victim *v1.Pod, plugin string) (bool, error) {
		end := l.victims.begin(victim)
		inMemory, err := evict(ctx, c, preemptor, victim, plugin)
		end(!inMemory && err == nil)
		return inMemory, err
	}
	return nil
}

// NewPreemptor returns a preemptor that wraps upstream's plugin.
func NewPreemptor(upstream *defaultpreemption.DefaultPreemption, l *Search, p *rank.Profile) *Preemptor {
	return &Preemptor{DefaultPreemption: upstream, search: l, profile: p}
}

// PostFilter evicts other pods for a pod that fits on no node, if it then fits.
func (p *Preemptor) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	defer schedmetrics.PreemptionAttempts.Inc()
	result, status := p.preemptRescued(ctx, state, pod)
	if message := status.Message(); message != "" {
		return result, fwk.NewStatus(status.Code(), "preemption: "+message)
	}
	return result, status
}

// preemptRescued is preempt. A panic is an error of this pod only.
func (p *Preemptor) preemptRescued(ctx context.Context, state fwk.CycleState, pod *v1.Pod) (result *fwk.PostFilterResult, status *fwk.Status) {
	var err error
	func() {
		defer p.search.Rescue(ctx, pod, &err)
		result, status = p.preempt(ctx, state, pod)
	}()
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	return result, status
}

func (p *Preemptor) preempt(ctx context.Context, state fwk.CycleState, pod *v1.Pod) (*fwk.PostFilterResult, *fwk.Status) {
	if reason := p.neverPreempts(ctx, pod); reason != "" {
		return nil, fwk.NewStatus(fwk.Unschedulable, reason)
	}
	best, answer, err := p.BestCandidate(ctx, pod)
	switch {
	case errors.Is(err, errFitsNow):
		// The event that made the node fit may have arrived before this cycle, so retry the pod.
		p.profile.Framework.Activate(klog.FromContext(ctx), map[string]*v1.Pod{klog.KObj(pod).String(): pod})
		return nil, fwk.NewStatus(fwk.Unschedulable, err.Error())
	case errors.Is(err, core.ErrIncomplete), errors.Is(err, core.ErrNoAnswer):
		// No event retries the pod: the filters have rejected it, and nothing has changed since.
		p.search.owners.RetryWhenAllAnswer(pod)
		return nil, fwk.AsStatus(err)
	case err != nil:
		return nil, fwk.AsStatus(err)
	case answer.Ineligible != "":
		return nil, fwk.NewStatus(fwk.Unschedulable, answer.Ineligible)
	case best == nil:
		return framework.NewPostFilterResultWithNominatedNode(""), fwk.NewStatus(fwk.Unschedulable, preemptionFitError(pod, answer).Error())
	}
	if unsettled := p.unsettled(best); len(unsettled) > 0 {
		p.profile.Framework.Activate(klog.FromContext(ctx), unsettled)
		p.search.owners.RetryWhenAllAnswer(pod)
		return nil, fwk.NewStatus(fwk.Unschedulable, "waiting for pods on node "+best.Name()+" that an earlier leader has placed and not bound")
	}
	return p.evictVictims(ctx, state, pod, best)
}

// neverPreempts returns the reason for which a pod must not evict others because of its policy; "" if it may.
func (p *Preemptor) neverPreempts(ctx context.Context, pod *v1.Pod) (reason string) {
	if policy := pod.Spec.PreemptionPolicy; policy == nil || *policy != v1.PreemptNever {
		return ""
	}
	_, reason = p.Evaluator.PodEligibleToPreemptOthers(ctx, pod, nil)
	return reason
}

// unsettled returns the victims that are pending, because an earlier leader has reserved capacity for them. They are
// scheduled before the preempting pod is retried. An eviction would delete a pod that was never bound.
func (p *Preemptor) unsettled(best preemption.Candidate) map[string]*v1.Pod {
	pods := map[string]*v1.Pod{}
	for _, victim := range best.Victims().Pods {
		if p.search.owners.IsUnsettled(victim.UID) {
			pods[klog.KObj(victim).String()] = victim
		}
	}
	return pods
}

// errFitsNow means that a pod fits on a node without evictions: the node has changed since the pod was found
// unschedulable.
var errFitsNow = errors.New("a node has changed, and the pod fits on it by now")

// BestCandidate returns the best proposal of the owners; nil if evicting pods does not help. It returns
// errFitsNow if the pod fits on a node without evictions, and [core.ErrIncomplete] if an owner has not answered.
func (p *Preemptor) BestCandidate(ctx context.Context, pod *v1.Pod) (preemption.Candidate, *wire.Answer, error) {
	info, _ := framework.NewPodInfo(pod)
	rankable := p.search.Unrankable(p.profile, pod) == ""
	var known *unfit
	if rankable {
		known = p.search.recallUnfit(p.profile, info)
	}
	if known != nil && known.preemption != nil {
		return nil, known.preemption, nil
	}
	best, answer, err := p.propose(ctx, pod, &framework.QueuedPodInfo{PodInfo: info}, rankable)
	if known != nil && best == nil && err == nil && answer.Ineligible == "" {
		known.preemption = answer
	}
	return best, answer, err
}

// propose returns the best proposal of the owners like BestCandidate.
func (p *Preemptor) propose(ctx context.Context, pod *v1.Pod, queued *framework.QueuedPodInfo, rankable bool) (preemption.Candidate, *wire.Answer, error) {
	query := wire.Query{Offers: 1, NodeByNode: !rankable}
	if p.search.rejected.pod == pod.UID {
		query.Exclude = p.search.rejected.names
	}
	counted, err := p.search.query(ctx, p.profile, queued, &query)
	if err == nil && len(counted.answer.InUse) > 0 {
		// An owner knows that a claim is in use only if a pod on its nodes uses it. Without the claims that
		// other owners know, it would offer nodes on which the pod does not fit.
		query.InUse = counted.answer.InUse
		counted, err = p.search.query(ctx, p.profile, queued, &query)
	}
	if errors.Is(err, rank.ReasonRejected) {
		// A plugin has rejected the pod for all nodes, so no eviction helps.
		return nil, &wire.Answer{Summary: index.Summary{Nodes: p.search.owners.Nodes()}}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if err := counted.checkUnfit(); err != nil {
		return nil, nil, err
	}
	query.Preempt = true
	query.Counters, query.Values = wire.TranslateCounters(counted.answer.Summary.Counters, p.search.Cluster.Names.ValueOf)
	proposed, err := p.search.query(ctx, p.profile, queued, &query)
	if err != nil {
		return nil, nil, err
	}
	if err := proposed.checkUnfit(); err != nil {
		return nil, nil, err
	}
	var candidates []preemption.Candidate
	for i := range proposed.answer.Candidates {
		candidate, err := newCandidate(&proposed.answer.Candidates[i])
		if err != nil {
			return nil, nil, err
		}
		candidates = append(candidates, candidate)
	}
	return p.Evaluator.SelectCandidate(ctx, candidates), proposed.answer, nil
}

// checkUnfit returns an error if the pod fits on a node, or if the answer of an owner is missing: the pod may fit on a
// node of this owner, or may have evicted pods there already, so no pod may be evicted for it on another node. The answer
// must not be used for a choice afterwards.
func (r *podBatch) checkUnfit() error {
	switch _, outcome := r.merged.Choose(); {
	case outcome == index.Chosen:
		return errFitsNow
	case len(r.answer.Absent) > 0:
		return core.ErrIncomplete
	}
	return nil
}

// preemptionFitError explains why evicting pods does not help on any node.
func preemptionFitError(pod *v1.Pod, answer *wire.Answer) error {
	statuses := framework.NewDefaultNodeToStatus()
	statuses.SetAbsentNodesStatus(fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "Preemption is not helpful for scheduling"))
	number := 0
	for _, refusal := range answer.Refusals {
		for range refusal.Nodes {
			number++
			statuses.Set(fmt.Sprintf("#%d", number), rank.StatusOf(refusal))
		}
	}
	return &framework.FitError{Pod: pod, NumAllNodes: answer.Summary.Nodes, Diagnosis: framework.Diagnosis{NodeToStatus: statuses}}
}

// candidate is the proposal of an owner as upstream's interface.
type candidate struct {
	node    string
	victims extenderv1.Victims
}

func newCandidate(proposed *wire.Candidate) (*candidate, error) {
	c := &candidate{node: proposed.Node, victims: extenderv1.Victims{NumPDBViolations: proposed.Violations}}
	for _, data := range proposed.Victims {
		victim := &v1.Pod{}
		if err := victim.Unmarshal(data); err != nil {
			return nil, fmt.Errorf("decoding a preemption victim: %w", err)
		}
		c.victims.Pods = append(c.victims.Pods, victim)
	}
	return c, nil
}

// Victims returns the pods to evict.
func (c *candidate) Victims() *extenderv1.Victims { return &c.victims }

// Name returns the name of the node.
func (c *candidate) Name() string { return c.node }

// NumPodGroupDisruptions returns 0: replicas do not support pod groups.
func (*candidate) NumPodGroupDisruptions() int { return 0 }

// evictVictims evicts the victims through upstream's evaluator. The evaluator sees only the candidate's
// node and gets its victims from chosenVictims.
func (p *Preemptor) evictVictims(ctx context.Context, state fwk.CycleState, pod *v1.Pod, best preemption.Candidate) (*fwk.PostFilterResult, *fwk.Status) {
	p.search.victims.markDeleted(best.Victims().Pods)
	info := framework.NewNodeInfo()
	info.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: best.Name()}})
	statuses := framework.NewDefaultNodeToStatus()
	statuses.Set(best.Name(), fwk.NewStatus(fwk.Unschedulable))
	handle := &oneNode{Framework: p.profile.Framework, info: info}
	evaluator := preemption.NewEvaluator(pluginnames.DefaultPreemption, handle, &chosenVictims{p.DefaultPreemption, best.Victims()}, p.Executor)
	return evaluator.Preempt(ctx, state, pod, statuses)
}
