package leader

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	toolscache "k8s.io/client-go/tools/cache"
)

// BindGuard stops binds of a process that is no longer the leader on their way to the API server: when they have
// passed the rate limiter of client-go, when they are written to a connection, and when the kernel does not get
// rid of them. The process may have been suspended, and another replica may have become the leader, at each of
// these places.
type BindGuard struct {
	// SendTimeout is the time after which the kernel discards what the API server has not acknowledged; 0 for
	// the kernel's default.
	SendTimeout time.Duration

	checks atomic.Pointer[guardChecks]
}

// guardChecks are the checks of a guard.
type guardChecks struct {
	mayBind  func(pod toolscache.ObjectName) error
	mayWrite func() error
}

// bindPath is the path of the request that binds a pod.
var bindPath = regexp.MustCompile(`/api/v1/namespaces/([^/]+)/pods/([^/]+)/binding$`)

// SetChecks sets the checks of a bind and of a write to a connection. Until then, binds are refused.
func (g *BindGuard) SetChecks(mayBind func(pod toolscache.ObjectName) error, mayWrite func() error) {
	g.checks.Store(&guardChecks{mayBind, mayWrite})
}

// Wrap returns a transport that refuses the binds that the check refuses. It is called after the rate limiter.
func (g *BindGuard) Wrap(inner http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if err := g.allow(request); err != nil {
			if request.Body != nil {
				_ = request.Body.Close()
			}
			return nil, fmt.Errorf("%w: %w", errNotSent, err)
		}
		return inner.RoundTrip(request)
	})
}

// allow returns an error if the request is a bind that must not be sent.
func (g *BindGuard) allow(request *http.Request) error {
	match := bindPath.FindStringSubmatch(request.URL.Path)
	if request.Method != http.MethodPost || match == nil {
		return nil
	}
	checks := g.checks.Load()
	if checks == nil {
		return errors.New("this replica does not schedule pods yet")
	}
	return checks.mayBind(toolscache.ObjectName{Namespace: match[1], Name: match[2]})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip sends a request.
func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// Dial connects like net.Dialer. The connection fails instead of writing what the check refuses: a request may
// wait for the connection after it has passed [BindGuard.Wrap].
func (g *BindGuard) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: g.limitSending}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &guardedConn{conn, g}, nil
}

// limitSending makes the kernel close a connection whose data is not acknowledged within SendTimeout. Otherwise
// it would deliver a bind minutes later, once a network that was cut works again.
func (g *BindGuard) limitSending(_, _ string, raw syscall.RawConn) error {
	if g.SendTimeout == 0 {
		return nil
	}
	var failed error
	err := raw.Control(func(socket uintptr) {
		failed = unix.SetsockoptInt(int(socket), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(g.SendTimeout.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// guardedConn is a connection to the API server.
type guardedConn struct {
	net.Conn
	guard *BindGuard
}

// Write writes data if the guard's check allows that now.
func (c *guardedConn) Write(data []byte) (int, error) {
	if checks := c.guard.checks.Load(); checks != nil {
		if err := checks.mayWrite(); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(data)
}
