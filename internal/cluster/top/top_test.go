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

// TestBlocksGroupsSeriesByPlot also checks that series are sorted by current value, and that those that
// have ended are omitted.
func TestBlocksGroupsSeriesByPlot(t *testing.T) {
	blocks := Blocks([]experiment.Series{
		series("a", "falls", experiment.Point{98, 9}, experiment.Point{100, 1}),
		series("b", "other", experiment.Point{100, 5}),
		series("a", "rises", experiment.Point{98, 1}, experiment.Point{100, 2}),
		series("a", "over", experiment.Point{90, 100}),
		series("a", "none"),
	})
	if len(blocks) != 2 || blocks[0].Title != "a" || blocks[1].Title != "b" {
		t.Fatalf("Blocks returned %+v, want the blocks a and b", blocks)
	}
	if lines := blocks[0].Lines; len(lines) != 2 || lines[0].Name != "rises" || lines[1].Now != 1 || lines[1].Past[0] != 9 {
		t.Errorf("the lines of block a are %+v, want rises and falls", lines)
	}
}

// TestRenderFitsTheTerminal checks that a frame is never wider or higher than the terminal, and that it
// contains all lines if the terminal is large enough.
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
				t.Fatalf("Render returned %d lines for a terminal of %d lines", len(lines), height)
			}
			for _, line := range lines {
				if utf8.RuneCountInString(line) > max(width, 1) {
					t.Fatalf("a line has %d characters in a terminal with %d columns: %q", utf8.RuneCountInString(line), width, line)
				}
			}
		}
	}
	all := Render(f, 130, 40)
	for _, b := range f.Blocks {
		if strings.Count(all, b.Title+"kube-apiserver") != 1 || !strings.Contains(all, b.Title+" (cores)") {
			t.Errorf("the block %s or its first line is missing in\n%s", b.Title, all)
		}
	}
	if !strings.Contains(all, "12,346  ▁▃▅█") {
		t.Errorf("a value with its sparkline is missing in\n%s", all)
	}
}

func TestSparklineScalesToTheLargestValue(t *testing.T) {
	for want, values := range map[string][]float64{"▁▁": {0, 0}, "▄█": {1, 2}, "▁█": {-1, 1}, "": nil} {
		if got := Sparkline(values, 10); got != want {
			t.Errorf("Sparkline(%v) = %q, want %q", values, got, want)
		}
	}
	if got := Sparkline([]float64{9, 9, 1, 2}, 2); got != "▄█" {
		t.Errorf("Sparkline of the last two values = %q, want %q", got, "▄█")
	}
}

func TestTickRedrawsAndQQuits(t *testing.T) {
	frames := 0
	m := model{interval: time.Second, nextFrame: func() Frame { frames++; return Frame{Header: "head"} }}
	resized, _ := m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	drawn, again := resized.Update(tick{})
	if frames != 1 || again == nil || !strings.Contains(drawn.View().Content, "head") {
		t.Errorf("after one tick %d frames were requested, and the view is %+v", frames, drawn.View())
	}
	if _, command := drawn.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); command == nil {
		t.Error("the key q returned no command")
	} else if _, quits := command().(tea.QuitMsg); !quits {
		t.Error("the command of the key q does not quit")
	}
}
