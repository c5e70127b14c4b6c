package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterflags"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/offline"
)

const (
	// shownNodes is how many nodes a table lists, and shownExamples how many for each reason. JSON has all.
	shownNodes    = 10
	shownExamples = 3
)

// Print writes the explanation as tables.
func (e *Explanation) Print(w io.Writer) error {
	p := clusterflags.NewPrinter(w)
	e.printHead(p)
	e.printRejections(p)
	e.printScores(p)
	e.printNode(p)
	e.printPreemption(p)
	return p.End(e.Notes, e.Deviations)
}

func (e *Explanation) printHead(p *clusterflags.Printer) {
	p.Line("Pod:\t%s", e.Pod)
	if e.BoundTo != "" {
		p.Line("Bound to:\t%s; explained as if it were not bound", e.BoundTo)
	}
	if e.NominatedTo != "" {
		p.Line("Nominated to:\t%s, which is tried first", e.NominatedTo)
	}
	if e.HeldBack != "" {
		p.Line("Held back:\t%s; explained as if it were not", e.HeldBack)
	}
	p.Line("Scheduler:\t%s", e.Scheduler)
	if e.FullScanReason == "" {
		p.Line("Decided by:\tthe index")
	} else {
		p.Line("Decided by:\tthe full scan, because of: %s", e.FullScanReason)
	}
	p.Line("Nodes:\t%d of %d fit", e.Fitting, e.Nodes)
	switch {
	case e.ChosenNode == "":
		p.Line("Result:\tunschedulable: %s", e.Message)
	case len(e.BestNodes) > 1:
		p.Line("Result:\t%s, one of %d nodes with the highest score", e.BestNodes[0], len(e.BestNodes))
	case e.Fitting == 1:
		p.Line("Result:\t%s, the only node that fits", e.BestNodes[0])
	default:
		p.Line("Result:\t%s, the node with the highest score", strings.Join(e.BestNodes, ""))
	}
	checked := "filters and reasons are equal to those of kube-scheduler's plugins"
	if e.ScoresCompared {
		checked = "filters and the total scores of all nodes are equal to those of kube-scheduler's plugins"
	}
	if len(e.Deviations) > 0 {
		checked = fmt.Sprintf("%d deviations from kube-scheduler's plugins, listed below", len(e.Deviations))
	}
	p.Line("Check:\t%s", checked)
}

func (e *Explanation) printRejections(p *clusterflags.Printer) {
	if len(e.Rejections) == 0 {
		return
	}
	p.Line("\nNODES\tREJECTED BY\tREASON\tFOR EXAMPLE")
	for _, r := range e.Rejections {
		examples := r.Nodes[:min(shownExamples, len(r.Nodes))]
		p.Line("%d\t%s\t%s\t%s", r.Count, clusterflags.OrDash(r.Plugin), r.Reason, strings.Join(examples, ", "))
	}
}

// printScores writes a column for each plugin that does not give all nodes the score 0. The columns are the raw score, the
// normalized score, and, in the head, the weight.
func (e *Explanation) printScores(p *clusterflags.Printer) {
	if len(e.Scores) == 0 || len(e.Scores[0].Plugins) == 0 {
		return
	}
	var shownPlugins []int
	var zero []string
	var head strings.Builder
	for i, plugin := range e.Scores[0].Plugins {
		if !slices.ContainsFunc(e.Scores, func(node offline.NodeScore) bool { return node.Plugins[i].Normalized != 0 }) {
			zero = append(zero, plugin.Plugin)
			continue
		}
		shownPlugins = append(shownPlugins, i)
		fmt.Fprintf(&head, "\t%s", plugin.Plugin)
		if plugin.Weight != 1 {
			fmt.Fprintf(&head, " ×%d", plugin.Weight)
		}
	}
	p.Line("\nNODE\tSCORE%s", head.String())
	for i := range e.Scores[:min(shownNodes, len(e.Scores))] {
		p.Line("%s", scoreRow(&e.Scores[i], shownPlugins))
	}
	if more := len(e.Scores) - shownNodes; more > 0 {
		p.Line("… and %d more nodes; -o json has all", more)
	}
	p.Line("Each column has the raw score → the normalized score. The score is the sum of normalized score × weight.")
	if len(zero) > 0 {
		p.Line("0 for all nodes: %s.", strings.Join(zero, ", "))
	}
}

func scoreRow(node *offline.NodeScore, plugins []int) string {
	var row strings.Builder
	fmt.Fprintf(&row, "%s\t%d", node.Node, node.Total)
	for _, i := range plugins {
		fmt.Fprintf(&row, "\t%d → %d", node.Plugins[i].Raw, node.Plugins[i].Normalized)
	}
	return row.String()
}

func (e *Explanation) printNode(p *clusterflags.Printer) {
	n := e.Node
	if n == nil {
		return
	}
	p.Line("\nNode %s %s.", n.Name, n.Verdict)
	for _, rejection := range n.Rejections {
		p.Line("  %s:\t%s", clusterflags.OrDash(rejection.Plugin), strings.Join(rejection.Reasons, ", "))
	}
	if n.Score != nil && n.Behind > 0 {
		p.Line("  It has %d points less than %s:", n.Behind, n.BestNode)
	}
	for _, difference := range n.Differences {
		if difference.Points > 0 {
			p.Line("  %s:\t%d less", difference.Plugin, difference.Points)
		} else {
			p.Line("  %s:\t%d more", difference.Plugin, -difference.Points)
		}
	}
}

func (e *Explanation) printPreemption(p *clusterflags.Printer) {
	switch s := e.Preemption; {
	case s == nil:
	case s.Node == "":
		p.Line("\nPreemption: none: %s", s.Reason)
	default:
		p.Line("\nPreemption: on %s (the best of %d nodes), evicting %s", s.Node, s.Candidates, strings.Join(s.Victims, ", "))
		if s.Violations > 0 {
			p.Line("  %d of them violate a PodDisruptionBudget", s.Violations)
		}
	}
}
