package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// TestFlood floods a server that refuses all requests but the first ten, and answers none of the last ones.
func TestFlood(t *testing.T) {
	const passed, refused = 10, 50
	var requests, wrong atomic.Int64
	hold := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.UserAgent() != floodAgent || r.URL.String() != smallPath || r.ProtoMajor != 2 {
			wrong.Add(1)
		}
		switch n := requests.Add(1); {
		case n > passed+refused:
			<-hold
		case n > passed:
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	defer close(hold)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	run := &floodRun{
		Flooder:     &Flooder{Addresses: []string{server.Listener.Addr().String()}, Rate: 1000, Connections: 2, Duration: time.Second},
		credentials: &tls.Config{RootCAs: roots}, ended: make(chan floodEnd, 2),
	}
	defer run.close()
	if err := run.dialAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := run.send(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := [3]int64{run.passed.Load(), run.refused.Load(), run.connections[0].inFlight.Load() + run.connections[1].inFlight.Load()}
	if want := [3]int64{passed, refused, 2 * floodInFlight}; got != want || wrong.Load() > 0 {
		t.Errorf("%d requests passed, %d were refused, %d are in flight, and %d were wrong; want %v and 0", got[0], got[1], got[2], wrong.Load(), want)
	}
	moved := run.connections[0]
	if err := run.replace(t.Context(), floodEnd{0, errMoved}); err != nil || run.connections[0] == moved {
		t.Errorf("a connection that must move was not replaced: %v", err)
	}
	server.CloseClientConnections()
	if err := run.send(t.Context()); err == nil {
		t.Error("send() over closed connections = nil, want an error")
	}
}
