package simulate

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/clusterflags"
)

// shown is how many rows a table of pods, nodes or reasons has. JSON has all.
const shown = 20

// Print writes the report as tables.
func (r *Report) Print(w io.Writer) error {
	p := clusterflags.NewPrinter(w)
	r.printHead(p)
	r.printPods(p)
	r.printReasons(p)
	r.printPreemptions(p)
	r.printResources(p)
	r.printZones(p)
	r.printNodes(p)
	return p.End(r.Notes, r.Deviations)
}

// more says how many rows are not shown.
func more(p *clusterflags.Printer, rows int, what string) {
	if rows > shown {
		p.Line("… and %d more %s; -o json has all", rows-shown, what)
	}
}

func (r *Report) printHead(p *clusterflags.Printer) {
	p.Line("Pods:\t%d placed, %d unschedulable, %d held back, %d preempted", r.Counts.Placed, r.Counts.Unschedulable, r.Counts.HeldBack, r.Counts.Preempted)
	if r.Counts.Evicted > 0 {
		p.Line("Evicted:\t%d of the pods that ran before", r.Counts.Evicted)
	}
	by := fmt.Sprintf("%d by the index", r.Search.ByIndex)
	for _, reason := range slices.Sorted(maps.Keys(r.Search.FullScan)) {
		by += fmt.Sprintf(", %d by the full scan (%s)", r.Search.FullScan[reason], reason)
	}
	p.Line("Decisions:\t%d: %s", r.Search.Decisions, by)
	p.Line("kube-scheduler:\t%d of %d decisions are equal", r.Search.Equal, r.Search.Decisions)
	p.Line("Seed:\t%d", r.Seed)
}

func (r *Report) printPods(p *clusterflags.Printer) {
	p.Line("\nPOD\tSTATE\tNODE\tZONE\tSCORE\tEQUAL NODES")
	for i := range r.Pods[:min(shown, len(r.Pods))] {
		pod := &r.Pods[i]
		score, ties := "-", "-"
		if pod.Score != nil {
			score = fmt.Sprint(*pod.Score)
		}
		if pod.Ties > 0 {
			ties = fmt.Sprint(pod.Ties)
		}
		p.Line("%s\t%s\t%s\t%s\t%s\t%s", pod.Pod, pod.State, clusterflags.OrDash(pod.Node), clusterflags.OrDash(pod.Zone), score, ties)
	}
	more(p, len(r.Pods), "pods")
}

// printReasons writes why pods have no node, with the number of pods.
func (r *Report) printReasons(p *clusterflags.Printer) {
	counts, examples := map[string]int{}, map[string]string{}
	for i := range r.Pods {
		if pod := &r.Pods[i]; pod.State != Placed {
			counts[pod.Reason]++
			if examples[pod.Reason] == "" {
				examples[pod.Reason] = pod.Pod
			}
		}
	}
	if len(counts) == 0 {
		return
	}
	reasons := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	})
	p.Line("\nPODS\tWITHOUT A NODE, BECAUSE\tFOR EXAMPLE")
	for _, reason := range reasons[:min(shown, len(reasons))] {
		p.Line("%d\t%s\t%s", counts[reason], reason, examples[reason])
	}
	more(p, len(reasons), "reasons")
}

func (r *Report) printPreemptions(p *clusterflags.Printer) {
	if len(r.Preemptions) == 0 {
		return
	}
	p.Line("\nPREEMPTION FOR\tON NODE\tEVICTED\tBUDGET VIOLATIONS")
	for _, preemption := range r.Preemptions[:min(shown, len(r.Preemptions))] {
		p.Line("%s\t%s\t%s\t%d", preemption.Pod, preemption.Node, strings.Join(preemption.Victims, ", "), preemption.Violations)
	}
	more(p, len(r.Preemptions), "preemptions")
}

func (r *Report) printResources(p *clusterflags.Printer) {
	p.Line("\nRESOURCE\tALLOCATABLE\tREQUESTED BEFORE\tAFTER")
	for _, usage := range r.Resources {
		p.Line("%s\t%s\t%s\t%s", usage.Resource, quantity(usage.Resource, usage.Allocatable), share(usage, usage.Before), share(usage, usage.After))
	}
}

// share returns an amount and its part of what is allocatable.
func share(usage Usage, amount int64) string {
	text := quantity(usage.Resource, amount)
	if usage.Allocatable > 0 {
		text += fmt.Sprintf(" (%.1f %%)", 100*float64(amount)/float64(usage.Allocatable))
	}
	return text
}

// quantity writes an amount as Kubernetes does.
func quantity(name string, amount int64) string {
	switch v1.ResourceName(name) {
	case v1.ResourceCPU:
		return resource.NewMilliQuantity(amount, resource.DecimalSI).String()
	case v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return resource.NewQuantity(amount, resource.BinarySI).String()
	}
	return resource.NewQuantity(amount, resource.DecimalSI).String()
}

func (r *Report) printZones(p *clusterflags.Printer) {
	if len(r.Zones) < 2 {
		return
	}
	p.Line("\nZONE\tNODES\tPLACED\tCPU BEFORE\tAFTER\tMEMORY BEFORE\tAFTER")
	for _, zone := range r.Zones[:min(shown, len(r.Zones))] {
		p.Line("%s\t%d\t%d\t%s", clusterflags.OrDash(zone.Zone), zone.Nodes, zone.Placed, percentages(zone.Resources))
	}
	more(p, len(r.Zones), "zones")
}

func (r *Report) printNodes(p *clusterflags.Printer) {
	if len(r.Nodes) == 0 {
		return
	}
	p.Line("\nNODE\tZONE\tPLACED\tEVICTED\tCPU BEFORE\tAFTER\tMEMORY BEFORE\tAFTER")
	for _, node := range r.Nodes[:min(shown, len(r.Nodes))] {
		p.Line("%s\t%s\t%d\t%d\t%s", node.Node, clusterflags.OrDash(node.Zone), node.Placed, node.Evicted, percentages(node.Resources))
	}
	more(p, len(r.Nodes), "nodes")
}

// percentages returns the columns of CPU and memory.
func percentages(usages []Usage) string {
	var columns []string
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		at := slices.IndexFunc(usages, func(u Usage) bool { return u.Resource == string(name) })
		if at < 0 || usages[at].Allocatable == 0 {
			columns = append(columns, "-", "-")
			continue
		}
		for _, amount := range []int64{usages[at].Before, usages[at].After} {
			columns = append(columns, fmt.Sprintf("%.1f %%", 100*float64(amount)/float64(usages[at].Allocatable)))
		}
	}
	return strings.Join(columns, "\t")
}
