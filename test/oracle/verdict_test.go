package oracle

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// outcome is what the scheduler did with a pod.
type outcome struct {
	// node is the node to which the pod was bound; "" if it is pending.
	node string
	// nominated is the node to which the pod is nominated; "" if it is not.
	nominated string
	// reason is the reason and the message of the condition PodScheduled of a pending pod.
	reason string
	// evicted are the names of the pods that the scheduler evicted, in ascending order.
	evicted []string
}

// refused reports whether the scheduler has found that the pod fits on no node.
func (o outcome) refused() bool { return strings.HasPrefix(o.reason, v1.PodReasonUnschedulable+":") }

// judge returns what is wrong with an outcome; "" if nothing is.
func judge(e expectation, got outcome) string {
	switch {
	case e.Feasible > 0:
		return judgePlacement(e, got)
	case len(e.candidates) > 0:
		return judgePreemption(e, got)
	case got.node != "":
		return fmt.Sprintf("the pod is on %s, but it fits on no node: %v", got.node, e.FitError)
	case len(got.evicted) > 0:
		return fmt.Sprintf("pods %v were evicted, but no eviction makes the pod fit", got.evicted)
	case !got.refused():
		return fmt.Sprintf("the pod is pending (%s), want the reason %s", got.reason, v1.PodReasonUnschedulable)
	}
	return ""
}

// judgePlacement judges the outcome for a pod that fits on a node.
func judgePlacement(e expectation, got outcome) string {
	best := slices.Sorted(slices.Values(e.Best.UnsortedList()))
	switch {
	case got.node == "":
		return fmt.Sprintf("the pod is pending (%s), but fits on %d nodes, best on %v", got.reason, e.Feasible, best)
	case len(got.evicted) > 0:
		return fmt.Sprintf("pods %v were evicted, but the pod fits on %d nodes", got.evicted, e.Feasible)
	case e.Best.Has(got.node):
		return ""
	}
	score, fits := e.Scores[got.node]
	if !fits {
		return fmt.Sprintf("the pod is on %s, where it does not fit; %d other nodes fit", got.node, e.Feasible)
	}
	return fmt.Sprintf("the pod is on %s with score %d; the highest score is %d, on %v", got.node, score, e.Scores[best[0]], best)
}

// judgePreemption judges the outcome for a pod that fits only after evictions.
func judgePreemption(e expectation, got outcome) string {
	var allowed []string
	for _, candidate := range e.bestCandidates() {
		var victims []string
		for _, victim := range candidate.Victims().Pods {
			if victim.DeletionTimestamp == nil {
				victims = append(victims, victim.Name)
			}
		}
		slices.Sort(victims)
		nodes := sets.New(candidate.Name()).Union(e.bestAfter[candidate.Name()])
		if nodes.Has(got.node) && slices.Equal(victims, got.evicted) {
			return ""
		}
		allowed = append(allowed, fmt.Sprintf("%s after evicting %v", strings.Join(sets.List(nodes), " or "), victims))
	}
	where := "on " + got.node
	if got.node == "" {
		where = "pending (" + got.reason + ")"
	}
	return fmt.Sprintf("the pod is %s after evicting %v; want it on %s", where, got.evicted, strings.Join(allowed, ", or on "))
}
