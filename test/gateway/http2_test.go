package gateway

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// rawConn sends and receives single frames of HTTP/2.
type rawConn struct {
	*tls.Conn
	*http2.Framer
	block bytes.Buffer
	hpack *hpack.Encoder
}

// dialHTTP2 opens a connection and sends the preface and an empty SETTINGS frame.
func (s *standalone) dialHTTP2(t *testing.T, user tls.Certificate) *rawConn {
	t.Helper()
	conn := dial(t, s.gateway, "h2", user)
	c := &rawConn{Conn: conn, Framer: http2.NewFramer(conn, conn)}
	c.hpack = hpack.NewEncoder(&c.block)
	// The test sends invalid frames too.
	c.AllowIllegalWrites, c.AllowIllegalReads = true, true
	_, err := io.WriteString(conn, http2.ClientPreface)
	must(t, err)
	must(t, c.WriteSettings())
	return c
}

// encode returns a header block. Names and values alternate in fields.
func (c *rawConn) encode(fields ...string) []byte {
	c.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = c.hpack.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(c.block.Bytes())
}

// headers sends a header block as one HEADERS frame.
func (c *rawConn) headers(stream uint32, end bool, fields ...string) error {
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.encode(fields...), EndHeaders: true, EndStream: end})
}

// drain reads frames until the connection is closed, or quiet for a time.
func (c *rawConn) drain(t *testing.T, quiet time.Duration) []http2.Frame {
	t.Helper()
	var frames []http2.Frame
	for {
		must(t, c.SetReadDeadline(time.Now().Add(quiet)))
		frame, err := c.ReadFrame()
		if err != nil {
			return frames
		}
		frames = append(frames, frame)
	}
}

// http2Case is a request of HTTP/2, as its header block and what follows.
type http2Case struct {
	name string
	// fields is the header block; body and trailers follow if they are not nil.
	fields, trailers []string
	body             string
	want             []string
}

// start returns the pseudo-header fields of a request, and further fields.
func start(method string, more ...string) []string {
	return append([]string{":method", method, ":scheme", "https", ":path", "/{id}", ":authority", "a"}, more...)
}

func http2Cases() []http2Case {
	one := []string{`GET /{id} ""`}
	hello := []string{`POST /{id} "hello"`}
	field := func(name, value string, want ...string) http2Case {
		return http2Case{name: fmt.Sprintf("field %q: %q", name, value), fields: start("GET", name, value), want: want}
	}
	path := func(path string, want ...string) http2Case {
		return http2Case{name: fmt.Sprintf("path %q", path), fields: []string{":method", "GET", ":scheme", "https", ":path", path, ":authority", "a"}, want: want}
	}
	return []http2Case{
		{name: "complete", fields: start("GET"), want: one},
		field("x", "a\r\nx-remote-user: admin"), field("x", "a\nx-remote-user: admin"), field("x", "a\rb"), field("x", "a\x00b"),
		field("x\r\nx-remote-user", "admin"), field("x-remote-user: admin\r\nx", "a"), field("X-Remote-User", "admin"), field("x y", "a"), field("", "a"),
		field("x:", "a"), field("x-remote-user", "admin", one...), field("x-remote-group", "system:masters", one...), field("x-remote-uid", "0", one...),
		field("x", " x-remote-user ", one...), field("connection", "x-remote-user"), field("connection", "upgrade"), field("keep-alive", "1"),
		field("proxy-connection", "x-remote-user"), field("transfer-encoding", "chunked"), field("te", "gzip"), field("te", "trailers", one...),
		field("upgrade", "websocket"), field(":path", "/{id}/smuggled"), field(":unknown", "a"), field("host", "b", one...),
		field("host", "a\r\nx: y"), field("content-length", "5"), field("content-length", "-1"), field("content-length", "5, 5"),
		field("cookie", "a=b", one...), field("http2-settings", "AAMAAABkAAQAoAAAAAIAAAAA", one...),
		path(""), path("{id}"), path("*"), path("/{id} HTTP/1.1\r\nX-Remote-User: admin\r\n\r\nGET /{id}/smuggled"), path("/{id}\r\n"), path("/{id}\x00"),
		path("/{id} x"), path("https://b/{id}"), path("//{id}", `GET //{id} ""`), path("/../{id}", `GET /../{id} ""`), path("/{id}#x", `GET /{id} "" or "#x"`),
		{name: "two paths", fields: append(start("GET"), ":path", "/{id}/smuggled")},
		{name: "no path", fields: []string{":method", "GET", ":scheme", "https", ":authority", "a"}},
		{name: "no method", fields: []string{":path", "/{id}", ":scheme", "https", ":authority", "a"}},
		{name: "no scheme", fields: []string{":method", "GET", ":path", "/{id}", ":authority", "a"}},
		{name: "no authority", fields: []string{":method", "GET", ":scheme", "https", ":path", "/{id}"}, want: one},
		{name: "scheme http", fields: []string{":method", "GET", ":scheme", "http", ":path", "/{id}", ":authority", "a"}, want: one},
		{name: "pseudo-header field after others", fields: []string{":method", "GET", ":scheme", "https", "x", "y", ":path", "/{id}", ":authority", "a"}},
		{name: "method with an end of line", fields: start("GET /{id}/smuggled HTTP/1.1\r\nX: y\r\n\r\nGET")},
		{name: "method with a blank", fields: start("GET /")},
		{name: "authority with an end of line", fields: []string{":method", "GET", ":scheme", "https", ":path", "/{id}", ":authority", "a\r\nX-Remote-User: admin"}},
		{name: "authority with a user", fields: []string{":method", "GET", ":scheme", "https", ":path", "/{id}", ":authority", "b@a"}, want: one},
		{name: "CONNECT", fields: []string{":method", "CONNECT", ":authority", "{id}:443"}},
		{name: "extended CONNECT", fields: append(start("CONNECT"), ":protocol", "websocket")},
		{name: "body", fields: start("POST"), body: "hello", want: hello},
		{name: "body with its length", fields: start("POST", "content-length", "5"), body: "hello", want: hello},
		{name: "body longer than its length", fields: start("POST", "content-length", "2"), body: "hello"},
		{name: "body shorter than its length", fields: start("POST", "content-length", "50"), body: "hello"},
		{name: "two lengths", fields: start("POST", "content-length", "5", "content-length", "2"), body: "hello"},
		{name: "trailers that claim a user", fields: start("POST"), body: "hello", trailers: []string{"x-remote-user", "admin", "x-remote-group", "system:masters"}, want: hello},
		{name: "announced trailers", fields: start("POST", "trailer", "x-remote-user"), body: "hello", trailers: []string{"x-remote-user", "admin"}, want: hello},
		{name: "trailers with a path", fields: start("POST"), body: "hello", trailers: []string{":path", "/{id}/smuggled"}, want: hello},
		{name: "trailers with an end of line", fields: start("POST"), body: "hello", trailers: []string{"x", "a\r\nb"}},
		{name: "body that looks like a request", fields: start("POST"), body: "0\r\n\r\nGET /{id}/smuggled HTTP/1.1\r\n\r\n",
			want: []string{`POST /{id} "0\r\n\r\nGET /{id}/smuggled HTTP/1.1\r\n\r\n"`}},
	}
}

