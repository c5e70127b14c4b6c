package price

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// table is a table of a report: of the text and of the page.
type table struct {
	Title   string
	Columns []string
	Rows    [][]string
	// Sum means that the last row is a sum.
	Sum bool
	// After is a sentence below the table.
	After string
}

// Print writes the report as text.
func (r *Report) Print(out io.Writer) {
	for _, t := range r.tables() {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, t.Title)
		for _, row := range append([][]string{t.Columns}, t.Rows...) {
			fmt.Fprintln(w, "  "+strings.Join(row, "\t"))
		}
		_ = w.Flush()
		if t.After != "" {
			fmt.Fprintln(out, t.After)
		}
		fmt.Fprintln(out)
	}
	for _, note := range r.notes() {
		fmt.Fprintln(out, note)
	}
}

// tables returns the tables of the report.
func (r *Report) tables() []table {
	all := []table{r.billTable(), r.nextTable()}
	if r.Existing != nil {
		all = append(all, r.existingTable())
	}
	return all
}

// notes returns the sentences below the tables.
func (r *Report) notes() []string {
	place := r.Provider
	if r.Region != "" {
		place += ", " + r.Region
	}
	return append([]string{fmt.Sprintf("Prices of %s, %s, from %s. A month has %d hours. Without tax, nodes, kube-controller-manager and spare machines.",
		place, r.Date, r.Source, HoursOfMonth)}, r.Notes...)
}

// billTable returns the bill: the price of an hour as the machines are paid, and of a month for each way to pay.
func (r *Report) billTable() table {
	ways := r.waysToPay(r.Items)
	t := table{Title: "PRICE, in " + r.Currency, Columns: append([]string{"", "", "quantity", "hour, " + string(r.Purchase)}, monthColumns(ways)...), Sum: true}
	for _, item := range r.Items {
		t.Rows = append(t.Rows, append([]string{item.Component, item.What, quantity(item)}, r.amounts(item.Prices, ways)...))
	}
	t.Rows = append(t.Rows, append([]string{"total", "", ""}, r.amounts(r.Total, ways)...))
	return t
}

// nextTable returns what more money buys.
func (r *Report) nextTable() table {
	t := table{Title: "WHAT MORE MONEY BUYS", Columns: []string{"", "additional " + r.Currency + " an hour", "nodes", "additional nodes for 1 " + r.Currency + " an hour", "then limited by"}}
	for _, s := range r.Next {
		each := "costs no more"
		if s.NodesEach > 0 {
			each = number.Text(s.NodesEach)
		}
		t.Rows = append(t.Rows, []string{s.Change, money(s.Hour), number.Text(float64(s.Nodes)), each, s.Binds})
	}
	t.After = fmt.Sprintf("These machines carry %s nodes. The limit is: %s.", number.Text(float64(r.Carries)), r.Binds)
	if len(r.Next) == 0 {
		t.Columns = []string{"no machine of the list raises the first limit alone"}
	}
	return t
}

// existingTable returns the bill of the existing cluster beside the plan.
func (r *Report) existingTable() table {
	e := r.Existing
	ways := r.waysToPay(e.Items)
	t := table{Title: "EXISTING CLUSTER: " + e.Name, Columns: append([]string{"", "", "quantity", "hour, " + string(r.Purchase)}, monthColumns(ways)...), Sum: true}
	for _, item := range e.Items {
		t.Rows = append(t.Rows, append([]string{item.Component, item.What, quantity(item)}, r.amounts(item.Prices, ways)...))
	}
	t.Rows = append(t.Rows,
		append([]string{"machines of components that both have", "existing", ""}, r.amounts(e.Planned.Existing, ways)...),
		append([]string{"", "planned", ""}, r.amounts(e.Planned.Plan, ways)...),
		append([]string{"total of the existing cluster", "", ""}, r.amounts(e.Total, ways)...))
	if e.Reported != "" {
		t.After = "Its report says of the price: " + e.Reported
	}
	return t
}

// waysToPay returns the ways to pay for which any machine has a price.
func (r *Report) waysToPay(items []Item) []Purchase {
	return slices.DeleteFunc(slices.Clone(Purchases), func(p Purchase) bool {
		return !slices.ContainsFunc(items, func(item Item) bool {
			_, priced := item.Prices[p]
			return priced && item.Unit == unitMachines
		})
	})
}

func monthColumns(ways []Purchase) []string {
	var columns []string
	for _, way := range ways {
		columns = append(columns, "month, "+string(way))
	}
	return columns
}

// amounts returns the cells of prices: of an hour as the machines are paid, and of a month for each way to pay.
func (r *Report) amounts(prices map[Purchase]Rate, ways []Purchase) []string {
	cells := []string{"no price"}
	if rate, priced := prices[r.Purchase]; priced {
		cells[0] = money(rate.Hour)
	}
	for _, way := range ways {
		cell := "no price"
		if rate, priced := prices[way]; priced {
			cell = money(rate.Month)
		}
		cells = append(cells, cell)
	}
	return cells
}

func quantity(item Item) string {
	if item.Unit == unitMachines {
		return number.Text(item.Quantity)
	}
	return number.Text(item.Quantity) + " " + item.Unit
}

// money formats an amount with two decimals and thousands separators.
func money(amount float64) string {
	text := fmt.Sprintf("%.2f", max(amount, -amount))
	for i := len(text) - len(".00") - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	if amount < 0 && text != "0.00" {
		return "-" + text
	}
	return text
}
