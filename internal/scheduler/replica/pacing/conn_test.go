package pacing

import (
	"bufio"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// paced returns a paced connection and its other end.
func paced(t *testing.T) (far net.Conn, near *pacedConn) {
	far, conn := net.Pipe()
	t.Cleanup(func() { far.Close(); conn.Close() })
	return far, newConn(conn)
}

// readAt reads n bytes and returns the time at which they were read.
func readAt(t *testing.T, c io.Reader, n int) time.Time {
	t.Helper()
	if _, err := io.ReadFull(c, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	return time.Now()
}

// TestPacedRead checks that the first data after a pause is read at once and later data at
// the next beat.
func TestPacedRead(t *testing.T) {
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
		if at := readAt(t, near, 100); !at.Equal(Beat(start, Interval)) {
			t.Errorf("the second is read after %v", at.Sub(start))
		}
		third := readAt(t, near, 100)
		if want := Beat(start, Interval).Add(Interval); !third.Equal(want) {
			t.Errorf("the third is read after %v", third.Sub(start))
		}
		if at := readAt(t, near, 100); !at.Equal(third.Add(time.Minute)) {
			t.Errorf("after a pause data is read %v late", at.Sub(third.Add(time.Minute)))
		}
	})
}

// sending is a socket into which a server writes at a rate (bytes per second) until its
// buffer is full.
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

// TestPacedList checks that pacing delays a large list by at most 5 %.
func TestPacedList(t *testing.T) {
	const rate, size = 20 << 20, 200 << 20
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		buffered := bufio.NewReaderSize(&reader{source: &sending{rate: rate, room: 128 << 10, last: start}}, fullSpeedBytes)
		took := readAt(t, buffered, size).Sub(start)
		if at := size / rate * time.Second; took > at+at/20 {
			t.Errorf("the list takes %v, without pacing %v", took, at)
		}
	})
}
