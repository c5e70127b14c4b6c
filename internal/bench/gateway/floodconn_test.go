package gateway

import (
	"context"
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
	address := server.Listener.Addr().String()
	f := &Flooder{Addresses: []string{address}, Rate: 1000, Connections: 2, Duration: time.Second}
	connections, err := f.dial(t.Context(), &tls.Config{RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, len(connections))
	for _, c := range connections {
		defer c.socket.Close()
		go func() { ended <- c.receive() }()
	}
	if err := f.flood(t.Context(), connections, ended); err != nil {
		t.Fatal(err)
	}
	var got [3]int64
	for _, c := range connections {
		got[0], got[1], got[2] = got[0]+c.passed.Load(), got[1]+c.refused.Load(), got[2]+c.inFlight.Load()
	}
	if want := [3]int64{passed, refused, 2 * floodInFlight}; got != want || wrong.Load() > 0 {
		t.Errorf("%d requests passed, %d were refused, %d are in flight, and %d were wrong; want %v and 0", got[0], got[1], got[2], wrong.Load(), want)
	}
	server.CloseClientConnections()
	if err := f.flood(context.Background(), connections, ended); err == nil {
		t.Error("flood() over closed connections = nil, want an error")
	}
}
