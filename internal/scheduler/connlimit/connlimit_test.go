package connlimit

import (
	"net"
	"strings"
	"testing"
	"time"
)

func TestConnectionsOverTheLimitAreClosed(t *testing.T) {
	const maxConnections = 16
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	bounded := &Listener{Listener: listener, Limit: maxConnections}
	t.Cleanup(func() { listener.Close() })
	accepted := make(chan net.Conn, maxConnections+1)
	go func() {
		for {
			conn, err := bounded.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	for range maxConnections {
		dial()
		<-accepted
	}
	excess := dial()
	if err := excess.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := excess.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("Read() on a connection over the limit = %v, want an error other than a timeout", err)
	}
	// A connection that is closed twice is counted once.
	bounded.open.Store(maxConnections - 1)
	dial()
	conn := <-accepted
	conn.Close()
	conn.Close()
	if open := bounded.open.Load(); open != maxConnections-1 {
		t.Errorf("%d connections counted as open, want %d", open, maxConnections-1)
	}
}
