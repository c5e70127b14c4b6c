// Package progress shows what a command is doing: live on a terminal, as plain
// lines, one every two seconds at most, anywhere else.
package progress

import (
	"context"
	"errors"
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

// Task is one thing in progress. Exactly one of Done, Fail and Interrupt ends it.
type Task interface {
	Say(text string)
	Set(done int)
	Done(text string)
	Fail(text string)
	Interrupt()
}

// Fail ends a task that did not succeed; who stopped it need not read of a failure.
func Fail(ctx context.Context, task Task, text string) {
	if errors.Is(ctx.Err(), context.Canceled) {
		task.Interrupt()
		return
	}
	task.Fail(text)
}

// New chooses how to show tasks on this output.
func New(output io.Writer) Display {
	if file, ok := output.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return newLive(output)
	}
	return &plain{output: output}
}

// rateWindow is how far back the rate looks: what was fast a minute ago says
// little about how long the rest will take.
const rateWindow = 10 * time.Second

// meter turns counts into a rate and a time that is left.
type meter struct {
	total   int
	done    int
	samples []sample // within rateWindow, oldest first
}

type sample struct {
	at   time.Time
	done int
}

func (m *meter) set(done int, now time.Time) {
	m.done = done
	m.samples = append(m.samples, sample{now, done})
	for len(m.samples) > 2 && now.Sub(m.samples[0].at) > rateWindow {
		m.samples = m.samples[1:]
	}
}

// describe reads like "3500/10000 (35%), 812/s, 8s left".
func (m *meter) describe() string {
	if m.total == 0 {
		return ""
	}
	text := fmt.Sprintf("%d/%d (%d%%)", m.done, m.total, 100*m.done/m.total)
	rate := m.rate()
	if rate <= 0 {
		return text
	}
	text += fmt.Sprintf(", %.0f/s", rate)
	if left := m.total - m.done; left > 0 {
		text += fmt.Sprintf(", %s left", time.Duration(float64(left)/rate*float64(time.Second)).Round(time.Second))
	}
	return text
}

func (m *meter) rate() float64 {
	if len(m.samples) < 2 {
		return 0
	}
	oldest, newest := m.samples[0], m.samples[len(m.samples)-1]
	return float64(newest.done-oldest.done) / newest.at.Sub(oldest.at).Seconds()
}