// TestHTTP2Smuggling does with HTTP/2 what TestSmuggling does with HTTP/1.1. A request whose body is not what its length
// says may reach the API server, but the API server must see that it is not complete.
func TestHTTP2Smuggling(t *testing.T) {
	s := newStandalone(t, nil)
	user := s.user(t, "alice", "dev")
	all := http2Cases()
	answers := make([][]http2.Frame, len(all))
	inParallel(len(all), func(i int) { answers[i] = all[i].send(t, s, user, caseName('c', i), quiet) })
	for i, c := range all {
		t.Run(c.name, func(t *testing.T) {
			var found remarks
			if c.judge(&found, s, caseName('c', i), answers[i]); len(found) > 0 {
				t.Logf("repeated because the answer may be late: %q", found)
				c.judge(t, s, caseName('r', i), c.send(t, s, user, caseName('r', i), latest))
			}
		})
	}
	s.alive(t)
}

// judge compares what the API server received with what it may receive.
func (c http2Case) judge(t reporter, s *standalone, id string, answers []http2.Frame) {
	t.Helper()
	requests := complete(s.of(id))
	for _, request := range requests {
		if len(request.Trailer) != 0 {
			t.Errorf("%v has the trailers %v", request, request.Trailer)
		}
	}
	check(t, smuggling{name: c.name, raw: fmt.Sprint(c.fields), want: c.want}, id, requests, fmt.Sprint(answers))
}

// send sends the request of a case and returns the answers, until there is none for a time.
func (c http2Case) send(t *testing.T, s *standalone, user tls.Certificate, id string, quiet time.Duration) []http2.Frame {
	t.Helper()
	replace := func(fields []string) []string {
		replaced := slices.Clone(fields)
		for i := range replaced {
			replaced[i] = strings.ReplaceAll(replaced[i], "{id}", id)
		}
		return replaced
	}
	conn := s.dialHTTP2(t, user)
	defer conn.Close()
	withBody := c.body != ""
	must(t, conn.headers(1, !withBody, replace(c.fields)...))
	if withBody {
		// The gateway may have closed the connection.
		_ = conn.WriteData(1, c.trailers == nil, []byte(strings.ReplaceAll(c.body, "{id}", id)))
		if c.trailers != nil {
			_ = conn.headers(1, true, replace(c.trailers)...)
		}
	}
	return conn.drain(t, quiet)
}

