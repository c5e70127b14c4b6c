package gateway

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// defaultConnections is the number of connections; GATEWAY_CONNECTIONS changes it. Both ends are in the test's process,
	// so the limit on open files can lower it.
	defaultConnections = 1000
	// connectionMemory bounds the memory of the gateway for a connection with a watch, on both sides.
	connectionMemory = 100 // KiB
	// settleTime is the time until memory that is no longer used has been returned, on a machine without other work.
	settleTime = 12 * time.Second
	// slowMemory bounds the memory of the gateway for a client that reads nothing.
	slowMemory  = 2 << 10 // KiB
	slowClients = 50
	// floodBytes is what the API server wants to send to each slow client.
	floodBytes = 64 << 20
)

// watchServer is a backend whose answers do not end. Each event of /watch is one byte for each client.
type watchServer struct {
	mutex  sync.Mutex
	events chan struct{}
	// sent counts the bytes that were sent to /flood.
	sent map[string]int
}

func newWatchServer() *watchServer {
	return &watchServer{events: make(chan struct{}), sent: map[string]int{}}
}

// event ends the wait of all watches.
func (w *watchServer) event() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	close(w.events)
	w.events = make(chan struct{})
}

func (w *watchServer) serve(out http.ResponseWriter, r *http.Request) {
	flusher := http.NewResponseController(out)
	switch {
	case strings.HasPrefix(r.URL.Path, "/watch"):
		for {
			w.mutex.Lock()
			event := w.events
			w.mutex.Unlock()
			_, _ = out.Write([]byte{'e'})
			_ = flusher.Flush()
			select {
			case <-event:
			case <-r.Context().Done():
				return
			}
		}
	case strings.HasPrefix(r.URL.Path, "/flood"):
		block := make([]byte, 64<<10)
		for range floodBytes / len(block) {
			n, err := out.Write(block)
			w.mutex.Lock()
			w.sent[r.URL.Path] += n
			w.mutex.Unlock()
			if err != nil || flusher.Flush() != nil {
				return
			}
		}
	}
}

// watcher opens a connection of HTTP/2 and a watch on it, and waits for the first event.
func (s *standalone) watcher(t *testing.T, user tls.Certificate) *rawConn {
	t.Helper()
	conn := s.dialHTTP2(t, user)
	must(t, conn.headers(1, true, ":method", "GET", ":scheme", "https", ":path", "/watch", ":authority", "a"))
	conn.next(t)
	return conn
}

// next waits for the next byte of an answer.
func (c *rawConn) next(t *testing.T) {
	t.Helper()
	must(t, c.SetReadDeadline(time.Now().Add(startTimeout)))
	for {
		frame, err := c.ReadFrame()
		must(t, err)
		switch frame := frame.(type) {
		case *http2.DataFrame:
			if len(frame.Data()) > 0 {
				return
			}
		case *http2.GoAwayFrame, *http2.RSTStreamFrame:
			t.Fatalf("the watch ended: %v", frame)
		}
	}
}

// TestConnections opens many connections with a watch and checks that an event reaches all of them, and what they cost.
func TestConnections(t *testing.T) {
	count := defaultConnections
	if text := os.Getenv("GATEWAY_CONNECTIONS"); text != "" {
		var err error
		count, err = strconv.Atoi(text)
		must(t, err)
	}
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	if most := (int(limit.Cur) - 400) / 2; count > most {
		t.Logf("%d connections instead of %d: the limit on open files is %d", most, count, limit.Cur)
		count = most
	}
	events := newWatchServer()
	s := newStandalone(t, events.serve)
	user := s.user(t, "alice", "dev")
	s.alive(t)
	before := s.residentKiB(t)
	started := time.Now()
	watchers := make([]*rawConn, count)
	inParallel(count, func(i int) { watchers[i] = s.watcher(t, user) })
	opened := time.Since(started)
	// The allocator returns the memory of the handshakes.
	time.Sleep(settleTime)
	var each float64
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(time.Second) {
		each = float64(s.residentKiB(t)-before) / float64(count)
		if each <= connectionMemory || time.Now().After(deadline) {
			break
		}
	}
	started = time.Now()
	events.event()
	for _, watcher := range watchers {
		watcher.next(t)
	}
	t.Logf("%d connections opened in %v, %.1f KiB each; an event reached all in %v", count, opened, each, time.Since(started))
	if each > connectionMemory {
		t.Errorf("a connection with a watch costs %.1f KiB, want at most %d", each, connectionMemory)
	}
	s.alive(t)
	for _, watcher := range watchers {
		_ = watcher.Close()
	}
	testcluster.Eventually(t, startTimeout, "all connections are closed", func() bool { return s.connected(t) < 10 })
}

