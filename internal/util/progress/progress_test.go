package progress

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestMeterAveragesOverTheRateWindow(t *testing.T) {
	start := time.Unix(0, 0)
	m := meter{total: 1000}
	check := func(second, done int, want string) {
		t.Helper()
		m.set(done, start.Add(time.Duration(second)*time.Second))
		if got := m.describe(); got != want {
			t.Errorf("describe() after %d s = %q, want %q", second, got, want)
		}
	}
	check(0, 500, "500/1000 (50%)")
	check(2, 700, "700/1000 (70%), 100/s, 3s left")
	check(6, 700, "700/1000 (70%), 33/s, 9s left")
	check(15, 710, "710/1000 (71%), 1/s, 4m21s left")
	check(16, 1000, "1000/1000 (100%), 30/s")
}

func TestPlainLimitsTheRateOfLines(t *testing.T) {
	var out bytes.Buffer
	display := New(&out)
	task := display.Task("work", 100)
	for i := range 100 {
		task.Set(i)
	}
	task.Done("100 done")
	display.Close()
	if lines := strings.Count(out.String(), "\n"); lines != 1 || !strings.Contains(out.String(), "100 done (0.0s)") {
		t.Errorf("output = %q, want one line with %q", out.String(), "100 done (0.0s)")
	}
}
