package pacing

import (
	"bufio"
	"context"
	"io"
	"net"
	"time"
)

const (
	// After a connection has delivered fullSpeedBytes between two beats, it is read without delay
	// for fullSpeedTime, because a list must not be delayed, and pacing saves nothing under load.
	fullSpeedBytes = 64 << 10
	fullSpeedTime  = 4 * Interval
)

// Dial connects like net.Dialer, for connections that carry watches. The first data after a pause is read
// immediately, and later data at each beat. So many events cause one wake-up, and no event is delayed by
// more than [Interval].
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

// reader reads from its source once per beat, or without delay after it has read much data.
type reader struct {
	source io.Reader
	// bytesRead is the number of bytes that were read between the last beat and nextBeat.
	bytesRead int
	nextBeat  time.Time
	// Reads before fullSpeedUntil are not delayed.
	fullSpeedUntil time.Time
}

// Read implements io.Reader.
func (r *reader) Read(b []byte) (int, error) {
	if now := time.Now(); now.Before(r.nextBeat) && !now.Before(r.fullSpeedUntil) {
		time.Sleep(r.nextBeat.Sub(now))
	}
	n, err := r.source.Read(b)
	now := time.Now()
	if !now.Before(r.nextBeat) {
		r.nextBeat, r.bytesRead = Beat(now, Interval), 0
	}
	if r.bytesRead += n; r.bytesRead >= fullSpeedBytes {
		r.fullSpeedUntil = now.Add(fullSpeedTime)
	}
	return n, err
}
