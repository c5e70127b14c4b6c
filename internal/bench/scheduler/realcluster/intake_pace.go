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

// Maximum number of requests in flight: with a latency of 0.25 s, 2,000 requests per second.
const paceConcurrency = 512

// made records the created pods and the times of their requests.
type made struct {
	mu    sync.Mutex
	count int
	// asked maps pods to the time at which their request was sent.
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
	// The value is in range, so that it cannot fail.
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

// perSecond returns the achieved rate.
func (m *made) perSecond() float64 {
	return float64(m.count) / max(m.last.Sub(m.first).Seconds(), 1e-9)
}

// createAtRate sends each request at its scheduled time, or later if the maximum number of requests is
// in flight.
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
		return nil, fmt.Errorf("creating pods at %d/s: %d of %d were created", s.rate, summary.Done, s.count)
	}
	return m, nil
}
