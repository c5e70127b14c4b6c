package gateway

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// echo answers with the body of the request.
func echo(w http.ResponseWriter, request *http.Request) { _, _ = io.Copy(w, request.Body) }

func nodeConnTo(t *testing.T, server *httptest.Server) *nodeConn {
	t.Helper()
	c := &nodeConn{
		front:       &front{name: direct, addresses: []string{server.Listener.Addr().String()}},
		credentials: server.Client().Transport.(*http.Transport).TLSClientConfig,
	}
	t.Cleanup(c.close)
	return c
}

func echoServer(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// The requests together are larger than the window of a connection, so that the server has to enlarge it.
func TestNodeConnEnlargesItsWindow(t *testing.T) {
	c := nodeConnTo(t, echoServer(t))
	body := strings.Repeat("x", 1000)
	for range 5 * initialWindow / len(body) {
		answer, err := c.exchange(t.Context(), nodeRequest{http.MethodPut, "/", []byte(body)})
		if err != nil || answer.status != http.StatusOK || string(answer.body) != body {
			t.Fatalf("exchange() = %d, %q, %v; want the body of the request", answer.status, answer.body, err)
		}
	}
}

// A connection that the server closed fails once, and is opened again by the next request.
func TestNodeConnDialsAgain(t *testing.T) {
	server := echoServer(t)
	c := nodeConnTo(t, server)
	put := nodeRequest{http.MethodPut, "/", []byte("x")}
	if _, err := c.exchange(t.Context(), put); err != nil {
		t.Fatal(err)
	}
	server.CloseClientConnections()
	if _, err := c.exchange(t.Context(), put); err == nil || kindOf(err) != "connection" {
		t.Errorf("exchange() over a closed connection = %v, want an error", err)
	}
	if _, err := c.exchange(t.Context(), put); err != nil {
		t.Errorf("exchange() afterwards = %v", err)
	}
}

// A request that a leaving server did not execute is sent again, on another connection.
func TestNodeConnFollowsAGoAway(t *testing.T) {
	model := echoServer(t)
	config := model.TLS.Clone()
	config.NextProtos = []string{http2.NextProtoTLS}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		first, err := listener.Accept()
		if err != nil {
			return
		}
		refuse(first)
		_ = (&http.Server{Handler: http.HandlerFunc(echo)}).Serve(listener)
	}()
	c := nodeConnTo(t, model)
	c.front.addresses = []string{listener.Addr().String()}
	answer, err := c.exchange(t.Context(), nodeRequest{http.MethodPut, "/", []byte("x")})
	if err != nil || string(answer.body) != "x" {
		t.Errorf("exchange() = %q, %v; want the answer of the second connection", answer.body, err)
	}
}

// refuse answers the first request of a connection with GOAWAY.
func refuse(conn net.Conn) {
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	framer := http2.NewFramer(conn, conn)
	for framer.WriteSettings() == nil {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		if _, ok := frame.(*http2.DataFrame); ok {
			_ = framer.WriteGoAway(0, http2.ErrCodeNo, nil)
			_, _ = io.Copy(io.Discard, conn) // until the client closes the connection
			return
		}
	}
}
