package progress

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const plainInterval = 2 * time.Second

// plain is the display outside a terminal. It writes lines that are suitable for a log file.
type plain struct {
	mu     sync.Mutex
	output io.Writer
}

func (p *plain) Task(name string, total int) Task {
	now := time.Now()
	return &plainTask{display: p, name: name, meter: meter{total: total}, started: now, lastLine: now}
}

func (p *plain) Close() {}

func (p *plain) line(name, text string) {
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
		t.maybeLine(text)
	}
}

func (t *plainTask) Set(done int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.meter.set(done, time.Now())
	t.maybeLine(t.meter.describe())
}

func (t *plainTask) Done(text string) { t.display.line(t.name, text+t.took()) }
func (t *plainTask) Fail(text string) { t.display.line(t.name, "FAILED: "+text+t.took()) }
func (t *plainTask) Interrupt()       { t.display.line(t.name, "interrupted"+t.took()) }

func (t *plainTask) took() string {
	return fmt.Sprintf(" (%.1fs)", time.Since(t.started).Seconds())
}

// maybeLine writes a line unless the previous line of the task is less than plainInterval ago.
func (t *plainTask) maybeLine(text string) {
	if now := time.Now(); now.Sub(t.lastLine) >= plainInterval {
		t.lastLine = now
		t.display.line(t.name, text)
	}
}
