package wire

import (
	"io"
	"net"
	"testing"
	"time"
)

// TestConnectionsThatSayNothingAreClosed opens a connection without sending anything.
func TestConnectionsThatSayNothingAreClosed(t *testing.T) {
	address, stop := serve(t, "127.0.0.1:0", &recorder{})
	defer stop()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(4 * handshakeTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Errorf("reading from the connection: %v, want it to be closed", err)
	}
}
