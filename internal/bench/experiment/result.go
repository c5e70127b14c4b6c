package experiment

import (
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/chart"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
)

// Result is the result of one run. Its JSON has the same form for all experiments.
type Result struct {
	Name    string    `json:"name"`
	Title   string    `json:"title"`
	Time    time.Time `json:"time"`
	Seconds float64   `json:"seconds"`
	// Command is the command line of the run.
	Command string          `json:"command"`
	Machine machine.Machine `json:"machine"`
	// Versions maps programs to their versions.
	Versions map[string]string `json:"versions"`
	Scale    Scale             `json:"scale"`
	// Parameters maps flags to their values, including those that follow from the scale.
	Parameters map[string]string `json:"parameters"`

	Tables   []*Table  `json:"tables"`
	Series   []Series  `json:"series"`
	Markers  []Marker  `json:"markers"`
	Verdicts []Verdict `json:"verdicts"`
	Errors   *Tally    `json:"errors"`
	Ratios   []Ratio   `json:"ratios"`
	// Notes are remarks that a reader needs to interpret the figures.
	Notes []string `json:"notes"`
	// Partial reports that the run ended early; the result has what was measured until then.
	Partial bool   `json:"partial"`
	Error   string `json:"error,omitempty"`
}

// Table has one cell for each column in every row.
type Table struct {
	Title   string   `json:"title"`
	Columns []Column `json:"columns"`
	Rows    [][]any  `json:"rows"`
}

// Column is the heading of a table column; Unit is empty for names and counts.
type Column struct {
	Name string `json:"name"`
	Unit string `json:"unit,omitempty"`
}

// Columns parses headings with their units after a comma, such as "p99, ms".
func Columns(names ...string) []Column {
	columns := make([]Column, len(names))
	for i, name := range names {
		columns[i] = column(name)
	}
	return columns
}

// Table appends an empty table and returns it.
func (r *Result) Table(title string, columns ...string) *Table {
	t := &Table{Title: title, Columns: Columns(columns...), Rows: [][]any{}}
	r.Tables = append(r.Tables, t)
	return t
}

// Add appends a row whose cells are strings, integers or float64.
func (t *Table) Add(cells ...any) {
	if len(cells) != len(t.Columns) {
		panic(fmt.Sprintf("table %q has %d columns, not %d", t.Title, len(t.Columns), len(cells)))
	}
	t.Rows = append(t.Rows, cells)
}

// Series is a line of a chart. Series with the same Plot are drawn in one chart.
type Series struct {
	Plot string `json:"plot"`
	Name string `json:"name"`
	// X and Unit are the titles of the axes. If X is Seconds, the chart shows markers.
	X      string  `json:"x"`
	Unit   string  `json:"unit"`
	LogX   bool    `json:"logX,omitempty"`
	LogY   bool    `json:"logY,omitempty"`
	Points []Point `json:"points"`
}

// Point is an X and a Y value of a series.
type Point = chart.Point

// Line appends a point to the series with the plot and name of s, and adds that series before its
// first point.
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

// Seconds is the X of series over the time since the start of the run.
const Seconds = "seconds"

// Marker is a point in time that charts over time show as a vertical line.
type Marker struct {
	// Of is the suffix of the charts that show the marker: the contender that it belongs to.
	Of      string  `json:"of"`
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Ratio compares two contenders of one run: the value of ours divided by that of the peer.
type Ratio struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Ours  string  `json:"ours"`
	Peer  string  `json:"peer"`
	Of    float64 `json:"of"` // value of Ours
	To    float64 `json:"to"` // value of Peer
	Ratio float64 `json:"ratio"`
	// MoreIsBetter is true for rates, and false for costs and latencies.
	MoreIsBetter bool `json:"moreIsBetter"`
}

// Note appends a note.
func (r *Result) Note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Figure is a value of one contender that is compared with that of another.
type Figure struct {
	Name, Unit   string
	Value        float64
	MoreIsBetter bool
}

// Compare appends the ratios of the figures that both contenders have.
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
