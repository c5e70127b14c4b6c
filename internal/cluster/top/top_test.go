package top

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

func series(plot, name string, points ...experiment.Point) experiment.Series {
	return experiment.Series{Plot: plot, Name: name, Unit: "things", Points: points}
}

// TestBlocksGroupsSeriesByPlot: series are sorted by current value, and those that have ended
// are omitted.
func TestBlocksGroupsSeriesByPlot(t *testing.T) {
	blocks := Blocks([]experiment.Series{
		series("a", "falls", experiment.Point{98, 9}, experiment.Point{100, 1}),
		series("b", "other", experiment.Point{100, 5}),
		series("a", "rises", experiment.Point{98, 1}, experiment.Point{100, 2}),
		series("a", "over", experiment.Point{90, 100}),
		series("a", "none"),
	})
	if len(blocks) != 2 || blocks[0].Title != "a" || blocks[1].Title != "b" {
		t.Fatalf("%+v", blocks)
	}
	if lines := blocks[0].Lines; len(lines) != 2 || lines[0].Name != "rises" || lines[1].Now != 1 || lines[1].Past[0] != 9 {
		t.Errorf("%+v", lines)
	}
}

// TestRenderFitsTheTerminal: a page is never wider or higher than the terminal, and contains
// all lines if there is room.
func TestRenderFitsTheTerminal(t *testing.T) {
	f := Frame{Header: strings.Repeat("head ", 20), Footer: "q ends"}
	for _, title := range []string{"CPU", "memory", "store: requests", "latency"} {
		b := Block{Title: title, Unit: "cores"}
		for _, name := range []string{"kube-apiserver", "store", "a process with a very long name that nobody can read"} {
			b.Lines = append(b.Lines, Line{Name: title + name, Now: 12345.678, Past: []float64{0, 1, 2, 3}})
		}
		f.Blocks = append(f.Blocks, b)
	}
	for width := 1; width < 200; width += 7 {
		for height := 1; height < 60; height += 5 {
			lines := strings.Split(Render(f, width, height), "\n")
			if len(lines) > max(height, 3) {
				t.Fatalf("%d lines in a terminal of %d", len(lines), height)
			}
			for _, line := range lines {
				if utf8.RuneCountInString(line) > max(width, 1) {
					t.Fatalf("a line of %d in a terminal of %d: %q", utf8.RuneCountInString(line), width, line)
				}
			}
		}
	}
	all := Render(f, 130, 40)
	for _, b := range f.Blocks {
		if strings.Count(all, b.Title+"kube-apiserver") != 1 || !strings.Contains(all, b.Title+" (cores)") {
			t.Errorf("%s is not in\n%s", b.Title, all)
		}
	}
	if !strings.Contains(all, "12,346  ▁▃▅█") {
		t.Errorf("no curve in\n%s", all)
	}
}

func TestCurveScalesToTheLargestValue(t *testing.T) {
	for want, values := range map[string][]float64{"▁▁": {0, 0}, "▄█": {1, 2}, "▁█": {-1, 1}, "": nil} {
		if got := Curve(values, 10); got != want {
			t.Errorf("%v: %q, not %q", values, got, want)
		}
	}
	if got := Curve([]float64{9, 9, 1, 2}, 2); got != "▄█" {
		t.Errorf("the last two: %q", got)
	}
}

func TestTickRedrawsAndQQuits(t *testing.T) {
	frames := 0
	m := model{interval: time.Second, frame: func() Frame { frames++; return Frame{Header: "head"} }}
	resized, _ := m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	drawn, again := resized.Update(tick{})
	if frames != 1 || again == nil || !strings.Contains(drawn.View().Content, "head") {
		t.Errorf("%d frames, %+v", frames, drawn.View())
	}
	if _, end := drawn.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); end == nil {
		t.Error("q does not quit")
	} else if _, is := end().(tea.QuitMsg); !is {
		t.Error("q does not quit")
	}
}
