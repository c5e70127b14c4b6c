package pacing

import (
	"bufio"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// newPacedPipe returns a paced connection and its remote end.
func newPacedPipe(t *testing.T) (remote net.Conn, local *pacedConn) {
	remote, conn := net.Pipe()
	t.Cleanup(func() { remote.Close(); conn.Close() })
	return remote, newConn(conn)
}

// readAt reads n bytes and returns the time at which they were read.
func readAt(t *testing.T, c io.Reader, n int) time.Time {
	t.Helper()
	if _, err := io.ReadFull(c, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	return time.Now()
}

// TestReadsAreDelayedUntilTheNextBeat checks that the first data after a pause is read immediately
// and later data at the next beat.
func TestReadsAreDelayedUntilTheNextBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		remote, local := newPacedPipe(t)
		go func() {
			for range 3 {
				remote.Write(make([]byte, 100))
			}
			time.Sleep(time.Minute)
			remote.Write(make([]byte, 100))
		}()
		start := time.Now()
		if at := readAt(t, local, 100); !at.Equal(start) {
			t.Errorf("the first write was read after %v, want 0s", at.Sub(start))
		}
		if at, want := readAt(t, local, 100), Beat(start, Interval); !at.Equal(want) {
			t.Errorf("the second write was read after %v, want %v", at.Sub(start), want.Sub(start))
		}
		third := readAt(t, local, 100)
		if want := Beat(start, Interval).Add(Interval); !third.Equal(want) {
			t.Errorf("the third write was read after %v, want %v", third.Sub(start), want.Sub(start))
		}
		if at, want := readAt(t, local, 100), third.Add(time.Minute); !at.Equal(want) {
			t.Errorf("a write after a pause was read with a delay of %v, want 0s", at.Sub(want))
		}
	})
}

// socket simulates a socket into which a server writes at a rate (bytes per second) until the
// receive buffer is full.
type socket struct {
	rate, capacity int
	lastRead       time.Time
	buffered       int
}

func (s *socket) Read(b []byte) (int, error) {
	for {
		now := time.Now()
		s.buffered = min(s.capacity, s.buffered+int(now.Sub(s.lastRead).Seconds()*float64(s.rate)))
		s.lastRead = now
		if n := min(s.buffered, len(b)); n > 0 {
			s.buffered -= n
			return n, nil
		}
		time.Sleep(time.Millisecond)
	}
}

// TestPacingHardlyDelaysLargeLists checks that pacing delays a large list by at most 5 %.
func TestPacingHardlyDelaysLargeLists(t *testing.T) {
	const rate, size = 20 << 20, 200 << 20
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		buffered := bufio.NewReaderSize(&reader{source: &socket{rate: rate, capacity: 128 << 10, lastRead: start}}, fullSpeedBytes)
		took := readAt(t, buffered, size).Sub(start)
		if unpaced := size / rate * time.Second; took > unpaced+unpaced/20 {
			t.Errorf("reading the list took %v, want at most 5 %% more than the %v without pacing", took, unpaced)
		}
	})
}
