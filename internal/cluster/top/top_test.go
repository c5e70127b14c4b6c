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

// TestBlocksGroupsSeriesByPlot checks that series of a plot are sorted by their current values, and
// that series that have ended are omitted.
func TestBlocksGroupsSeriesByPlot(t *testing.T) {
	blocks := Blocks([]experiment.Series{
		series("a", "falls", experiment.Point{98, 9}, experiment.Point{100, 1}),
		series("b", "other", experiment.Point{100, 5}),
		series("a", "rises", experiment.Point{98, 1}, experiment.Point{100, 2}),
		series("a", "ended", experiment.Point{90, 100}),
		series("a", "empty"),
	})
	if len(blocks) != 2 || blocks[0].Title != "a" || blocks[1].Title != "b" {
		t.Fatalf("Blocks() = %+v, want the blocks a and b", blocks)
	}
	if lines := blocks[0].Lines; len(lines) != 2 || lines[0].Name != "rises" || lines[1].Now != 1 || lines[1].Past[0] != 9 {
		t.Errorf("lines of block a = %+v, want rises, then falls with 9 before 1", lines)
	}
}

// TestRenderFitsTerminal checks that a page is never wider or higher than the terminal, and that it
// contains all lines if there is room.
func TestRenderFitsTerminal(t *testing.T) {
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
				t.Fatalf("Render() for a terminal of %d × %d = %d lines, want at most %d", width, height, len(lines), max(height, 3))
			}
			for _, line := range lines {
				if n := utf8.RuneCountInString(line); n > max(width, 1) {
					t.Fatalf("Render() for a terminal of %d × %d has a line of %d characters: %q", width, height, n, line)
				}
			}
		}
	}
	page := Render(f, 130, 40)
	for _, b := range f.Blocks {
		if strings.Count(page, b.Title+"kube-apiserver") != 1 || !strings.Contains(page, b.Title+" (cores)") {
			t.Errorf("Render() returned\n%s\nwant block %s in it", page, b.Title)
		}
	}
	if want := "12,346  ▁▃▅█"; !strings.Contains(page, want) {
		t.Errorf("Render() returned\n%s\nwant the curve %s in it", page, want)
	}
}

func TestSparklineScalesToLargestValue(t *testing.T) {
	for want, values := range map[string][]float64{"▁▁": {0, 0}, "▄█": {1, 2}, "▁█": {-1, 1}, "": nil} {
		if got := Sparkline(values, 10); got != want {
			t.Errorf("Sparkline(%v, 10) = %q, want %q", values, got, want)
		}
	}
	if got := Sparkline([]float64{9, 9, 1, 2}, 2); got != "▄█" {
		t.Errorf("Sparkline([9 9 1 2], 2) = %q, want %q of the last two values", got, "▄█")
	}
}

func TestTickRedrawsAndQQuits(t *testing.T) {
	frames := 0
	m := model{interval: time.Second, nextFrame: func() Frame { frames++; return Frame{Header: "head"} }}
	resized, _ := m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	drawn, nextTick := resized.Update(tick{})
	if frames != 1 || nextTick == nil || !strings.Contains(drawn.View().Content, "head") {
		t.Errorf("a tick drew %d frames, next command set: %v, view %+v, want one frame with %q and another tick", frames, nextTick != nil, drawn.View(), "head")
	}
	if _, command := drawn.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); command == nil {
		t.Error("the key q returned no command, want one that quits")
	} else if message, ok := command().(tea.QuitMsg); !ok {
		t.Errorf("the command of the key q returned %v, want tea.QuitMsg", message)
	}
}
