package gateway

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// backend is an HTTP/2 server that answers every request with the same response of an API server. It
// costs less CPU than a front, so that the front can be loaded more than an API server would allow.
type backend struct {
	server  *http.Server
	address string
}

// recording is a response of an API server.
type recording struct {
	status int
	header http.Header
	body   []byte
}

// tooManyRequests is the response of an API server that is too busy.
var tooManyRequests = recording{
	status: http.StatusTooManyRequests,
	header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}, "Retry-After": {"1"}},
	body:   []byte("Too many requests, please try again later.\n"),
}

// record sends a request and returns the response.
func record(ctx context.Context, c *connections, path string) (recording, error) {
	response, err := c.request(ctx, 0, path, protobuf)
	if err != nil {
		return recording{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	response.Header.Del("Date") // set by the server
	return recording{response.StatusCode, response.Header, body}, err
}

// startBackend starts a backend with the serving certificate of an API server.
func startBackend(pki string, answer recording) (*backend, error) {
	certificate, err := tls.LoadX509KeyPair(filepath.Join(pki, "apiserver.crt"), filepath.Join(pki, "apiserver.key"))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", clusterdir.Loopback+":0")
	if err != nil {
		return nil, err
	}
	b := &backend{address: listener.Addr().String(), server: &http.Server{
		Handler: answer,
		// Clients of an API server are asked for a certificate. It is not verified here.
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert},
		ErrorLog:          log.New(io.Discard, "", 0), // clients close their connections without a shutdown
		ReadHeaderTimeout: time.Minute,
	}}
	// ServeTLS returns when close is called.
	go func() { _ = b.server.ServeTLS(listener, "", "") }()
	return b, nil
}

func (b *backend) close() { _ = b.server.Close() }

// ServeHTTP sends the response. The pages that a gateway reads have content of their own.
func (r recording) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	switch request.URL.Path {
	case "/readyz":
		_, _ = io.WriteString(w, "ok")
	case "/metrics":
		_, _ = io.WriteString(w, "process_cpu_seconds_total 0\n")
	default:
		for name, values := range r.header {
			w.Header()[name] = values
		}
		w.WriteHeader(r.status)
		_, _ = w.Write(r.body)
	}
}
