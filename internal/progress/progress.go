// Package progress shows what a command is doing: live on a terminal, as plain
// lines, one every two seconds at most, anywhere else.
package progress

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// Display shows any number of tasks at once.
type Display interface {
	// Task begins something; total is 0 when it cannot be counted.
	Task(name string, total int) Task
	// Close ends the display; tasks that are not done stay as they are.
	Close()
}

// Task is one thing in progress. Exactly one of Done and Fail ends it.
type Task interface {
	Say(text string)
	Set(done int)
	Done(text string)
	Fail(text string)
}

// New chooses how to show tasks on this output.
func New(output io.Writer) Display {
	if file, ok := output.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return newLive(output)
	}
	return &plain{output: output}
}

// meter turns counts into a rate and a time that is left.
type meter struct {
	total   int
	started time.Time
	first   int // count when it was first set: work of an earlier run
	done    int
	counted bool
}

func newMeter(total int, now time.Time) meter {
	return meter{total: total, started: now}
}

func (m *meter) set(done int) {
	if !m.counted {
		m.first, m.counted = done, true
	}
	m.done = done
}

// describe reads like "3500/10000 (35%), 812/s, 8s left".
func (m *meter) describe(now time.Time) string {
	if m.total == 0 {
		return ""
	}
	text := fmt.Sprintf("%d/%d (%d%%)", m.done, m.total, 100*m.done/m.total)
	elapsed := now.Sub(m.started).Seconds()
	if m.done <= m.first || elapsed <= 0 {
		return text
	}
	rate := float64(m.done-m.first) / elapsed
	text += fmt.Sprintf(", %.0f/s", rate)
	if left := m.total - m.done; left > 0 {
		text += fmt.Sprintf(", %s left", time.Duration(float64(left)/rate*float64(time.Second)).Round(time.Second))
	}
	return text
}
