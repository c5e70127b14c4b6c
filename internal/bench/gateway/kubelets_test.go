package gateway

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// encodeEvent returns an event as a server sends it, with its length first.
func encodeEvent(t *testing.T, kind watch.EventType, object []byte) []byte {
	t.Helper()
	event := metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: object}}
	encoded, err := event.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(encoded))), encoded...)
}

// encodeBookmark returns a bookmark that ends the initial state. The type of the object does not matter.
func encodeBookmark(t *testing.T, version string) []byte {
	t.Helper()
	object, err := runtime.Encode(leaseCodec, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: version, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return encodeEvent(t, watch.Bookmark, object)
}

// watchServer answers as an API server does for watches.
type watchServer struct {
	bookmark, modified []byte
	mu                 sync.Mutex
	queries            []url.Values
	// expired is the number of watches at a version that get 410.
	expired int
}

func (s *watchServer) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	query := request.URL.Query()
	if !query.Has("watch") {
		http.NotFound(w, request)
		return
	}
	if request.Header.Get("Accept-Encoding") != "" {
		// kube-apiserver would compress the events.
		http.Error(w, "Accept-Encoding is not expected", http.StatusNotAcceptable)
		return
	}
	query.Set("path", request.URL.Path)
	state := query.Get("sendInitialEvents") == "true"
	s.mu.Lock()
	s.queries = append(s.queries, query)
	expired := !state && s.expired > 0
	if expired {
		s.expired--
	}
	s.mu.Unlock()
	if expired {
		http.Error(w, "too old", http.StatusGone)
		return
	}
	if state {
		_, _ = w.Write(s.bookmark)
	} else {
		_, _ = w.Write(s.modified)
	}
	_ = http.NewResponseController(w).Flush()
	<-request.Context().Done()
}

// take returns the queries since the last call.
func (s *watchServer) take() []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.queries
	s.queries = nil
	return taken
}

// startOn starts kubelets that connect to a server.
func startOn(t *testing.T, handler http.Handler, count int) *kubelets {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	f := &front{name: direct, addresses: []string{server.Listener.Addr().String()}}
	credentials := make([]*tls.Config, count)
	for i := range credentials {
		credentials[i] = server.Client().Transport.(*http.Transport).TLSClientConfig
	}
	g := newKubelets(f, credentials, kubeletsOptions{prefix: "k", register: true})
	g.start(t.Context())
	t.Cleanup(g.stop)
	return g
}

// awaitComplete waits until all kubelets have their watches.
func awaitComplete(t *testing.T, g *kubelets) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); g.complete() < len(g.all); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d kubelets have their watches; failed attempts: %s", g.complete(), len(g.all), g.current().failures.Describe())
		}
	}
}

// Kubelets begin with the state of now. After the loss of their connections they watch on at the last version.
func TestKubeletsWatchOn(t *testing.T) {
	const count = 3
	handler := &watchServer{bookmark: encodeBookmark(t, "7"), modified: encodeEvent(t, watch.Modified, nil)}
	g := startOn(t, handler, count)
	awaitComplete(t, g)
	started := handler.take()
	if len(started) != count*len(kubeletResources) {
		t.Fatalf("%d watches, want %d", len(started), count*len(kubeletResources))
	}
	for _, query := range started {
		if query.Get("sendInitialEvents") != "true" || query.Get("resourceVersionMatch") != "NotOlderThan" || query.Has("resourceVersion") {
			t.Errorf("the first watch is %v", query)
		}
	}
	g.disconnect()
	awaitComplete(t, g)
	again := handler.take()
	if len(again) != len(started) {
		t.Errorf("%d watches after the connections were closed, want %d", len(again), len(started))
	}
	for _, query := range again {
		if query.Has("sendInitialEvents") || query.Get("resourceVersion") != "7" || query.Get("allowWatchBookmarks") != "true" {
			t.Errorf("the watch after the loss of a connection is %v", query)
		}
	}
	now := g.current()
	if now.last <= 0 || now.latencies.Count() != count || now.failures.Operations() != 0 {
		t.Errorf("last kubelet after %s, %d kubelets, %d failed attempts", now.last, now.latencies.Count(), now.failures.Operations())
	}
	for deadline := time.Now().Add(time.Minute); g.modified.Load() < int64(len(again)); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d events, want %d", g.modified.Load(), len(again))
		}
	}
}

// A version that is too old makes a kubelet read the state again, at that version or later.
func TestKubeletsReadTheStateAgain(t *testing.T) {
	handler := &watchServer{bookmark: encodeBookmark(t, "7"), expired: 1}
	g := startOn(t, handler, 1)
	awaitComplete(t, g)
	handler.take()
	g.disconnect()
	awaitComplete(t, g)
	withState := slices.DeleteFunc(handler.take(), func(query url.Values) bool { return !query.Has("sendInitialEvents") })
	if len(withState) != 1 || withState[0].Get("resourceVersion") != "7" {
		t.Errorf("watches that begin with the state: %v, want one at version 7", withState)
	}
	if got := g.current().failures.Describe(); got != "1 × status 410" {
		t.Errorf("failed attempts: %q", got)
	}
}

