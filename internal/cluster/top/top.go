// Package top shows at a glance what a cluster does: the same series as the plots of
// experiments, as numbers and small curves in the terminal.
//
// What is shown is made of series by [Blocks] and drawn by [Render], neither of which knows
// a terminal.
package top

import (
	"cmp"
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

// Block is one plot.
type Block struct {
	Title string `json:"title"`
	Unit  string `json:"unit"`
	Lines []Line `json:"lines"` // the largest first
}

// Line is a series: what it is now, and was before, the oldest first.
type Line struct {
	Name string    `json:"name"`
	Now  float64   `json:"now"`
	Past []float64 `json:"past"`
}

const (
	// What was not sampled for so long is not any more.
	staleSeconds = 5
	// PastPoints are how many seconds a curve shows.
	PastPoints = 60
)

// Blocks are the plots that series are of, in their order. Series that have ended are left
// out.
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
	// What all take comes first; CPU is known last.
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
