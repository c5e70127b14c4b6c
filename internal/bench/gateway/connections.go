package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

const (
	dialConcurrency = 16
	dialTimeout     = 20 * time.Second

	protobuf      = "application/vnd.kubernetes.protobuf"
	protobufWatch = protobuf + ";stream=watch"
)

// connections are HTTP/2 connections to a front. They are lighter than the connections of client-go, so
// that the load generator uses less CPU than what it measures.
type connections struct {
	front *front
	conns []connection
}

// connection is one of the connections. A gateway may ask the client to dial again.
type connection struct {
	transport *http.Transport
	mu        sync.Mutex
	stream    *http.ClientConn
}

// dial opens connections to a front, with a TLS handshake each.
func dial(ctx context.Context, f *front, credentials *tls.Config, count int) (*connections, error) {
	c := &connections{front: f, conns: make([]connection, count)}
	transport := newTransport(credentials)
	for i := range c.conns {
		c.conns[i].transport = transport
	}
	return c, c.dialAll(ctx)
}

func newTransport(credentials *tls.Config) *http.Transport {
	transport := &http.Transport{TLSClientConfig: credentials.Clone(), DisableCompression: true, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP2(true)
	return transport
}

// dialAll opens all connections. After an error none is open.
func (c *connections) dialAll(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	count := len(c.conns)
	var next atomic.Int64
	var failure atomic.Pointer[error]
	var group sync.WaitGroup
	for range dialConcurrency {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < count && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if _, err := c.usable(ctx, i); err != nil {
					failure.CompareAndSwap(nil, &err)
					cancel()
				}
			}
		})
	}
	group.Wait()
	if err := failure.Load(); err != nil {
		c.close()
		return fmt.Errorf("connecting to %s: %w", c.front.name, *err)
	}
	return ctx.Err()
}

// usable returns the connection with this number, which it opens if there is none for further requests.
func (c *connections) usable(ctx context.Context, number int) (*http.ClientConn, error) {
	conn := &c.conns[number]
	conn.mu.Lock()
	defer conn.mu.Unlock()
	if conn.stream != nil && conn.stream.Available() > 0 {
		return conn.stream, nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	stream, err := conn.transport.NewClientConn(ctx, "https", c.front.address(number))
	if err != nil {
		return nil, err
	}
	conn.stream = stream
	return stream, nil
}

// close closes all connections.
func (c *connections) close() {
	for i := range c.conns {
		if stream := c.conns[i].stream; stream != nil {
			_ = stream.Close()
		}
	}
}

// request sends a GET on a connection. fields are names and values of further header fields. The caller must
// close the body.
func (c *connections) request(ctx context.Context, number int, path, accept string, fields ...string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+c.front.addresses[0]+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("User-Agent", userAgent)
	for i := 0; i+1 < len(fields); i += 2 {
		request.Header.Set(fields[i], fields[i+1])
	}
	return c.send(ctx, number, request)
}

// send sends a request on a connection. A status above 299 is an error. The caller must close the body.
func (c *connections) send(ctx context.Context, number int, request *http.Request) (*http.Response, error) {
	stream, err := c.usable(ctx, number)
	if err != nil {
		return nil, err
	}
	response, err := stream.RoundTrip(request)
	if err == nil && response.StatusCode >= http.StatusMultipleChoices {
		err = statusError(response.StatusCode)
		_ = response.Body.Close()
	}
	return response, err
}

// get sends a GET and reads the response completely. It returns the size of the body.
func (c *connections) get(ctx context.Context, number int, path, accept string, fields ...string) (int64, error) {
	response, err := c.request(ctx, number, path, accept, fields...)
	if err != nil {
		return 0, err
	}
	size, err := io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return size, err
}

// watch opens a watch and counts its events until the server ends it or ctx ends. It calls opened as soon as
// the server has answered.
func (c *connections) watch(ctx context.Context, number int, path string, opened func(), events *atomic.Int64) error {
	response, err := c.request(ctx, number, path, protobufWatch)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	opened()
	return experiment.CountEvents(response.Body, events)
}

// statusError is the status of a response without success.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("status %d", int(s)) }

// kindOf classifies an error for the result.
func kindOf(err error) string {
	if status, ok := err.(statusError); ok {
		return status.Error()
	}
	return "connection"
}
