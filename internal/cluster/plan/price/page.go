package price

import (
	_ "embed"
	"html/template"
	"io"
	"strings"

	"github.com/k8s-1m/k8s-1m/internal/cluster/plan"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// bar is the share of a component in the bill.
type bar struct {
	Component, Amount string
	Percent           float64
}

// WritePage writes a plan and its price as an HTML page, which is one file and needs no network.
func (r *Report) WritePage(out io.Writer, p *plan.Plan) error {
	var text strings.Builder
	p.Print(&text)
	return page.Execute(out, map[string]any{
		"Nodes": number.Text(float64(p.Cluster.Nodes)), "Pods": number.Text(p.Cluster.PodsPerNode), "Feasible": p.Feasible,
		"Hour": money(r.Total[r.Purchase].Hour), "Month": money(r.Total[r.Purchase].Month), "Currency": r.Currency, "Purchase": r.Purchase,
		"Bars": r.bars(), "Tables": r.tables(), "Notes": r.notes(), "Plan": text.String(),
	})
}

// bars returns the part of each component in the bill of a month, the components in the order of the bill.
func (r *Report) bars() []bar {
	var bars []bar
	all := r.Total[r.Purchase].Month
	for _, component := range components {
		sum := 0.0
		for _, item := range r.Items {
			if item.Component == component {
				sum += item.Prices[r.Purchase].Month
			}
		}
		if sum > 0 {
			bars = append(bars, bar{component, money(sum), 100 * sum / all})
		}
	}
	return bars
}
