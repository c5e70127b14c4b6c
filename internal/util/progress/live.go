package progress

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

const (
	nameWidth = 26
	barWidth  = 30

	refreshInterval = 120 * time.Millisecond
)

// live is the display on a terminal. It redraws one line per task.
type live struct {
	progress *mpb.Progress
	tasks    []*liveTask
}

func newLive(output io.Writer) *live {
	return &live{progress: mpb.New(mpb.WithOutput(output), mpb.WithWidth(barWidth), mpb.WithRefreshRate(refreshInterval))}
}

func (l *live) Task(name string, total int) Task {
	task := &liveTask{started: time.Now(), meter: meter{total: total}, barTotal: int64(max(total, 1))}
	filler := mpb.SpinnerStyle().PositionLeft().Build()
	if total > 0 {
		filler = mpb.BarStyle().Build()
	}
	task.bar = l.progress.MustAdd(task.barTotal, filler,
		mpb.BarFillerClearOnComplete(),
		mpb.PrependDecorators(decor.Name(name, decor.WC{W: nameWidth, C: decor.DindentRight})),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return " " + task.describe() })),
	)
	l.tasks = append(l.tasks, task)
	return task
}

// Close stops redrawing. Unfinished tasks stay visible in their last state.
func (l *live) Close() {
	for _, task := range l.tasks {
		task.bar.Abort(false)
	}
	l.progress.Wait()
}

type liveTask struct {
	bar      *mpb.Bar
	barTotal int64 // max(meter.total, 1)
	started  time.Time

	mu    sync.Mutex
	meter meter
	text  string
}

func (t *liveTask) Say(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = text
}

func (t *liveTask) Set(done int) {
	t.mu.Lock()
	t.meter.set(done, time.Now())
	t.mu.Unlock()
	// Set must not complete the bar: mpb does not redraw a complete bar, and the final text is not
	// known yet. Done, Fail and Interrupt complete the bar after they have set the text.
	t.bar.SetCurrent(min(int64(done), t.barTotal-1))
}

func (t *liveTask) Done(text string) {
	t.finish(text)
	t.bar.SetCurrent(t.barTotal)
}

func (t *liveTask) Fail(text string) {
	t.finish("failed: " + text)
	t.bar.SetCurrent(t.barTotal)
}

func (t *liveTask) Interrupt() {
	t.finish("interrupted")
	t.bar.SetCurrent(t.barTotal)
}

// finish sets the final text. describe returns it, because a meter without total has no counts.
func (t *liveTask) finish(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.meter.total = 0
	t.text = fmt.Sprintf("%s (%.1fs)", text, time.Since(t.started).Seconds())
}

// describe returns the text to the right of the bar.
func (t *liveTask) describe() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if counts := t.meter.describe(); counts != "" {
		return counts
	}
	return t.text
}
