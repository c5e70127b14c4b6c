package experiment

import (
	"fmt"
	"slices"
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
	// Partial reports that the run failed or was interrupted. The result contains what it had measured
	// until then. Error is the error with which it failed.
	Partial bool   `json:"partial"`
	Error   string `json:"error,omitempty"`
}

// Table is a table of a result. Each row has one cell per column.
type Table struct {
	Title   string   `json:"title"`
	Columns []Column `json:"columns"`
	Rows    [][]any  `json:"rows"`
}

// Column is the heading of a table column. Unit is empty for names and counts.
type Column struct {
	Name string `json:"name"`
	Unit string `json:"unit,omitempty"`
}

// Columns parses headings, such as "p99, ms", in which the unit follows a comma.
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
		panic(fmt.Sprintf("table %q has %d columns, but the row has %d cells", t.Title, len(t.Columns), len(cells)))
	}
	t.Rows = append(t.Rows, cells)
}

// Last returns the cells under these headings in the last row whose first cell is key. Of several columns with a heading,
// the last one counts. found is false if there is no such row or no such column.
func (t *Table) Last(key any, headings ...string) (cells []any, found bool) {
	for _, row := range slices.Backward(t.Rows) {
		if row[0] != key {
			continue
		}
		for _, heading := range headings {
			i := len(t.Columns) - 1
			for i >= 0 && t.Columns[i] != column(heading) {
				i--
			}
			if i < 0 {
				return nil, false
			}
			cells = append(cells, row[i])
		}
		return cells, true
	}
	return nil, false
}

// Series is a line of a chart. Series with the same Plot are drawn in one chart.
type Series struct {
	Plot string `json:"plot"`
	Name string `json:"name"`
	// X is the title of the horizontal axis, and Unit that of the vertical axis. If X is [Seconds], the
	// chart shows markers.
	X      string  `json:"x"`
	Unit   string  `json:"unit"`
	LogX   bool    `json:"logX,omitempty"`
	LogY   bool    `json:"logY,omitempty"`
	Points []Point `json:"points"`
}

// Point is an X and a Y value of a series.
type Point = chart.Point

// Line appends a point to the series with the plot and name of s. If the result has no such series, Line
// first adds s.
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

// Seconds is the X of a series whose X values are the time since the start of the run.
const Seconds = "seconds"

// Marker is an event of a run. Charts over time show it as a vertical line.
type Marker struct {
	// ChartSuffix selects the charts that show the marker: those of the contender that it belongs to,
	// whose titles end with this text.
	ChartSuffix string  `json:"of"`
	Name        string  `json:"name"`
	Seconds     float64 `json:"seconds"`
}

// Ratio compares two contenders of one run: Ratio is OursValue divided by PeerValue.
type Ratio struct {
	Name      string  `json:"name"`
	Unit      string  `json:"unit"`
	Ours      string  `json:"ours"`
	Peer      string  `json:"peer"`
	OursValue float64 `json:"of"`
	PeerValue float64 `json:"to"`
	Ratio     float64 `json:"ratio"`
	// MoreIsBetter is true for rates, and false for costs and latencies.
	MoreIsBetter bool `json:"moreIsBetter"`
}

// Note appends a note.
func (r *Result) Note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Figure is a value of one contender. It is compared with the value of another contender that has the same
// name.
type Figure struct {
	Name, Unit   string
	Value        float64
	MoreIsBetter bool
}

// Compare appends the ratios of the figures that both contenders have.
func (r *Result) Compare(ours, peer string, ourFigures, peerFigures []Figure) {
	for _, own := range ourFigures {
		for _, theirs := range peerFigures {
			if own.Name == theirs.Name && theirs.Value > 0 && own.Value > 0 {
				r.Ratios = append(r.Ratios, Ratio{
					Name: own.Name, Unit: own.Unit, Ours: ours, Peer: peer, OursValue: own.Value, PeerValue: theirs.Value,
					Ratio: own.Value / theirs.Value, MoreIsBetter: own.MoreIsBetter,
				})
			}
		}
	}
}
