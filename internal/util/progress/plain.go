package progress

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// plainInterval is the minimum interval between two progress lines of a task.
const plainInterval = 2 * time.Second

// plain is the display for an output that is not a terminal. It only appends lines, as in a log file.
type plain struct {
	mu     sync.Mutex
	output io.Writer
}

func (p *plain) Task(name string, total int) Task {
	now := time.Now()
	return &plainTask{display: p, name: name, meter: meter{total: total}, started: now, lastLine: now}
}

func (p *plain) Close() {}

func (p *plain) writeLine(name, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.output, "%-24s %s\n", name, text)
}

type plainTask struct {
	display *plain
	name    string
	started time.Time

	mu       sync.Mutex
	meter    meter
	text     string
	lastLine time.Time
}

func (t *plainTask) Say(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text != t.text {
		t.text = text
		t.writeProgress(text)
	}
}

func (t *plainTask) Set(done int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.meter.set(done, time.Now())
	t.writeProgress(t.meter.describe())
}

func (t *plainTask) Done(text string) { t.display.writeLine(t.name, text+t.elapsed()) }
func (t *plainTask) Fail(text string) { t.display.writeLine(t.name, "FAILED: "+text+t.elapsed()) }
func (t *plainTask) Interrupt()       { t.display.writeLine(t.name, "interrupted"+t.elapsed()) }

// elapsed returns the time since the start of the task, as a suffix of its last line.
func (t *plainTask) elapsed() string {
	return fmt.Sprintf(" (%.1fs)", time.Since(t.started).Seconds())
}

// writeProgress writes a line, but only if plainInterval has passed since the previous progress line of
// the task, or since its start.
func (t *plainTask) writeProgress(text string) {
	if now := time.Now(); now.Sub(t.lastLine) >= plainInterval {
		t.lastLine = now
		t.display.writeLine(t.name, text)
	}
}
