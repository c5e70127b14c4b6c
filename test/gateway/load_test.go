package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	workers      = 8
	workPause    = 20 * time.Millisecond
	workTimeout  = 10 * time.Second
	faultReaders = 10
)

// failure is a failed request of a worker.
type failure struct {
	verb string
	err  error
	took time.Duration
}

func (f failure) String() string { return fmt.Sprintf("%s after %v: %v", f.verb, f.took, f.err) }

// load is clients that read and write all the time, and informers that watch.
type load struct {
	readers []*reader
	stop    context.CancelFunc
	all     sync.WaitGroup

	mutex    sync.Mutex
	failures []failure
	requests int
	slowest  time.Duration
	// succeeded is when each worker succeeded last.
	succeeded [workers]time.Time
}

// startLoad starts workers and informers through the gateway.
func (c *cluster) startLoad(t *testing.T) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{stop: cancel}
	for i := range faultReaders {
		l.readers = append(l.readers, c.newReader(t, i))
	}
	for i := range workers {
		config := c.admin(t, c.gateway)
		config.UserAgent, config.Dial = fmt.Sprintf("worker-%d", i), (&dialer{}).DialContext
		client, err := kubernetes.NewForConfig(config)
		must(t, err)
		l.all.Go(func() { l.work(ctx, client, i) })
	}
	t.Cleanup(l.end)
	return l
}

func (l *load) end() {
	l.stop()
	l.all.Wait()
}

// work creates, reads, lists, changes and deletes objects until the context ends.
func (l *load) work(ctx context.Context, client kubernetes.Interface, number int) {
	maps := client.CoreV1().ConfigMaps("kube-public")
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("load-%d-%d", number, n)
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": strings.Repeat("x", 500)}}
		for _, request := range []struct {
			verb string
			send func(context.Context) error
		}{
			{"create", func(ctx context.Context) error {
				_, err := maps.Create(ctx, object, metav1.CreateOptions{})
				return err
			}},
			{"get", func(ctx context.Context) error { _, err := maps.Get(ctx, name, metav1.GetOptions{}); return err }},
			{"list", func(ctx context.Context) error { _, err := maps.List(ctx, metav1.ListOptions{Limit: 5}); return err }},
			{"delete", func(ctx context.Context) error { return maps.Delete(ctx, name, metav1.DeleteOptions{}) }},
		} {
			started := time.Now()
			limited, cancel := context.WithTimeout(ctx, workTimeout)
			err := request.send(limited)
			cancel()
			if ctx.Err() != nil {
				return
			}
			l.note(request.verb, err, time.Since(started), number)
			time.Sleep(workPause)
		}
	}
}

// note records a request. An object that was created, or not, by a request that failed makes others fail later; these are
// answers of an API server and no failures.
func (l *load) note(verb string, err error, took time.Duration, worker int) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.requests++
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		l.succeeded[worker] = time.Now()
		l.slowest = max(l.slowest, took)
		return
	}
	l.failures = append(l.failures, failure{verb, err, took})
}

// take returns what was recorded since the last call.
func (l *load) take() ([]failure, int, time.Duration) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	failures, requests, slowest := l.failures, l.requests, l.slowest
	l.failures, l.requests, l.slowest = nil, 0, 0
	return failures, requests, slowest
}

// allSucceeded reports whether each worker has succeeded after a time.
func (l *load) allSucceeded(since time.Time) bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return !slices.ContainsFunc(l.succeeded[:], func(last time.Time) bool { return last.Before(since) })
}

// Kinds of failures that docs/kube-gateway.md names.

// isMaybeExecuted: a write was sent, and its connection ended before the answer.
func isMaybeExecuted(f failure) bool {
	return f.verb != "get" && f.verb != "list" && strings.Contains(f.err.Error(), "the request may have been executed")
}

// isBrokenAnswer: the body of an answer broke off.
func isBrokenAnswer(f failure) bool {
	return strings.Contains(f.err.Error(), "stream error when reading response body") || strings.Contains(f.err.Error(), "unexpected EOF")
}

// isTimeout: no answer in time.
func isTimeout(f failure) bool {
	return errors.Is(f.err, context.DeadlineExceeded) || strings.Contains(f.err.Error(), "context deadline exceeded")
}

// isDisconnected: the gateway itself was away.
func isDisconnected(f failure) bool {
	text := f.err.Error()
	return strings.Contains(text, "connection refused") || strings.Contains(text, "EOF") || strings.Contains(text, "connection reset") ||
		strings.Contains(text, "client connection lost") || strings.Contains(text, "GOAWAY") || strings.Contains(text, "broken pipe")
}
