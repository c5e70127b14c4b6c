package wire

import (
	"bufio"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// paced is a paced connection, and what the other end writes to.
func paced(t *testing.T) (far net.Conn, near *pacedConn) {
	far, conn := net.Pipe()
	t.Cleanup(func() { far.Close(); conn.Close() })
	return far, &pacedConn{Conn: conn, buffered: bufio.NewReaderSize(&pacedReader{source: conn}, muchToRead)}
}

// readAt reads n bytes, and returns when that was.
func readAt(t *testing.T, c io.Reader, n int) time.Time {
	t.Helper()
	if _, err := io.ReadFull(c, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	return time.Now()
}

// TestPaced writes a little: the first is read at once, and what follows at the next beat.
func TestPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far, near := paced(t)
		go func() {
			for range 3 {
				far.Write(make([]byte, 100))
			}
			time.Sleep(time.Minute)
			far.Write(make([]byte, 100))
		}()
		start := time.Now()
		if at := readAt(t, near, 100); !at.Equal(start) {
			t.Errorf("the first is read after %v", at.Sub(start))
		}
		if at := readAt(t, near, 100); !at.Equal(Beat(start, pace)) {
			t.Errorf("the second is read after %v", at.Sub(start))
		}
		third := readAt(t, near, 100)
		if want := Beat(start, pace).Add(pace); !third.Equal(want) {
			t.Errorf("the third is read after %v", third.Sub(start))
		}
		if at := readAt(t, near, 100); !at.Equal(third.Add(time.Minute)) {
			t.Errorf("after a silence it is read %v late", at.Sub(third.Add(time.Minute)))
		}
	})
}

// sending is a socket into which a server writes at a rate, in bytes a second, until it is
// full.
type sending struct {
	rate, room int
	last       time.Time
	waiting    int
}

func (s *sending) Read(b []byte) (int, error) {
	for {
		now := time.Now()
		s.waiting = min(s.room, s.waiting+int(now.Sub(s.last).Seconds()*float64(s.rate)))
		s.last = now
		if n := min(s.waiting, len(b)); n > 0 {
			s.waiting -= n
			return n, nil
		}
		time.Sleep(time.Millisecond)
	}
}

// TestPacedList reads a list, which takes hardly longer than the server does.
func TestPacedList(t *testing.T) {
	const rate, size = 20 << 20, 200 << 20
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		reader := bufio.NewReaderSize(&pacedReader{source: &sending{rate: rate, room: 128 << 10, last: start}}, muchToRead)
		took := readAt(t, reader, size).Sub(start)
		if at := size / rate * time.Second; took > at+at/20 {
			t.Errorf("the list takes %v, and %v without pacing", took, at)
		}
	})
}
