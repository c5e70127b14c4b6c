package storedata

import (
	"context"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

const (
	mebibyte    = 1 << 20
	sayInterval = 100 * time.Millisecond
)

// Transfer displays how many bytes were copied, and at which rate. It is an [io.Writer] that counts what is
// written to it. Its Write fails when the context is done, which ends the copy.
type Transfer struct {
	ctx     context.Context
	task    progress.Task
	total   int64 // 0 if it is not known
	done    int64
	started time.Time
	said    time.Time
}

// NewTransfer adds a task with this name to a display. total is the number of bytes, or 0 if it is not known.
func NewTransfer(ctx context.Context, display progress.Display, name string, total int64) *Transfer {
	return &Transfer{ctx: ctx, task: display.Task(name, 0), total: total, started: time.Now()}
}

// Write implements [io.Writer].
func (t *Transfer) Write(p []byte) (int, error) {
	if err := t.ctx.Err(); err != nil {
		return 0, err
	}
	t.done += int64(len(p))
	if now := time.Now(); now.Sub(t.said) >= sayInterval {
		t.said = now
		t.task.Say(t.describe(now))
	}
	return len(p), nil
}

// describe returns a text such as "120 of 800 MiB (15%), 203 MiB/s".
func (t *Transfer) describe(now time.Time) string {
	text := fmt.Sprintf("%d MiB", t.done/mebibyte)
	if t.total > 0 {
		text = fmt.Sprintf("%d of %d MiB (%d%%)", t.done/mebibyte, t.total/mebibyte, 100*t.done/t.total)
	}
	return fmt.Sprintf("%s, %.0f MiB/s", text, float64(t.done)/mebibyte/max(now.Sub(t.started).Seconds(), 1e-3))
}

// End ends the task, as successful if err is nil.
func (t *Transfer) End(err error) {
	if err != nil {
		progress.Fail(t.ctx, t.task, err.Error())
		return
	}
	seconds := max(time.Since(t.started).Seconds(), 1e-3)
	t.task.Done(fmt.Sprintf("%.1f MiB, %.0f MiB/s", float64(t.done)/mebibyte, float64(t.done)/mebibyte/seconds))
}
