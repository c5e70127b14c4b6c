package pacing

import (
	"bufio"
	"context"
	"io"
	"net"
	"time"
)

const (
	// A connection that delivers more than fullSpeedBytes within a beat is read without
	// delay for fullSpeedTime: a list must not wait, and pacing saves nothing under load.
	fullSpeedBytes = 64 << 10
	fullSpeedTime  = 4 * Interval
)

// Dial connects like net.Dialer, for connections that carry watches. The first data after
// a pause is read at once, later data at each beat, so that many events cause one wake-up
// and none is delayed by more than [Interval].
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return newConn(conn), nil
}

// pacedConn is a connection with paced reads.
type pacedConn struct {
	net.Conn
	buffered *bufio.Reader
}

func newConn(conn net.Conn) *pacedConn {
	return &pacedConn{Conn: conn, buffered: bufio.NewReaderSize(&reader{source: conn}, fullSpeedBytes)}
}

// Read implements net.Conn.
func (c *pacedConn) Read(b []byte) (int, error) { return c.buffered.Read(b) }

// reader reads from its source once per beat, or without delay after much data.
type reader struct {
	source io.Reader
	// read is the number of bytes since the last beat. The next beat is at next.
	read int
	next time.Time
	// Until fullSpeedUntil reads are not delayed.
	fullSpeedUntil time.Time
}

// Read implements io.Reader.
func (r *reader) Read(b []byte) (int, error) {
	if now := time.Now(); now.Before(r.next) && !now.Before(r.fullSpeedUntil) {
		time.Sleep(r.next.Sub(now))
	}
	n, err := r.source.Read(b)
	now := time.Now()
	if !now.Before(r.next) {
		r.next, r.read = Beat(now, Interval), 0
	}
	if r.read += n; r.read >= fullSpeedBytes {
		r.fullSpeedUntil = now.Add(fullSpeedTime)
	}
	return n, err
}
