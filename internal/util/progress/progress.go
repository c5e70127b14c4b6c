// Package progress displays the progress of a command. On a terminal it redraws one line per task. To
// any other output it appends lines: one at the end of each task, and before that at most one per task
// every two seconds.
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
	// Task adds a task. total is its number of steps, or 0 if the number is not known.
	Task(name string, total int) Task
	// Close ends the display. A task that has not ended stays visible in its last state.
	Close()
}

// Task is a task in progress. The caller ends it with exactly one of Done, Fail and Interrupt.
type Task interface {
	// Say displays the current activity of a task without a known number of steps.
	Say(text string)
	// Set sets the number of completed steps.
	Set(done int)
	// Done ends the task as successful, Fail as failed, and Interrupt as interrupted by the user.
	Done(text string)
	Fail(text string)
	Interrupt()
}

// Fail ends a task that did not succeed. The task is displayed as interrupted if ctx was cancelled,
// otherwise as failed.
func Fail(ctx context.Context, task Task, text string) {
	if errors.Is(ctx.Err(), context.Canceled) {
		task.Interrupt()
		return
	}
	task.Fail(text)
}

// New returns a display for an output: a live display if the output is a terminal, otherwise lines.
func New(output io.Writer) Display {
	if file, ok := output.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return newLive(output)
	}
	return &plain{output: output}
}

// rateWindow is the period over which a meter averages the rate. It is short, so that the estimate of
// the remaining time follows changes of the rate.
const rateWindow = 10 * time.Second

// meter computes the rate and the remaining time of a task.
type meter struct {
	total   int // number of steps; 0 if it is not known
	done    int
	samples []sample // those within rateWindow and at least the last two, oldest first
}

// sample is the number of completed steps at one time.
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

// describe returns a text such as "3500/10000 (35%), 812/s, 8s left"; empty if total is 0.
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

// rate returns the average number of steps per second over the samples; 0 if it is not known.
func (m *meter) rate() float64 {
	if len(m.samples) < 2 {
		return 0
	}
	oldest, newest := m.samples[0], m.samples[len(m.samples)-1]
	return float64(newest.done-oldest.done) / newest.at.Sub(oldest.at).Seconds()
}
