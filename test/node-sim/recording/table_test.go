package recording

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// phase is a part of the recording.
type phase struct {
	name       string
	begin, end time.Time
	// unit is what the figures are for, and units is its number for each sender.
	unit  string
	units float64
	// tolerance is the difference of two figures that is not reported, beside a fifth of the larger one.
	tolerance float64
}

const (
	// relativeTolerance is the share of the larger figure that two figures may differ.
	relativeTolerance = 0.2
)

// atRandomTimes reports whether the requests of a row have random times: watches begin again after 5 to 10 minutes, and the
// first report of an unchanged status follows after 2.5 to 7.5 minutes.
func atRandomTimes(row string) bool {
	return strings.HasPrefix(row, "watch ") || row == "patch nodes/status"
}

// row is a row of the table of a phase: the requests of each sender for a unit.
type row struct {
	name    string
	figures [3]float64
}

// rows returns the requests in a phase by verb and resource, sorted by name.
func (p phase) rows(requests []request) []row {
	counts := map[string]*[3]float64{}
	for _, r := range requests {
		if r.at.Before(p.begin) || !r.at.Before(p.end) {
			continue
		}
		if counts[r.row] == nil {
			counts[r.row] = &[3]float64{}
		}
		counts[r.row][r.sender] += 1 / p.units
	}
	var rows []row
	for name, figures := range counts {
		rows = append(rows, row{name, *figures})
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.name, b.name) })
	return rows
}

// differs reports whether a figure of node-sim differs from kubelet's.
func (p phase) differs(r row, mode sender) bool {
	ours, theirs := r.figures[mode], r.figures[kubelet]
	tolerance := p.tolerance
	if p.name == idle && atRandomTimes(r.name) {
		// One more or less of each node, however long the phase is.
		tolerance = max(tolerance, 1/p.end.Sub(p.begin).Minutes())
	}
	return math.Abs(ours-theirs) > tolerance+relativeTolerance*max(ours, theirs)
}

// write writes the table of a phase. It returns the differences that are not explained.
func (p phase) write(out io.Writer, requests []request) (unexplained []string) {
	fmt.Fprintf(out, "\n## %s, requests %s\n| | kubelet | node-sim wire | node-sim shared | Difference |\n|---|---|---|---|---|\n", p.name, p.unit)
	for _, r := range p.rows(requests) {
		why := ""
		for _, mode := range []sender{wire, shared} {
			if !p.differs(r, mode) {
				continue
			}
			reason, found := explain(p.name, r.name, mode)
			if !found {
				reason = "NOT EXPLAINED"
				unexplained = append(unexplained, fmt.Sprintf("%s: %s: %.2f of kubelet, %.2f of node-sim %s, %s",
					p.name, r.name, r.figures[kubelet], r.figures[mode], modeName(mode), p.unit))
			}
			if reason != why {
				why = joined(why, reason)
			}
		}
		fmt.Fprintf(out, "| %s | %.2f | %.2f | %.2f | %s |\n", r.name, r.figures[kubelet], r.figures[wire], r.figures[shared], why)
	}
	return unexplained
}

func joined(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

func modeName(mode sender) string {
	if mode == wire {
		return "wire"
	}
	return "shared"
}

// Requests at random times may differ by one of each node, others by little.
func TestDifferencesAreFound(t *testing.T) {
	begin := time.Now()
	p := phase{name: idle, begin: begin, end: begin.Add(5 * time.Minute), tolerance: 0.15}
	for _, c := range []struct {
		row          string
		theirs, ours float64
		differs      bool
	}{
		{"patch nodes/status", 0.2, 0, false}, {"patch nodes/status", 0.5, 0.1, true},
		{"watch pods", 0, 0.2, false}, {"watch pods", 0, 0.4, true},
		{"update leases", 6, 5.9, false}, {"update leases", 6, 4.5, true}, {"get nodes", 0, 0.2, true},
	} {
		r := row{name: c.row}
		r.figures[kubelet], r.figures[wire] = c.theirs, c.ours
		if got := p.differs(r, wire); got != c.differs {
			t.Errorf("%s, %v of kubelet and %v of node-sim: differs %v, want %v", c.row, c.theirs, c.ours, got, c.differs)
		}
	}
}
