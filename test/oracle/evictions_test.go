package oracle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// eventPatience is how long an event may be later than the eviction that it reports.
const eventPatience = time.Minute

// withoutOthers removes the pods from the outcome for a pod that the scheduler evicted for another pod. Another pending pod
// may need room meanwhile, for example because the pod has taken the node to which it was nominated. Pods whose event does
// not arrive count as evicted for this pod.
func (w *world) withoutOthers(pod types.UID, before state, got outcome) outcome {
	evicted := map[types.UID]string{}
	for _, other := range before.assigned() {
		if slices.Contains(got.evicted, other.Name) {
			evicted[other.UID] = other.Name
		}
	}
	for deadline := time.Now().Add(eventPatience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		preemptors := w.preemptors(evicted)
		if len(preemptors) < len(got.evicted) {
			continue
		}
		others := func(name string) bool { return preemptors[name] != pod }
		got.evicted = slices.DeleteFunc(slices.Clone(got.evicted), others)
		return got
	}
	return got
}

// judgeOwn judges an outcome without the evictions for other pods. A pod that was evicted for another one may also be a victim
// of this preemption: whichever pod is faster evicts it. The evictions for others may also make room for this pod on another
// node, earlier than its own do; fits tells on which nodes it fits after all evictions.
func judgeOwn(expected expectation, all, own outcome, fits func(node string) bool) string {
	for _, candidate := range expected.candidates {
		shared := own
		if len(own.evicted) < len(all.evicted) && own.node != "" && fits(own.node) {
			shared.node = candidate.Name()
		}
		shared.evicted = slices.Clone(own.evicted)
		for _, victim := range candidate.Victims().Pods {
			if slices.Contains(all.evicted, victim.Name) && !slices.Contains(own.evicted, victim.Name) {
				shared.evicted = append(shared.evicted, victim.Name)
			}
		}
		slices.Sort(shared.evicted)
		if judge(expected, shared) == "" {
			return ""
		}
	}
	problem := judge(expected, own)
	if problem != "" && len(own.evicted) < len(all.evicted) {
		problem += fmt.Sprintf("; with those for other pods, %v were evicted", all.evicted)
	}
	return problem
}

// fitsWithout returns a function that tells whether a pod fits on a node without the pods that were evicted.
func (w *world) fitsWithout(before state, pod *v1.Pod, evicted []string) func(node string) bool {
	return func(node string) bool {
		before.pods = slices.DeleteFunc(slices.Clone(before.pods), func(other *v1.Pod) bool { return slices.Contains(evicted, other.Name) })
		expected := w.observer.expect(before, pod)
		return expected.fits(node)
	}
}

// preemptors returns for which pods the given ones were evicted, by name, as far as events report it.
func (w *world) preemptors(evicted map[types.UID]string) map[string]types.UID {
	w.t.Helper()
	events, err := w.client.CoreV1().Events("").List(w.ctx, metav1.ListOptions{FieldSelector: "reason=Preempted"})
	w.must(err)
	found := map[string]types.UID{}
	for i := range events.Items {
		if name, ok := evicted[events.Items[i].InvolvedObject.UID]; ok {
			found[name] = preemptor(&events.Items[i])
		}
	}
	return found
}

// preemptor returns the UID in the message "Preempted by pod UID on node NAME"; "" if the message is another one.
func preemptor(event *v1.Event) types.UID {
	words := strings.Fields(event.Message)
	if len(words) < 4 || words[0] != "Preempted" || words[1] != "by" {
		return ""
	}
	return types.UID(words[3])
}
