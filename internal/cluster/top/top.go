// Package top displays the metrics of a running cluster in the terminal, as numbers and sparklines. The
// time series are those that experiments plot.
//
// [Blocks] groups series into blocks, [Render] draws a [Frame] of blocks as text, and [Live]
// redraws it in the terminal. Only Live depends on a terminal.
package top

import (
	"cmp"
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

// Block is one plot: several series with the same unit.
type Block struct {
	Title string `json:"title"`
	Unit  string `json:"unit"`
	Lines []Line `json:"lines"` // sorted by current value, largest first
}

// Line is one series of a plot.
type Line struct {
	Name string    `json:"name"`
	Now  float64   `json:"now"`
	Past []float64 `json:"past"` // one value per second, oldest first; includes Now
}

const (
	// staleSeconds is the time without a sample after which a series has ended.
	staleSeconds = 5
	// PastPoints is the maximum number of values in [Line].Past.
	PastPoints = 60
)

// Blocks groups series by plot. CPU and memory come first; the other plots keep their order. Series that
// have ended are omitted.
func Blocks(series []experiment.Series) []Block {
	newest := 0.0
	for _, s := range series {
		if len(s.Points) > 0 {
			newest = max(newest, s.Points[len(s.Points)-1][0])
		}
	}
	var blocks []Block
	for _, s := range series {
		if len(s.Points) == 0 || s.Points[len(s.Points)-1][0] < newest-staleSeconds {
			continue
		}
		i := slices.IndexFunc(blocks, func(b Block) bool { return b.Title == s.Plot })
		if i < 0 {
			i = len(blocks)
			blocks = append(blocks, Block{Title: s.Plot, Unit: s.Unit})
		}
		blocks[i].Lines = append(blocks[i].Lines, line(&s))
	}
	// The plots are in the order of their first samples, and CPU usage needs two measurements, so CPU
	// is not the first plot without this sorting.
	rank := func(b Block) int { return slices.Index([]string{"memory", experiment.CPUPlot}, b.Title) }
	slices.SortStableFunc(blocks, func(a, b Block) int { return cmp.Compare(rank(b), rank(a)) })
	for i := range blocks {
		slices.SortStableFunc(blocks[i].Lines, func(a, b Line) int { return cmp.Compare(b.Now, a.Now) })
	}
	return blocks
}

func line(s *experiment.Series) Line {
	l := Line{Name: s.Name, Now: s.Points[len(s.Points)-1][1]}
	for _, point := range s.Points[max(0, len(s.Points)-PastPoints):] {
		l.Past = append(l.Past, point[1])
	}
	return l
}
