package fence

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"
)

// answerLimit is the time after which a write counts as unanswered. It is the default of kube-apiserver's
// --request-timeout.
const answerLimit = time.Minute

// Wrap returns a transport that refuses writes while the fence is not open. A write does not end when its context
// does: its caller waits for the answer, so that the outcome of all writes is known before the lease is released.
func (f *Fence) Wrap(next http.RoundTripper) http.RoundTripper { return &transport{f, next} }

type transport struct {
	fence *Fence
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	switch request.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return t.next.RoundTrip(request)
	}
	if err := t.fence.begin(); err != nil {
		if request.Body != nil {
			request.Body.Close()
		}
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(request.Context()), answerLimit)
	response, err := t.next.RoundTrip(request.WithContext(ctx))
	t.fence.end(err == nil)
	if err != nil {
		cancel()
		return nil, err
	}
	response.Body = &body{response.Body, cancel}
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// body is the body of a response. It ends the context of the request when it is closed.
type body struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *body) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// DialFunc opens a connection, as net.Dialer.DialContext does.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Dial returns a dial function whose connections refuse to send after the fence has expired. Until the process is
// the leader for the first time, they send everything: only reads pass Wrap then.
func (f *Fence) Dial(dial DialFunc) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{c, f}, nil
	}
}

type conn struct {
	net.Conn
	fence *Fence
}

// Write implements net.Conn.
func (c *conn) Write(bytes []byte) (int, error) {
	if c.fence.expired() {
		return 0, ErrNotLeader
	}
	return c.Conn.Write(bytes)
}
