package fence

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// clock is the time of a fence in a test.
type clock struct{ atomic.Int64 }

func (c *clock) now() time.Duration       { return time.Duration(c.Load()) }
func (c *clock) advance(by time.Duration) { c.Add(int64(by)) }
func newClocked() (f *Fence, c *clock) {
	c = &clock{}
	c.Store(int64(time.Hour))
	f = New()
	f.now = c.now
	return f, c
}
func isRefused(err error) bool { return errors.Is(err, ErrNotLeader) }
func background(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// server counts the requests that reach it. It answers each write when a value arrives at answers, if that is not nil.
type server struct {
	*httptest.Server
	reads, writes atomic.Int64
	answers       chan struct{}
}

func newServer(t *testing.T, answers chan struct{}) *server {
	s := &server{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			s.reads.Add(1)
			return
		}
		s.writes.Add(1)
		if s.answers != nil {
			<-s.answers
		}
		io.WriteString(w, "done")
	}))
	t.Cleanup(s.Close)
	return s
}

// client returns a client whose transport and connections have the fence.
func client(f *Fence) *http.Client {
	return &http.Client{Transport: f.Wrap(&http.Transport{DialContext: f.Dial((&net.Dialer{}).DialContext)})}
}

func send(ctx context.Context, c *http.Client, method, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader("body"))
	if err != nil {
		return "", err
	}
	response, err := c.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

func TestWritesPassOnlyWhileOpen(t *testing.T) {
	f, now := newClocked()
	s := newServer(t, nil)
	c, ctx := client(f), context.Background()
	if _, err := send(ctx, c, http.MethodPost, s.URL); !isRefused(err) {
		t.Fatalf("a standby sent a write: %v", err)
	}
	if _, err := send(ctx, c, http.MethodGet, s.URL); err != nil {
		t.Fatalf("a standby cannot read: %v", err)
	}
	f.OpenUntil(f.Now() + 7*time.Second)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if text, err := send(ctx, c, method, s.URL); err != nil || text != "done" {
			t.Fatalf("%s of the leader: %q, %v", method, text, err)
		}
	}
	now.advance(7 * time.Second)
	if _, err := send(ctx, c, http.MethodDelete, s.URL); !isRefused(err) {
		t.Fatalf("a write after the renew deadline: %v", err)
	}
	f.OpenUntil(f.Now() + time.Second)
	if _, err := send(ctx, c, http.MethodPut, s.URL); err != nil {
		t.Fatalf("a write after a late renewal: %v", err)
	}
	if got := s.writes.Load(); got != 5 {
		t.Fatalf("the server received %d writes, want 5", got)
	}
}

// A request that passed the first check before the process was suspended must not be sent after it.
func TestExpiredConnectionSendsNothing(t *testing.T) {
	f, now := newClocked()
	f.OpenUntil(f.Now() + 7*time.Second)
	own, other := net.Pipe()
	defer own.Close()
	defer other.Close()
	dial := f.Dial(func(context.Context, string, string) (net.Conn, error) { return own, nil })
	c, err := dial(context.Background(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, other)
	if _, err := c.Write([]byte("first")); err != nil {
		t.Fatalf("write of the leader: %v", err)
	}
	now.advance(time.Minute)
	if _, err := c.Write([]byte("second")); !isRefused(err) {
		t.Fatalf("write after the renew deadline: %v", err)
	}
}

func TestCloseWaitsForAnswers(t *testing.T) {
	f, _ := newClocked()
	f.Open()
	answers := make(chan struct{})
	s := newServer(t, answers)
	c := client(f)
	// The caller gives up, as a controller does that is stopped. The write is answered all the same.
	ctx, cancel := context.WithCancel(context.Background())
	sent := make(chan error, 1)
	go func() {
		_, err := send(ctx, c, http.MethodPost, s.URL)
		sent <- err
	}()
	for s.writes.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	soon, stop := background(50 * time.Millisecond)
	defer stop()
	closed := make(chan error, 1)
	go func() { closed <- f.Close(context.Background(), time.Second) }()
	select {
	case err := <-closed:
		t.Fatalf("closed before the answer: %v", err)
	case <-soon.Done():
	}
	if _, err := send(context.Background(), c, http.MethodPost, s.URL); !isRefused(err) {
		t.Fatalf("a write through a closed fence: %v", err)
	}
	answers <- struct{}{}
	if err := <-closed; err != nil {
		t.Fatalf("closing: %v", err)
	}
	<-sent
}

func TestCloseReportsWritesWithoutAnswer(t *testing.T) {
	for _, quarantined := range []bool{true, false} {
		f, now := newClocked()
		f.Open()
		broken := f.Wrap(roundTripper(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }))
		if _, err := send(context.Background(), &http.Client{Transport: broken}, http.MethodPut, "http://server/"); err == nil {
			t.Fatal("the write must fail")
		}
		if !quarantined {
			now.advance(10 * time.Second)
		}
		err := f.Close(context.Background(), 10*time.Second)
		if quarantined != errors.Is(err, ErrUnanswered) {
			t.Fatalf("quarantined %v: %v", quarantined, err)
		}
	}
}

func TestCloseEndsWithContext(t *testing.T) {
	f, _ := newClocked()
	f.Open()
	if err := f.begin(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.Close(ctx, time.Second); !errors.Is(err, ErrUnanswered) || !errors.Is(err, context.Canceled) {
		t.Fatalf("closing with a pending write: %v", err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
