package plan

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// Print writes the plan as text.
func (p *Plan) Print(out io.Writer) {
	c, r, n := &p.Cluster, &p.Rates, &p.Needs
	fmt.Fprintf(out, "%s nodes with %.3g pods each; costs: %s\n\n", number.Text(float64(c.Nodes)), c.PodsPerNode, p.Costs.Where)
	printTable(out, "OPERATIONS PER SECOND", [][]string{
		{"Lease updates", number.Text(r.LeaseUpdates)},
		{"node status patches", number.Text(r.StatusPatches)},
		{"pods created and deleted", number.Text(r.Pods)},
		{"Events", number.Text(r.Events)},
		{"store writes", number.Text(r.Writes)},
		{"watch events from the store to each API server", number.Text(r.StoreEvents)},
		{"watch events from API servers to clients", number.Text(r.Delivered)},
	})
	needed := [][]string{
		{"store", fmt.Sprintf("%s cores; the thread that applies all writes uses %.0f %% of one", formatCores(n.Store.Cores), 100*n.Store.ThreadShare)},
		{"", fmt.Sprintf("%s memory, %s per snapshot, %.3g MB/s log, %.3g Gbit/s to API servers", formatGiB(n.Store.GiB), formatGiB(n.Store.SnapshotGiB), n.Store.LogMBps, n.Store.OutGbit)},
	}
	needed = append(needed, p.apiServerRows()...)
	needed = append(needed, p.gatewayRows()...)
	printTable(out, "RESOURCES NEEDED", append(needed, []string{
		"dist-scheduler", fmt.Sprintf("%s replicas, %s cores and %s in total; filling the cluster takes at least %v",
			number.Text(float64(n.Scheduler.Replicas)), formatCores(n.Scheduler.Cores), formatGiB(n.Scheduler.GiB), (time.Duration(n.Scheduler.FillSeconds) * time.Second).Round(time.Second)),
	}))
	p.printLimits(out)
}

// apiServerRows returns the table rows of the API servers.
func (p *Plan) apiServerRows() [][]string {
	n, m := &p.Needs.APIServers, &p.Machines
	if n.Count == infiniteServers {
		return [][]string{
			{"kube-apiservers", fmt.Sprintf("no number of servers with %.0f cores and %s is sufficient: each needs %s cores for watch events from the store", m.APIServerCores, formatGiB(m.APIServerGiB), formatCores(n.CoresEach))},
			{"", fmt.Sprintf("and %s for its watch caches, which leaves no capacity for clients", formatGiB(n.GiBCaches))},
		}
	}
	count := float64(n.Count)
	return [][]string{
		{"kube-apiservers", fmt.Sprintf("%s servers with %.0f cores and %s; %s cores in total: %s for clients, and %s per server for watch events from the store",
			number.Text(count), m.APIServerCores, formatGiB(m.APIServerGiB), formatCores(n.Cores), formatCores(n.CoresClients), formatCores(n.CoresEach))},
		{"", fmt.Sprintf("%s memory and %.3g Gbit/s per server", formatGiB(n.GiBEach), n.OutGbitEach)},
		{"", fmt.Sprintf("%s watches and %s connections in total, %s and %s per server", number.Text(n.Watches), number.Text(n.Connections),
			number.Text(n.Watches/count), number.Text(n.Connections/count))},
	}
}

// gatewayRows returns the table rows of the gateways; none if the cluster has no gateway.
func (p *Plan) gatewayRows() [][]string {
	n, m := &p.Needs.Gateways, &p.Machines
	if n.Count == 0 {
		return nil
	}
	return [][]string{
		{"kube-gateways", fmt.Sprintf("%s gateways with %.0f cores and %s; %s cores in total: %s for requests, and %s for watch events",
			number.Text(float64(n.Count)), m.GatewayCores, formatGiB(m.GatewayGiB), formatCores(n.Cores), formatCores(n.CoresRequests), formatCores(n.CoresEvents))},
		{"", fmt.Sprintf("%s memory and %.3g Gbit/s to clients, in total", formatGiB(n.GiB), n.OutGbit)},
	}
}

func (p *Plan) printLimits(out io.Writer) {
	rows := [][]string{}
	for _, l := range p.Limits {
		nodes := number.Text(float64(l.Nodes))
		if l.Nodes >= unlimitedNodes {
			nodes = "no limit"
		}
		rows = append(rows, []string{l.Resource, nodes, fmt.Sprintf("%.0f %%", 100*min(l.Used, 1e4))})
	}
	printTable(out, "LIMITS (maximum number of nodes, current usage)", rows)
	first := p.Limits[0]
	if p.Feasible {
		fmt.Fprintf(out, "Feasible. The first limit is: %s, at %s nodes.\n", first.Resource, number.Text(float64(first.Nodes)))
	} else {
		fmt.Fprintf(out, "Not feasible on these machines. The first limit is: %s, at %s nodes.\n", first.Resource, number.Text(float64(first.Nodes)))
	}
	fmt.Fprintf(out, "To double the first limit:\n")
	for _, step := range p.Doubling {
		fmt.Fprintf(out, "  %s\n    %s nodes\n", step.Change, number.Text(float64(step.Nodes)))
	}
}

// printTable prints rows with aligned cells under a title.
func printTable(out io.Writer, title string, rows [][]string) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, title)
	for _, row := range rows {
		fmt.Fprint(w, "  ")
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, cell)
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
	fmt.Fprintln(out)
}

func formatCores(value float64) string { return number.Text(max(value, 0.001)) }

// formatGiB formats an amount of memory, which is given in GiB.
func formatGiB(gib float64) string {
	switch {
	case gib >= 1024:
		return fmt.Sprintf("%.3g TiB", gib/1024)
	case gib >= 1:
		return fmt.Sprintf("%.3g GiB", gib)
	}
	return fmt.Sprintf("%.3g MiB", gib*1024)
}