// flood is a client that wants to exhaust the gateway. It writes until an error.
type flood struct {
	name string
	// frames is the number of calls of write.
	frames int
	write  func(c *rawConn, number int) error
}

func floods() []flood {
	var request []byte
	get := func(c *rawConn, number int) error {
		return c.headers(uint32(2*number+1), true, start("GET", "x", "y")...)
	}
	return []flood{
		{"rapid reset", 20_000, func(c *rawConn, number int) error {
			if err := get(c, number); err != nil {
				return err
			}
			return c.WriteRSTStream(uint32(2*number+1), http2.ErrCodeCancel)
		}},
		{"reset by a wrong window update", 20_000, func(c *rawConn, number int) error {
			if err := get(c, number); err != nil {
				return err
			}
			return c.WriteRawFrame(http2.FrameWindowUpdate, 0, uint32(2*number+1), []byte{0, 0, 0, 0})
		}},
		{"CONTINUATION", 100_000, func(c *rawConn, number int) error {
			if number == 0 {
				request = c.encode(append(start("GET"), "x", strings.Repeat("y", 10_000))...)
				return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: request})
			}
			return c.WriteContinuation(1, false, c.encode("x", strings.Repeat("y", 10_000)))
		}},
		{"empty CONTINUATION", 200_000, func(c *rawConn, number int) error {
			if number == 0 {
				return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.encode(start("GET")...)})
			}
			return c.WriteContinuation(1, false, nil)
		}},
		{"SETTINGS", 100_000, func(c *rawConn, _ int) error { return c.WriteSettings() }},
		{"PING", 100_000, func(c *rawConn, _ int) error { return c.WritePing(false, [8]byte{}) }},
		{"PRIORITY", 100_000, func(c *rawConn, number int) error {
			return c.WritePriority(uint32(2*number+1), http2.PriorityParam{StreamDep: 3, Weight: 1})
		}},
		{"empty DATA", 100_000, func(c *rawConn, number int) error {
			if number == 0 {
				return c.headers(1, false, start("POST")...)
			}
			return c.WriteData(1, false, nil)
		}},
		{"more streams than allowed", 20_000, func(c *rawConn, number int) error {
			return c.headers(uint32(2*number+1), false, start("POST")...)
		}},
		{"decompressed header of 40 MiB", 1, func(c *rawConn, _ int) error {
			// The value is in the dynamic table after its first use, so each further use is one byte.
			fields := start("GET")
			for range 10_000 {
				fields = append(fields, "x", strings.Repeat("y", 4000))
			}
			return c.headers(1, true, fields...)
		}},
	}
}

const (
	// floodMemory bounds what one hostile client adds to the memory of the gateway.
	floodMemory = 64 << 10 // KiB
	// floodTime is how long a hostile client writes at most.
	floodTime = 20 * time.Second
)

// TestHTTP2Floods checks that a hostile client costs the gateway neither much memory nor the service of others.
func TestHTTP2Floods(t *testing.T) {
	s := newStandalone(t, nil)
	user := s.user(t, "alice", "dev")
	bystander := httpClient(t, []tls.Certificate{s.user(t, "bob")}, true)
	s.alive(t)
	for _, f := range floods() {
		t.Run(f.name, func(t *testing.T) {
			before := s.residentKiB(t)
			conn := s.dialHTTP2(t, user)
			conn.SetReuseFrames()
			go func() { _, _ = io.Copy(io.Discard, conn.Conn) }()
			slowest, stop := measure(t, bystander, s.gateway)
			must(t, conn.SetWriteDeadline(time.Now().Add(floodTime)))
			sent := 0
			for ; sent < f.frames; sent++ {
				if f.write(conn, sent) != nil {
					break
				}
			}
			after := s.residentKiB(t)
			close(stop)
			latency := <-slowest
			t.Logf("%d of %d sent, memory %d to %d KiB, slowest request of another client %v", sent, f.frames, before, after, latency)
			if after > before+floodMemory {
				t.Errorf("memory grew from %d to %d KiB", before, after)
			}
			if latency > startTimeout {
				t.Errorf("another client waited %v", latency)
			}
			_ = conn.Close()
		})
	}
	s.alive(t)
}

// measure sends requests until stop is closed, and then returns the slowest time.
func measure(t *testing.T, client *http.Client, address string) (<-chan time.Duration, chan<- struct{}) {
	result, stop := make(chan time.Duration, 1), make(chan struct{})
	go func() {
		var slowest time.Duration
		for {
			started := time.Now()
			response, err := client.Get("https://" + address + "/bystander")
			if err != nil || response.StatusCode != http.StatusOK {
				t.Errorf("another client: %v %v", response, err)
				break
			}
			_ = response.Body.Close()
			slowest = max(slowest, time.Since(started))
			select {
			case <-stop:
				result <- slowest
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
		<-stop
		result <- slowest
	}()
	return result, stop
}
