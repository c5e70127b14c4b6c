package replica

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// followPreemption compares the preemption for a pod that fits on no node with upstream's candidates, and lets the
// victims end or deletes the pod. It returns false.
func (w *oracleWorld) followPreemption(pod *v1.Pod, candidates []preemption.Candidate) bool {
	node := w.API.Pod(schedtest.KeyOf(pod)).Status.NominatedNodeName
	chosen := w.compareCandidate(pod, node, candidates)
	if chosen == nil {
		w.removePending(pod)
		return false
	}
	w.tally.preempted++
	w.awaitEvictions(pod, chosen)
	w.endLowerNominations(pod, chosen)
	nominated := pod.DeepCopy()
	nominated.Status.NominatedNodeName = node
	w.mu.Lock()
	w.pending[pod.UID] = nominated
	w.mu.Unlock()
	w.setNominated(append(withoutPod(w.nominated, pod.UID), nominated))
	if w.Chance(30) {
		w.withdrawPod(nominated)
		return false
	}
	w.endVictims(nominated, chosen)
	return false
}

// compareCandidate returns the candidate on the node to which a pod was nominated. It returns nil if there is none.
func (w *oracleWorld) compareCandidate(pod *v1.Pod, node string, candidates []preemption.Candidate) (chosen preemption.Candidate) {
	ranks := map[string][5]int64{}
	for _, candidate := range candidates {
		ranks[candidate.Name()] = reference.CandidateRank(candidate)
		if candidate.Name() == node {
			chosen = candidate
		}
	}
	if chosen == nil {
		// Upstream ends the nomination of a pod that may preempt other pods but cannot.
		if node != "" && node != pod.Status.NominatedNodeName || len(candidates) > 0 {
			w.fail(pod, "the pod is nominated to %q, want one of %v", node, ranks)
		}
		return nil
	}
	got := ranks[node]
	for _, other := range ranks {
		if slices.Compare(other[:], got[:]) < 0 {
			w.fail(pod, "the pod is nominated to %s, want the best of %v", node, ranks)
			return chosen
		}
	}
	return chosen
}

// awaitEvictions waits until exactly the victims of a candidate were evicted, except those that terminated before.
func (w *oracleWorld) awaitEvictions(pod *v1.Pod, chosen preemption.Candidate) {
	var want []string
	for _, victim := range chosen.Victims().Pods {
		if victim.DeletionTimestamp == nil {
			want = append(want, victim.Name)
		}
	}
	slices.Sort(want)
	w.Eventually(fmt.Sprintf("seed %d: pods %v are evicted for pod %s", w.seed, want, pod.Name), func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if got := slices.Sorted(slices.Values(w.evicted)); !slices.Equal(got, want) {
			return fmt.Errorf("the evicted pods are %v; the latest changes: %v", got, w.history[max(0, len(w.history)-20):])
		}
		return nil
	})
}

// endLowerNominations checks that a preemption ends the nominations of pods of lower priority to its node, and deletes
// these pods. Upstream's prepareCandidateAsync returns before it does so if it has no pod to evict, because all victims
// terminate already. These nominations then continue to count.
func (w *oracleWorld) endLowerNominations(preemptor *v1.Pod, chosen preemption.Candidate) {
	if !slices.ContainsFunc(chosen.Victims().Pods, func(victim *v1.Pod) bool { return victim.DeletionTimestamp == nil }) {
		return
	}
	for _, pod := range w.nominated {
		if pod.Status.NominatedNodeName != chosen.Name() || corev1helpers.PodPriority(pod) >= corev1helpers.PodPriority(preemptor) {
			continue
		}
		w.Eventually(fmt.Sprintf("seed %d: the preemption for pod %s ends the nomination of pod %s to %s", w.seed, preemptor.Name, pod.Name, chosen.Name()), func() error {
			if node := w.API.Pod(schedtest.KeyOf(pod)).Status.NominatedNodeName; node != "" {
				w.mu.Lock()
				defer w.mu.Unlock()
				return fmt.Errorf("it is nominated to %s; the latest changes: %v", node, w.history[max(0, len(w.history)-20):])
			}
			return nil
		})
		w.removePending(pod)
		w.tally.ended++
	}
}

