package progress

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestMeterCountsOnlyThisRunForTheRate(t *testing.T) {
	start := time.Unix(0, 0)
	m := newMeter(1000, start)
	m.set(500)
	if got := m.describe(start.Add(time.Second)); got != "500/1000 (50%)" {
		t.Errorf("before anything is done: %q", got)
	}
	m.set(700)
	if got := m.describe(start.Add(2 * time.Second)); got != "700/1000 (70%), 100/s, 3s left" {
		t.Errorf("midway: %q", got)
	}
	m.set(1000)
	if got := m.describe(start.Add(5 * time.Second)); got != "1000/1000 (100%), 100/s" {
		t.Errorf("at the end: %q", got)
	}
}

func TestPlainKeepsLinesApart(t *testing.T) {
	var out bytes.Buffer
	display := New(&out)
	task := display.Task("work", 100)
	for i := range 100 {
		task.Set(i)
	}
	task.Done("100 done")
	display.Close()
	if lines := strings.Count(out.String(), "\n"); lines != 1 || !strings.Contains(out.String(), "100 done (0.0s)") {
		t.Errorf("%q", out.String())
	}
}
