package simulate

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// shown is how many rows a table of pods, nodes or reasons has. JSON has all.
const shown = 20

// Print writes the report as tables.
func (r *Report) Print(w io.Writer) error {
	p := &printer{w: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
	r.printHead(p)
	r.printPods(p)
	r.printReasons(p)
	r.printPreemptions(p)
	r.printResources(p)
	r.printZones(p)
	r.printNodes(p)
	for _, note := range r.Notes {
		p.line("Note: %s", note)
	}
	for _, deviation := range r.Deviations {
		p.line("DEVIATION: %s", deviation)
	}
	return p.w.Flush()
}

// printer writes lines whose columns are separated by tabs.
type printer struct{ w *tabwriter.Writer }

func (p *printer) line(format string, args ...any) { fmt.Fprintf(p.w, format+"\n", args...) }

// more says how many rows are not shown.
func (p *printer) more(rows int, what string) {
	if rows > shown {
		p.line("… and %d more %s; -o json has all", rows-shown, what)
	}
}

func (r *Report) printHead(p *printer) {
	p.line("Pods:\t%d placed, %d unschedulable, %d held back, %d preempted", r.Counts.Placed, r.Counts.Unschedulable, r.Counts.HeldBack, r.Counts.Preempted)
	if r.Counts.Evicted > 0 {
		p.line("Evicted:\t%d of the pods that ran before", r.Counts.Evicted)
	}
	by := fmt.Sprintf("%d by the index", r.Search.ByIndex)
	for _, reason := range slices.Sorted(maps.Keys(r.Search.FullScan)) {
		by += fmt.Sprintf(", %d by the full scan (%s)", r.Search.FullScan[reason], reason)
	}
	p.line("Decisions:\t%d: %s", r.Search.Decisions, by)
	p.line("kube-scheduler:\t%d of %d decisions are equal", r.Search.Equal, r.Search.Decisions)
	p.line("Seed:\t%d", r.Seed)
}

func (r *Report) printPods(p *printer) {
	p.line("\nPOD\tSTATE\tNODE\tZONE\tSCORE\tEQUAL NODES")
	for i := range r.Pods[:min(shown, len(r.Pods))] {
		pod := &r.Pods[i]
		score, ties := "-", "-"
		if pod.Score != nil {
			score = fmt.Sprint(*pod.Score)
		}
		if pod.Ties > 0 {
			ties = fmt.Sprint(pod.Ties)
		}
		p.line("%s\t%s\t%s\t%s\t%s\t%s", pod.Pod, pod.State, orDash(pod.Node), orDash(pod.Zone), score, ties)
	}
	p.more(len(r.Pods), "pods")
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// printReasons writes why pods have no node, with the number of pods.
func (r *Report) printReasons(p *printer) {
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
	p.line("\nPODS\tWITHOUT A NODE, BECAUSE\tFOR EXAMPLE")
	for _, reason := range reasons[:min(shown, len(reasons))] {
		p.line("%d\t%s\t%s", counts[reason], reason, examples[reason])
	}
	p.more(len(reasons), "reasons")
}

func (r *Report) printPreemptions(p *printer) {
	if len(r.Preemptions) == 0 {
		return
	}
	p.line("\nPREEMPTION FOR\tON NODE\tEVICTED\tBUDGET VIOLATIONS")
	for _, preemption := range r.Preemptions[:min(shown, len(r.Preemptions))] {
		p.line("%s\t%s\t%s\t%d", preemption.Pod, preemption.Node, strings.Join(preemption.Victims, ", "), preemption.Violations)
	}
	p.more(len(r.Preemptions), "preemptions")
}

func (r *Report) printResources(p *printer) {
	p.line("\nRESOURCE\tALLOCATABLE\tREQUESTED BEFORE\tAFTER")
	for _, usage := range r.Resources {
		p.line("%s\t%s\t%s\t%s", usage.Resource, quantity(usage.Resource, usage.Allocatable), share(usage, usage.Before), share(usage, usage.After))
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

func (r *Report) printZones(p *printer) {
	if len(r.Zones) < 2 {
		return
	}
	p.line("\nZONE\tNODES\tPLACED\tCPU BEFORE\tAFTER\tMEMORY BEFORE\tAFTER")
	for _, zone := range r.Zones[:min(shown, len(r.Zones))] {
		p.line("%s\t%d\t%d\t%s", orDash(zone.Zone), zone.Nodes, zone.Placed, percentages(zone.Resources))
	}
	p.more(len(r.Zones), "zones")
}

func (r *Report) printNodes(p *printer) {
	if len(r.Nodes) == 0 {
		return
	}
	p.line("\nNODE\tZONE\tPLACED\tEVICTED\tCPU BEFORE\tAFTER\tMEMORY BEFORE\tAFTER")
	for _, node := range r.Nodes[:min(shown, len(r.Nodes))] {
		p.line("%s\t%s\t%d\t%d\t%s", node.Node, orDash(node.Zone), node.Placed, node.Evicted, percentages(node.Resources))
	}
	p.more(len(r.Nodes), "nodes")
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