// The requests are those of client-go's informers.
func TestWatchRequests(t *testing.T) {
	for _, c := range []struct {
		resource int
		before   watched
		want     string
	}{
		{0, watched{}, "/api/v1/pods?allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Dn&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeout=6m5s&timeoutSeconds=365&watch=true"},
		{2, watched{version: "9", synced: true}, "/api/v1/services?allowWatchBookmarks=true&fieldSelector=spec.clusterIP%21%3DNone&resourceVersion=9&timeout=6m5s&timeoutSeconds=365&watch=true"},
		{3, watched{version: "9", synced: true}, "/apis/storage.k8s.io/v1/csidrivers?allowWatchBookmarks=true&resourceVersion=9&timeout=6m5s&timeoutSeconds=365&watch=true"},
	} {
		if got := kubeletResources[c.resource].watch("n", c.before, 365); got != c.want {
			t.Errorf("%s\nwant %s", got, c.want)
		}
	}
}

// Events are found however the body is divided.
func TestEventSplitter(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	var body []byte
	var want []string
	for i := range 50 {
		event := encodeEvent(t, watch.Added, []byte(strings.Repeat("x", random.IntN(9000))+fmt.Sprint(i)))
		body, want = append(body, event...), append(want, string(event[4:]))
	}
	for range 50 {
		var splitter eventSplitter
		var got []string
		for rest := body; len(rest) > 0; {
			part := rest[:min(1+random.IntN(20_000), len(rest))]
			if err := splitter.split(part, func(event []byte) error { got = append(got, string(event)); return nil }); err != nil {
				t.Fatal(err)
			}
			rest = rest[len(part):]
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d events, want %d", len(got), len(want))
		}
		if cap(splitter.pending) > keptBytes {
			t.Errorf("%d bytes are kept", cap(splitter.pending))
		}
	}
	var splitter eventSplitter
	if err := splitter.split([]byte{255, 255, 255, 255}, func([]byte) error { return nil }); err == nil {
		t.Error("an event of 4 GiB is accepted")
	}
}

func TestEventType(t *testing.T) {
	for _, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark, watch.Error} {
		if got := eventType(encodeEvent(t, kind, []byte("x"))[4:]); got != kind {
			t.Errorf("%s, want %s", got, kind)
		}
	}
	for _, event := range []string{"", "\n", "\n\x05ADD", "\x12\x01x"} {
		if got := eventType([]byte(event)); got != "" {
			t.Errorf("%q is of the type %s", event, got)
		}
	}
}

// Delays grow from 0.8 s to 30 s, and are prolonged by less than their length.
func TestRetryDelay(t *testing.T) {
	for attempts, least := range map[int]time.Duration{1: 800 * time.Millisecond, 2: 1600 * time.Millisecond, 5: 12800 * time.Millisecond, 7: 30 * time.Second, 1000: 30 * time.Second} {
		if got := retryDelay(attempts); got < least || got >= 2*least {
			t.Errorf("retryDelay(%d) = %s, want %s to %s", attempts, got, least, 2*least)
		}
	}
}

func TestLoopbackAddress(t *testing.T) {
	for number, want := range map[int]string{0: "127.0.0.1", 1: "127.0.0.2", 255: "127.0.1.0"} {
		if got := loopbackAddress(number).String(); got != want {
			t.Errorf("loopbackAddress(%d) = %s, want %s", number, got, want)
		}
	}
}

// A server that asks for a time gets it, but not for ever.
func TestWatchDelay(t *testing.T) {
	for _, c := range []struct {
		watch openWatch
		least time.Duration
	}{
		{openWatch{retryAfter: time.Second, failures: 1}, time.Second},
		{openWatch{retryAfter: time.Second, failures: askedRetries}, time.Second},
		{openWatch{retryAfter: time.Second, failures: askedRetries + 1}, lastRetry},
		{openWatch{failures: 1}, firstRetry},
	} {
		if got := c.watch.delay(); got < c.least || got >= 2*c.least {
			t.Errorf("%+v: %s, want %s or more", c.watch, got, c.least)
		}
	}
}

// An ended watch counts as one if it lasted, or had an event.
func TestWatchFailures(t *testing.T) {
	begun := time.Now()
	for _, c := range []struct {
		watch openWatch
		after time.Duration
		want  string
	}{
		{openWatch{status: 200, events: 1}, 0, ""},
		{openWatch{status: 200}, 2 * time.Second, ""},
		{openWatch{status: 200}, time.Millisecond, errShortWatch.Error()},
		{openWatch{status: 429}, 2 * time.Second, "status 429"},
		{openWatch{}, 2 * time.Second, "connection"},
	} {
		c.watch.begun = begun
		got := ""
		if err := c.watch.failure(begun.Add(c.after)); err != nil {
			got = watchFailure(err)
		}
		if got != c.want {
			t.Errorf("%+v after %s: %q, want %q", c.watch, c.after, got, c.want)
		}
	}
}
