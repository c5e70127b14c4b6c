package experiment

import (
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/chart"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
)

// Result of one run; its JSON is the same for all experiments.
type Result struct {
	Name    string    `json:"name"`
	Title   string    `json:"title"`
	Time    time.Time `json:"time"`
	Seconds float64   `json:"seconds"`
	// Command line that made it.
	Command string          `json:"command"`
	Machine machine.Machine `json:"machine"`
	// Versions by program.
	Versions map[string]string `json:"versions"`
	Scale    Scale             `json:"scale"`
	// Parameters by flag, those that follow from the scale too.
	Parameters map[string]string `json:"parameters"`

	Tables   []*Table  `json:"tables"`
	Series   []Series  `json:"series"`
	Markers  []Marker  `json:"markers"`
	Verdicts []Verdict `json:"verdicts"`
	Errors   *Tally    `json:"errors"`
	Ratios   []Ratio   `json:"ratios"`
	// Notes are what somebody who reads the figures has to know.
	Notes []string `json:"notes"`
	// Partial: it ended early, and has what was found until then.
	Partial bool   `json:"partial"`
	Error   string `json:"error,omitempty"`
}

// Table has a cell for each of its columns in every row.
type Table struct {
	Title   string   `json:"title"`
	Columns []Column `json:"columns"`
	Rows    [][]any  `json:"rows"`
}

// Column of a table; its unit is empty for names and counts.
type Column struct {
	Name string `json:"name"`
	Unit string `json:"unit,omitempty"`
}

// Columns reads names with their units behind a comma, as in "p99, ms".
func Columns(names ...string) []Column {
	columns := make([]Column, len(names))
	for i, name := range names {
		columns[i] = column(name)
	}
	return columns
}

// Table appends one, whose rows come one by one.
func (r *Result) Table(title string, columns ...string) *Table {
	t := &Table{Title: title, Columns: Columns(columns...), Rows: [][]any{}}
	r.Tables = append(r.Tables, t)
	return t
}

// Add appends a row of strings, integers and float64.
func (t *Table) Add(cells ...any) {
	if len(cells) != len(t.Columns) {
		panic(fmt.Sprintf("table %q has %d columns, not %d", t.Title, len(t.Columns), len(cells)))
	}
	t.Rows = append(t.Rows, cells)
}

// Series is a line of a plot. Those with one Plot are drawn together.
type Series struct {
	Plot string `json:"plot"`
	Name string `json:"name"`
	// X and Unit are what the axes show. Over Seconds, markers are shown.
	X      string  `json:"x"`
	Unit   string  `json:"unit"`
	LogX   bool    `json:"logX,omitempty"`
	LogY   bool    `json:"logY,omitempty"`
	Points []Point `json:"points"`
}

// Point is an X and a Y value of a series.
type Point = chart.Point

// Line appends a point to the series of that plot and name, which begins with its first.
func (r *Result) Line(s Series, x, y float64) {
	for i := range r.Series {
		if own := &r.Series[i]; own.Plot == s.Plot && own.Name == s.Name {
			own.Points = append(own.Points, Point{x, y})
			return
		}
	}
	s.Points = []Point{{x, y}}
	r.Series = append(r.Series, s)
}

// Seconds since the beginning of a run is the X of series over time.
const Seconds = "seconds"

// Marker is a moment that series over time show.
type Marker struct {
	// Plots whose names end so have it: markers are of one contender.
	Of      string  `json:"of"`
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Ratio compares two contenders of one run: ours ÷ peer.
type Ratio struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Ours  string  `json:"ours"`
	Peer  string  `json:"peer"`
	Of    float64 `json:"of"` // what ours has
	To    float64 `json:"to"` // what the peer has
	Ratio float64 `json:"ratio"`
	// MoreIsBetter is true of rates, false of costs and latencies.
	MoreIsBetter bool `json:"moreIsBetter"`
}

// Note appends one.
func (r *Result) Note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Figure is a number of one contender that others are compared in.
type Figure struct {
	Name, Unit   string
	Value        float64
	MoreIsBetter bool
}

// Compare makes ratios of the figures that both have.
func (r *Result) Compare(ours, peer string, of, to []Figure) {
	for _, our := range of {
		for _, their := range to {
			if our.Name == their.Name && their.Value > 0 && our.Value > 0 {
				r.Ratios = append(r.Ratios, Ratio{
					Name: our.Name, Unit: our.Unit, Ours: ours, Peer: peer, Of: our.Value, To: their.Value,
					Ratio: our.Value / their.Value, MoreIsBetter: our.MoreIsBetter,
				})
			}
		}
	}
}
