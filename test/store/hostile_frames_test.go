package store

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The tests in this file are hostile clients that send frames of a few bytes which cost the server much
// more. They end with GOAWAY, or use a bounded amount of memory.

// longName returns a header block that adds a field with a name of 4,000 bytes to the table of HPACK.
// Its index is 62 until the table changes.
func (c *rawConn) longName(t *testing.T) []byte {
	t.Helper()
	c.block.Reset()
	if err := c.hpack.WriteField(hpack.HeaderField{Name: strings.Repeat("n", 4000)}); err != nil {
		t.Fatal(err)
	}
	return c.block.Bytes()
}

// longBlock is a header block of 15 bytes that is decoded to 60 KiB: 15 references to index 62.
var longBlock = bytes.Repeat([]byte{0xbe}, 15)

// checkCalmed sends bytes, and checks that the server closes the connection with ENHANCE_YOUR_CALM.
func (c *rawConn) checkCalmed(t *testing.T, frames []byte) {
	t.Helper()
	go func() { _, _ = c.Conn.Write(frames) }()
	frame := c.readUntil(t, func(frame http2.Frame) bool { return frame.Header().Type == http2.FrameGoAway }).(*http2.GoAwayFrame)
	if frame.ErrCode != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("GOAWAY with %v and the debug data %q; want ENHANCE_YOUR_CALM", frame.ErrCode, frame.DebugData())
	}
}

// TestHostileTrailers ends requests with trailers of 15 bytes that are decoded to 60 KiB.
func TestHostileTrailers(t *testing.T) {
	s := startMemEtcd(t)
	conn := dialRaw(t, s)
	streams := scaled(1000, 2500)
	for n := range streams {
		if err := conn.call(uint32(2*n+1), "/etcdserverpb.KV/Put"); err != nil {
			t.Fatal(err)
		}
	}
	stop := bystander(t, s)
	before := residentMemory(t, s)
	var frames bytes.Buffer
	framer := http2.NewFramer(&frames, nil)
	for n := range streams {
		block := longBlock
		if n == 0 {
			block = conn.longName(t)
		}
		trailers := http2.HeadersFrameParam{StreamID: uint32(2*n + 1), BlockFragment: block, EndHeaders: true, EndStream: true}
		if err := framer.WriteHeaders(trailers); err != nil {
			t.Fatal(err)
		}
	}
	conn.checkCalmed(t, frames.Bytes())
	grown := residentMemory(t, s) - before
	if grown > 24<<20 {
		t.Errorf("resident memory grew by %s; want at most 24 MiB", mib(grown))
	}
	t.Logf("%d trailers; memory grew by %s; %s", streams, mib(grown), stop())
}

// TestHostileAbandonedTrailers sends trailers for a stream that the server has ended.
func TestHostileAbandonedTrailers(t *testing.T) {
	s := startMemEtcd(t)
	stop := bystander(t, s)
	conn := dialRaw(t, s)
	if err := conn.call(1, "/no.such/Method"); err != nil {
		t.Fatal(err)
	}
	conn.readUntil(t, func(frame http2.Frame) bool { return frame.Header().Type == http2.FrameRSTStream })
	trailers := http2.HeadersFrameParam{StreamID: 1, BlockFragment: conn.longName(t), EndHeaders: true, EndStream: true}
	var frames bytes.Buffer
	framer := http2.NewFramer(&frames, nil)
	for range 100_000 {
		if err := framer.WriteHeaders(trailers); err != nil {
			t.Fatal(err)
		}
		trailers.BlockFragment = longBlock
	}
	conn.checkCalmed(t, frames.Bytes())
	t.Log(stop())
}

// TestHostileWindows changes the initial window of many open streams. Each change costs time for each
// stream.
func TestHostileWindows(t *testing.T) {
	s := startMemEtcd(t)
	conn := dialRaw(t, s)
	streams := scaled(20_000, 65_000)
	for n := range streams {
		if err := conn.call(uint32(2*n+1), "/etcdserverpb.KV/Put"); err != nil {
			t.Fatal(err)
		}
	}
	stop := bystander(t, s)
	var frames bytes.Buffer
	framer := http2.NewFramer(&frames, nil)
	for n := range 900 {
		setting := http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(65_536 + n)}
		if err := framer.WriteSettings(setting); err != nil {
			t.Fatal(err)
		}
	}
	conn.checkCalmed(t, frames.Bytes())
	t.Logf("%d streams; %s", streams, stop())
}