// connected returns the number of the gateway's client connections.
func (s *standalone) connected(t *testing.T) int {
	t.Helper()
	_, after, _ := strings.Cut(testcluster.Page(s.metrics, "/metrics"), "\nkube_gateway_client_connections ")
	line, _, _ := strings.Cut(after, "\n")
	count, err := strconv.Atoi(line)
	must(t, err)
	return count
}

// TestSlowClients checks that a client that reads nothing hurts only itself: the API server waits for it, the gateway
// keeps little of its answer, and other clients and its own other requests go on.
func TestSlowClients(t *testing.T) {
	events := newWatchServer()
	s := newStandalone(t, events.serve)
	user := s.user(t, "alice", "dev")
	s.alive(t)
	before := s.residentKiB(t)
	fast := s.watcher(t, user)
	slow := make([]*rawConn, slowClients)
	for i := range slow {
		slow[i] = s.dialHTTP2(t, user)
		must(t, slow[i].headers(1, true, ":method", "GET", ":scheme", "https", ":path", fmt.Sprintf("/flood/%d", i), ":authority", "a"))
	}
	var sent map[string]int
	testcluster.Eventually(t, startTimeout, "the API server waits for the slow clients", func() bool {
		last := sent
		time.Sleep(quiet)
		sent = events.snapshot()
		return len(sent) == slowClients && fmt.Sprint(last) == fmt.Sprint(sent)
	})
	each := float64(s.residentKiB(t)-before) / slowClients
	most := 0
	for _, bytes := range sent {
		most = max(most, bytes)
	}
	started := time.Now()
	events.event()
	fast.next(t)
	t.Logf("%d slow clients: %.0f KiB of memory each, the API server sent at most %d KiB to one; an event for another client took %v", slowClients, each, most>>10, time.Since(started))
	if each > slowMemory || most == floodBytes {
		t.Errorf("a slow client costs %.0f KiB, and the API server sent %d of %d bytes to one", each, most, floodBytes)
	}
	own := slow[0]
	must(t, own.headers(3, true, ":method", "GET", ":scheme", "https", ":path", "/small", ":authority", "a"))
	must(t, own.SetReadDeadline(time.Now().Add(startTimeout)))
	for answered := false; !answered; {
		frame, err := own.ReadFrame()
		if err != nil {
			t.Fatalf("another request of a slow client is not answered: %v", err)
		}
		_, isHeaders := frame.(*http2.HeadersFrame)
		answered = isHeaders && frame.Header().StreamID == 3
	}
}

func (w *watchServer) snapshot() map[string]int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	snapshot := map[string]int{}
	for path, bytes := range w.sent {
		snapshot[path] = bytes
	}
	return snapshot
}

// TestUnfinishedClients checks that clients that do not complete a handshake or a request are disconnected, and meanwhile
// disturb nobody.
func TestUnfinishedClients(t *testing.T) {
	t.Parallel()
	s := newStandalone(t, nil)
	user := s.user(t, "alice", "dev")
	silent := make([]net.Conn, 200)
	for i := range silent {
		conn, err := net.Dial("tcp", s.gateway)
		must(t, err)
		defer conn.Close()
		if i%2 == 0 {
			_, err = conn.Write([]byte{0x16, 3, 1, 2, 0, 1})
			must(t, err)
		}
		silent[i] = conn
	}
	half := dial(t, s.gateway, "http/1.1", user)
	_, err := half.Write([]byte("GET /half HTTP/1.1\r\nHost: a\r\nX: "))
	must(t, err)
	s.alive(t)
	ended := func(conn net.Conn, limit time.Duration) bool {
		must(t, conn.SetReadDeadline(time.Now().Add(limit)))
		_, err := conn.Read(make([]byte, 1<<10))
		timeout, isNet := err.(net.Error)
		return err != nil && !(isNet && timeout.Timeout())
	}
	for _, conn := range silent {
		if !ended(conn, startTimeout) {
			t.Fatalf("a client without a handshake is still connected after %v", startTimeout)
		}
	}
	// The gateway may answer before it closes the connection.
	isEnded := false
	for range 2 {
		isEnded = isEnded || ended(half, startTimeout)
	}
	if !isEnded {
		t.Errorf("a client with half a request is still connected after %v", startTimeout)
	}
	if received := s.of("/half"); len(received) != 0 {
		t.Errorf("the API server received %v", received)
	}
	s.alive(t)
}
