package realcluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
)

// Requests in flight at most: an API server that answers in a quarter of a second can
// be asked 2,000 times a second.
const paceConcurrency = 512

// made are pods that were created, and when.
type made struct {
	mu    sync.Mutex
	count int
	// asked is when the request for each pod was sent, by its name.
	asked       map[string]time.Time
	first, last time.Time
	latency     *hdrhistogram.Histogram // of requests, in microseconds
}

func newMade(count int) *made {
	return &made{asked: make(map[string]time.Time, count), latency: newLatency()}
}

func newLatency() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(time.Hour/time.Microsecond), 3)
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	// In range, so it cannot fail.
	_ = h.RecordValue(min(max(1, d.Microseconds()), h.HighestTrackableValue()))
}

func (m *made) note(name string, asked, answered time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	m.asked[name] = asked
	record(m.latency, answered.Sub(asked))
	if m.first.IsZero() || asked.Before(m.first) {
		m.first = asked
	}
	if answered.After(m.last) {
		m.last = answered
	}
}

// perSecond is the rate that was really reached.
func (m *made) perSecond() float64 {
	return float64(m.count) / max(m.last.Sub(m.first).Seconds(), 1e-9)
}

// createAtRate sends each request when its time has come, or as soon after as one of
// those in flight is answered.
func (s *intakeStep) createAtRate(ctx context.Context, task progress.Task) (*made, error) {
	m, start := newMade(s.count), time.Now()
	interval := time.Second / time.Duration(s.rate)
	o := s.bulkOptions(s.prefix(), s.count)
	summary, err := bulk.Run(ctx, bulk.Job{
		Range: o.Range, Concurrency: paceConcurrency, Progress: task.Set,
		AlreadyDone: func(error) bool { return false },
		Do: func(ctx context.Context, name string, number, connection int) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Until(start.Add(time.Duration(number) * interval))):
			}
			pod := s.pods.Make(s.options.Shape.Namespace, name)
			asked := time.Now()
			if err := s.clients.CreatePod(ctx, connection, pod); err != nil {
				return err
			}
			m.note(name, asked, time.Now())
			return nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("creating pods at %d/s: %w", s.rate, err)
	}
	if summary.Done != s.count {
		return nil, fmt.Errorf("creating pods at %d/s: %d of %d were made", s.rate, summary.Done, s.count)
	}
	return m, nil
}
