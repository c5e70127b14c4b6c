package testcluster

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// holdPoll is the time between two looks at whether answers are still held.
	holdPoll = 10 * time.Millisecond
	// maxPending is how many pieces of answers a connection of a Proxy keeps.
	maxPending = 4096
)

// Proxy is a TCP proxy whose answers the test can delay, hold back or lose.
type Proxy struct {
	// Address is the host:port of the proxy.
	Address string
	// Lost says that all answers that arrive are lost.
	Lost atomic.Bool
	// Held says that answers on connections that were made after Mark wait.
	Held   atomic.Bool
	delay  atomic.Int64
	marked atomic.Bool
}

// NewProxy starts a proxy in front of host:port. It ends with the test.
func NewProxy(t *testing.T, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &Proxy{Address: listener.Addr().String()}
	t.Cleanup(func() {
		p.Held.Store(false)
		_ = listener.Close()
	})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client, target, p.marked.Load())
		}
	}()
	return p
}

// Delay delays answers that arrive from now on.
func (p *Proxy) Delay(delay time.Duration) { p.delay.Store(int64(delay)) }

// Mark begins the connections to which Held applies.
func (p *Proxy) Mark() { p.marked.Store(true) }

// piece is a part of an answer, and when it is due.
type piece struct {
	bytes []byte
	due   time.Time
}

func (p *Proxy) serve(client net.Conn, target string, marked bool) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	pieces := make(chan piece, maxPending)
	var all sync.WaitGroup
	all.Go(func() {
		_, _ = server.(*net.TCPConn).ReadFrom(client)
		_ = server.Close()
	})
	all.Go(func() {
		p.read(server, pieces)
		close(pieces)
	})
	all.Go(func() {
		p.write(client, pieces, marked)
		_ = client.Close()
	})
	all.Wait()
}

func (p *Proxy) read(server net.Conn, pieces chan<- piece) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		if !p.Lost.Load() {
			pieces <- piece{append([]byte(nil), buffer[:n]...), time.Now().Add(time.Duration(p.delay.Load()))}
		}
	}
}

// write writes what is due. After an error, it only reads on, so that nobody waits for it.
func (p *Proxy) write(client net.Conn, pieces <-chan piece, marked bool) {
	var failed error
	for next := range pieces {
		for failed == nil && (time.Now().Before(next.due) || marked && p.Held.Load()) {
			time.Sleep(min(holdPoll, max(time.Until(next.due), time.Millisecond)))
		}
		if failed == nil {
			_, failed = client.Write(next.bytes)
		}
	}
}
