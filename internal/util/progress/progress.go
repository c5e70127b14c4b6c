// Package progress shows the progress of a command: as live lines on a terminal, otherwise as
// log lines, at most one every two seconds for each task.
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

// Display shows any number of concurrent tasks.
type Display interface {
	// Task adds a task with total steps; 0 if the steps cannot be counted.
	Task(name string, total int) Task
	// Close stops the display. Unfinished tasks stay as they are.
	Close()
}

// Task is a task in progress. Exactly one of Done, Fail and Interrupt must be called at its
// end.
type Task interface {
	// Say sets the current status text of a task without a count.
	Say(text string)
	// Set sets the number of completed steps.
	Set(done int)
	// Done, Fail and Interrupt end the task as successful, failed or interrupted.
	Done(text string)
	Fail(text string)
	Interrupt()
}

// Fail ends a task as interrupted if the user has cancelled the context, otherwise as failed.
func Fail(ctx context.Context, task Task, text string) {
	if errors.Is(ctx.Err(), context.Canceled) {
		task.Interrupt()
		return
	}
	task.Fail(text)
}

// New returns a live display if the output is a terminal, otherwise one with log lines.
func New(output io.Writer) Display {
	if file, ok := output.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return newLive(output)
	}
	return &plain{output: output}
}

// rateWindow is the period over which the rate is averaged. Older samples say little about
// the remaining time.
const rateWindow = 10 * time.Second

// meter computes the rate and the remaining time from counts.
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
