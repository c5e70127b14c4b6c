package wire

import (
	"bufio"
	"context"
	"io"
	"net"
	"time"
)

const (
	// Who has more to read than that in a beat, in bytes, reads as it comes for some time: a
	// list must not wait, and with so much to do nobody sleeps anyway.
	muchToRead = 64 << 10
	readFreely = 4 * pace
)

// DialPaced connects as net.Dialer does, to servers that tell of changes all the time. What
// comes after a silence is read at once, and then each beat what has come by then: many
// changes are one wake-up, and none is known much later than replicas tell each other.
func DialPaced(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &pacedConn{Conn: conn, buffered: bufio.NewReaderSize(&pacedReader{source: conn}, muchToRead)}, nil
}

type pacedConn struct {
	net.Conn
	buffered *bufio.Reader
}

func (c *pacedConn) Read(b []byte) (int, error) { return c.buffered.Read(b) }

// pacedReader reads once a beat, unless there is much.
type pacedReader struct {
	source io.Reader
	// read are the bytes since the beat before next.
	read       int
	next, free time.Time
}

func (r *pacedReader) Read(b []byte) (int, error) {
	if now := time.Now(); now.Before(r.next) && !now.Before(r.free) {
		time.Sleep(r.next.Sub(now))
	}
	n, err := r.source.Read(b)
	now := time.Now()
	if !now.Before(r.next) {
		r.next, r.read = Beat(now, pace), 0
	}
	if r.read += n; r.read >= muchToRead {
		r.free = now.Add(readFreely)
	}
	return n, err
}
