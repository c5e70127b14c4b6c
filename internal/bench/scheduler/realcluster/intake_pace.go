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

// paceConcurrency is the maximum number of requests in flight. It suffices for 2,000 requests per second
// with a latency of 0.25 s.
const paceConcurrency = 512

// creations records the created pods and the times of their requests.
type creations struct {
	mu    sync.Mutex
	count int
	// sent maps pods to the times at which the requests to create them were sent.
	sent map[string]time.Time
	// first is when the first request was sent, and last when the last response arrived.
	first, last time.Time
	latency     *hdrhistogram.Histogram // of requests, in microseconds
}

func newCreations(count int) *creations {
	return &creations{sent: make(map[string]time.Time, count), latency: newLatency()}
}

func newLatency() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(time.Hour/time.Microsecond), 3)
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	// RecordValue cannot fail, because the value is within the range of the histogram.
	_ = h.RecordValue(min(max(1, d.Microseconds()), h.HighestTrackableValue()))
}

func (m *creations) add(name string, sent, answered time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	m.sent[name] = sent
	record(m.latency, answered.Sub(sent))
	if m.first.IsZero() || sent.Before(m.first) {
		m.first = sent
	}
	if answered.After(m.last) {
		m.last = answered
	}
}

// perSecond returns the number of pods that were created per second.
func (m *creations) perSecond() float64 {
	return float64(m.count) / max(m.last.Sub(m.first).Seconds(), 1e-9)
}

// createAtRate creates the pods. It sends each request at its scheduled time, or later if the maximum number
// of requests is in flight.
func (s *intakeStep) createAtRate(ctx context.Context, task progress.Task) (*creations, error) {
	m, start := newCreations(s.count), time.Now()
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
			sent := time.Now()
			if err := s.clients.CreatePod(ctx, connection, pod); err != nil {
				return err
			}
			m.add(name, sent, time.Now())
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