// endVictims removes the victims of a preemption. The preempting pod must then be bound to the right node.
func (w *oracleWorld) endVictims(pod *v1.Pod, chosen preemption.Candidate) {
	victims := chosen.Victims().Pods
	w.mu.Lock()
	for _, victim := range victims {
		delete(w.Pods, victim.UID)
		w.record("%s ends", victim.Name)
	}
	base := maps.Clone(w.Pods)
	w.mu.Unlock()
	for _, victim := range victims {
		w.API.Remove(victim)
	}
	if w.expectAfter(pod, base).Feasible == 0 {
		// Upstream's VolumeRestrictions ignores the namespaces of victims: it expects that a ReadWriteOncePod claim is
		// free after a pod with a claim of the same name has been evicted. The pod then fits nowhere.
		w.removePending(pod)
		return
	}
	node, lastRetry := "", time.Now()
	w.Eventually(fmt.Sprintf("seed %d: pod %s is bound after its victims have ended", w.seed, pod.Name), func() error {
		if selectsNamespaces(pod) && time.Since(lastRetry) > time.Second {
			lastRetry = time.Now()
			w.Sched.SchedulingQueue.MoveAllToActiveOrBackoffQueue(klog.Logger{}, fwk.ClusterEvent{Resource: fwk.WildCard, ActionType: fwk.All}, nil, nil, nil)
		}
		if node = w.API.Pod(schedtest.KeyOf(pod)).Spec.NodeName; node == "" {
			w.mu.Lock()
			defer w.mu.Unlock()
			return fmt.Errorf("it is pending, nominated to %s; the latest changes: %v", w.API.Pod(schedtest.KeyOf(pod)).Status.NominatedNodeName, w.history[max(0, len(w.history)-20):])
		}
		return nil
	})
	if allowed := w.fitsAfter(pod, base, victims); !slices.Contains(allowed, node) {
		w.fail(pod, "after its victims have ended, the pod is on %s, want one of the nodes %v", node, allowed)
	}
	w.settle(pod)
}

// selectsNamespaces returns whether a pod avoids others by a term that selects namespaces by their labels. Upstream's
// InterPodAffinity does not read these labels when it decides whether the end of a pod may make another one schedulable
// (isSchedulableAfterAssignedPodChange), so upstream's queue may not retry the pod for five minutes.
func selectsNamespaces(pod *v1.Pod) bool {
	return slices.ContainsFunc(fwk.GetPodAntiAffinityTerms(pod.Spec.Affinity), func(term v1.PodAffinityTerm) bool {
		return term.NamespaceSelector != nil && len(term.NamespaceSelector.MatchLabels)+len(term.NamespaceSelector.MatchExpressions) > 0
	})
}

// expectAfter returns the decision of the reference about a pod when only the others are on the nodes.
func (w *oracleWorld) expectAfter(pod *v1.Pod, others map[types.UID]*v1.Pod) reference.Decision {
	w.mu.Lock()
	defer w.mu.Unlock()
	want, err := w.reference.Decide(w.Ctx, slices.Collect(maps.Values(others)), slices.Collect(maps.Values(w.Nodes)), pod)
	w.Must(err)
	return want
}

// fitsAfter returns the best nodes for a pod after some or all of its victims have ended: their ends arrive one after
// the other.
func (w *oracleWorld) fitsAfter(pod *v1.Pod, others map[types.UID]*v1.Pod, victims []*v1.Pod) (nodes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for remaining := range 1 << min(len(victims), 6) {
		pods := slices.Collect(maps.Values(others))
		for i, victim := range victims {
			if remaining>>i&1 == 1 {
				pods = append(pods, victim)
			}
		}
		want, err := w.reference.Decide(w.Ctx, pods, slices.Collect(maps.Values(w.Nodes)), pod)
		w.Must(err)
		nodes = append(nodes, want.Best.UnsortedList()...)
	}
	return nodes
}

// checkEnd checks that nothing is left over and nothing counts twice: the owners of nodes have exactly the bound pods,
// and neither reservations nor nominations.
func (w *oracleWorld) checkEnd() {
	for len(w.nominated) > 0 {
		w.removePending(w.nominated[0])
	}
	// The leader sends the withdrawals before the next query.
	last := schedtest.PlainPod("last", "1m")
	w.mu.Lock()
	w.pending[last.UID] = last
	w.mu.Unlock()
	put(w, last)
	w.follow(last)
	w.awaitReservations(0, 0)
	w.Eventually(fmt.Sprintf("seed %d: the owners have exactly the bound pods", w.seed), func() error {
		for name := range w.Nodes {
			if err := w.checkNode(name, describeUsage); err != nil {
				return err
			}
		}
		return nil
	})
	for _, r := range w.replicas {
		if c := r.holder.Counts(); c.Nominations != 0 || c.Expired != 0 {
			w.T.Errorf("seed %d: %s has %d nominations, and %d reservations have expired; want none", w.seed, r.options.Self.Name, c.Nominations, c.Expired)
		}
		select {
		case err := <-r.exits:
			w.T.Errorf("seed %d: %s exits: %v", w.seed, r.options.Self.Name, err)
		default:
		}
	}
	for _, pod := range w.API.Pods() {
		if n := w.API.Binds[pod.UID]; n > 1 {
			w.T.Errorf("seed %d: pod %s was bound %d times", w.seed, pod.Name, n)
		}
	}
}
