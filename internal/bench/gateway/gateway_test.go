package gateway

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

func TestParseMetric(t *testing.T) {
	page := "# TYPE watches gauge\nwatches{server=\"a\"} 3\nwatches{server=\"b c\"} 4.5\nwatches_total 7\nother 1\n"
	got, err := parseMetric(strings.NewReader(page), "watches")
	if err != nil || len(got) != 2 || got[`{server="a"}`] != 3 || got[`{server="b c"}`] != 4.5 {
		t.Errorf("parseMetric() = %v, %v, want 3 and 4.5 by their labels", got, err)
	}
	if got, err := parseMetric(strings.NewReader(page), "watches_total"); err != nil || got[""] != 7 {
		t.Errorf("parseMetric() of a metric without labels = %v, %v, want 7", got, err)
	}
	if _, err := parseMetric(strings.NewReader("watches x\n"), "watches"); err == nil {
		t.Error("parseMetric() accepts a value that is not a number")
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		all  []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 2}, 2}} {
		if got := median(c.all); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.all, got, c.want)
		}
	}
}

func TestMostToLeast(t *testing.T) {
	if got := mostToLeast([]int{100, 130, 110}); got != 1.3 {
		t.Errorf("mostToLeast() = %v, want 1.3", got)
	}
	if got := mostToLeast([]int{150, 0, 150}); got != 150 {
		t.Errorf("mostToLeast() with an API server without watches = %v, want 150", got)
	}
}

// An informer that was connected to the killed API server connects again before that API server is ready.
func TestRelistsOfOthersAreThoseAfterTheReturn(t *testing.T) {
	ready := time.Now()
	informers := []*informer{
		{first: ready.Add(-time.Second), lists: 1}, // of the killed API server, listed
		{first: ready.Add(-time.Second)},           // of the killed API server, watched on
		{first: ready.Add(time.Second), lists: 2},  // moved later, listed
		{first: ready.Add(time.Second)},            // moved later, watched on
		{},                                         // never moved
	}
	if died, others := relists(informers, ready); died != 1 || others != 2 {
		t.Errorf("relists() = %d, %d, want 1 of the killed API server and 2 of others", died, others)
	}
}

// A limit that must be met fails a run of medium scale, and is only shown below it.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		limit    experiment.Limit
		measured float64
		met      [2]bool // must, aim
	}{
		{limitCPU, 19, [2]bool{true, true}},
		{limitCPU, 40, [2]bool{true, false}},
		{limitCPU, 41, [2]bool{false, false}},
		{limitLists, 0.99, [2]bool{true, true}},
		{limitLists, 0.9, [2]bool{true, false}},
		{limitLists, 0.89, [2]bool{false, false}},
		{limitRelists, 0, [2]bool{true, true}},
		{limitRelists, 1, [2]bool{false, false}},
	} {
		for factor, must := range map[float64]bool{0.1: false, 1: true} {
			b := &bench{Run: &experiment.Run{Result: &experiment.Result{}, Scale: experiment.Scale{Factor: factor}}}
			b.Judge(c.limit, c.measured, 1, "")
			verdicts := b.Result.Verdicts
			if len(verdicts) != 2 || verdicts[0].Met != c.met[0] || verdicts[1].Met != c.met[1] {
				t.Errorf("verdicts on %v of %q are %v, want met: %v", c.measured, c.limit.Name, verdicts, c.met)
			}
			if verdicts[0].Must != must || verdicts[1].Must {
				t.Errorf("scale %v: Must is %v and %v, want %v and false", factor, verdicts[0].Must, verdicts[1].Must, must)
			}
		}
	}
}

func TestUnmeasuredLimitIsMissed(t *testing.T) {
	b := &bench{Run: &experiment.Run{Result: &experiment.Result{}, Scale: experiment.Scale{Factor: 1}}}
	b.Judge(limitCPU, 0, 0, "")
	if b.Result.Verdicts[0].Met {
		t.Error("a limit without measured operations is met")
	}
}

func TestOnly(t *testing.T) {
	for text, valid := range map[string]bool{"": true, "cpu": true, "cpu,kill": true, "cpu,": true, "nonsense": false} {
		o := defaultOptions()
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.AddFlags(flags)
		if err := flags.Parse([]string{"--only", text}); err != nil {
			t.Fatal(err)
		}
		if err := o.Validate(); (err == nil) != valid {
			t.Errorf("--only %q: error %v, want valid: %v", text, err, valid)
		}
	}
}

// A client whose connection was closed dials again, as client-go does.
func TestConnectionsDialAgain(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		_, _ = io.WriteString(w, request.Header.Get("User-Agent"))
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	f := &front{name: direct, addresses: []string{server.Listener.Addr().String()}}
	c, err := dial(context.Background(), f, &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for range 2 {
		for number := range 2 {
			if size, err := c.get(context.Background(), number, "/", protobuf); err != nil || size != int64(len(userAgent)) {
				t.Errorf("get() = %d, %v, want %d bytes", size, err, len(userAgent))
			}
		}
		server.CloseClientConnections()
		awaitClosed(t, c)
	}
	server.Config.Handler = http.NotFoundHandler()
	if _, err := c.get(context.Background(), 0, "/", protobuf); err == nil || kindOf(err) != "status 404" {
		t.Errorf("get() with a 404 = %v, want an error of kind status 404", err)
	}
}

func awaitClosed(t *testing.T, c *connections) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		open := false
		for i := range c.conns {
			open = open || c.conns[i].stream.Available() > 0
		}
		if !open {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the connections are still open")
		}
	}
}

func TestBackendRepeatsTheResponse(t *testing.T) {
	answer := recording{status: http.StatusOK, header: http.Header{"Audit-Id": {"x"}}, body: []byte("lease")}
	for path, want := range map[string]string{smallPath: "lease", "/readyz": "ok", "/metrics": "process_cpu_seconds_total 0\n"} {
		w := httptest.NewRecorder()
		answer.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusOK || w.Body.String() != want {
			t.Errorf("GET %s: %d %q, want 200 %q", path, w.Code, w.Body.String(), want)
		}
	}
	w := httptest.NewRecorder()
	tooManyRequests.ServeHTTP(w, httptest.NewRequest(http.MethodGet, smallPath, nil))
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
		t.Errorf("the busy server answers %d with Retry-After %q, want 429 with 1", w.Code, w.Header().Get("Retry-After"))
	}
}
