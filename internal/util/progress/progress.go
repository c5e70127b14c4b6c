// Package progress displays the progress of a command. On a terminal it redraws one line per task.
// Elsewhere it appends plain lines, at most one per task every two seconds.
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

// Display displays any number of concurrent tasks.
type Display interface {
	// Task starts a task with this number of steps; total is 0 if the number is not known.
	Task(name string, total int) Task
	// Close ends the display. Unfinished tasks stay visible in their last state.
	Close()
}

// Task is a task in progress. The caller ends it with exactly one of Done, Fail and Interrupt.
type Task interface {
	// Say displays a text for a task that has no known number of steps.
	Say(text string)
	// Set sets the number of completed steps.
	Set(done int)
	Done(text string)
	Fail(text string)
	Interrupt()
}

// Fail ends a task that did not succeed. If ctx was cancelled, the task is displayed as interrupted
// and not as failed.
func Fail(ctx context.Context, task Task, text string) {
	if errors.Is(ctx.Err(), context.Canceled) {
		task.Interrupt()
		return
	}
	task.Fail(text)
}

// New returns a display for an output, which may be a terminal.
func New(output io.Writer) Display {
	if file, ok := output.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return newLive(output)
	}
	return &plain{output: output}
}

// rateWindow is the period over which the rate is averaged. It is short, so that the estimate of the
// remaining time follows changes of the rate.
const rateWindow = 10 * time.Second

// meter computes the rate and the remaining time of a task.
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

// describe returns a text such as "3500/10000 (35%), 812/s, 8s left".
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
