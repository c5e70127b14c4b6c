// Package connlimit limits the number of connections that a server has open.
package connlimit

import (
	"net"
	"sync"
	"sync/atomic"
)

// Listener is a listener that closes connections beyond Limit immediately.
type Listener struct {
	net.Listener
	// Limit is the maximal number of open connections.
	Limit int64
	open  atomic.Int64
}

// Accept returns the next connection within the limit.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.Limit {
			return &counted{Conn: conn, release: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
		l.open.Add(-1)
		_ = conn.Close()
	}
}

// counted is a connection that counts against the limit.
type counted struct {
	net.Conn
	release func()
}

// Close closes the connection, which then no longer counts.
func (c *counted) Close() error {
	defer c.release()
	return c.Conn.Close()
}
