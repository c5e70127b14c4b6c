package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// floodConnection is an HTTP/2 connection that sends the same GET again and again. The request is encoded once, and
// several are written together, so that a request costs a small part of what it costs a server.
type floodConnection struct {
	*http2Conn
	// head is the encoded header of the request.
	head []byte
	// mu protects writes, and the writing side of framer.
	mu sync.Mutex
	// next is the number of the next stream.
	next     uint32
	inFlight atomic.Int64
	*responses
}

// responses are the numbers of responses with status 200, and of all others.
type responses struct{ passed, refused atomic.Int64 }

// errMoved means that the server asks a client to dial again.
var errMoved = errors.New("the server asks to dial again")

// dialFlood connects to a server.
func dialFlood(ctx context.Context, address string, credentials *tls.Config, counts *responses) (*floodConnection, error) {
	conn, err := dialHTTP2(ctx, address, credentials)
	if err != nil {
		return nil, err
	}
	return &floodConnection{http2Conn: conn, head: floodHead(address), next: 1, responses: counts}, nil
}

// floodHead returns the encoded header of a small GET of the flood.
func floodHead(address string) []byte {
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	// The same bytes are sent again and again, so nothing may refer to earlier requests.
	encoder.SetMaxDynamicTableSize(0)
	for _, field := range [][2]string{
		{":method", "GET"}, {":scheme", "https"}, {":authority", address}, {":path", smallPath},
		{"accept", protobuf}, {"user-agent", floodAgent},
	} {
		// Writing to a buffer does not fail.
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	return head.Bytes()
}

// send sends requests, at most as many as may be in flight.
func (c *floodConnection) send(requests int) error {
	return c.write(func() error {
		for range min(requests, floodInFlight-int(c.inFlight.Load())) {
			c.inFlight.Add(1)
			if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, BlockFragment: c.head, EndStream: true, EndHeaders: true}); err != nil {
				return err
			}
			c.next += 2
		}
		return nil
	})
}

// write sends the frames that a function writes.
func (c *floodConnection) write(frames func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(frames(), c.writes.Flush())
}

// receive counts responses until the connection ends.
func (c *floodConnection) receive() error {
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			if f.PseudoValue("status") == "200" {
				c.passed.Add(1)
			} else {
				c.refused.Add(1)
			}
			c.end(f.StreamEnded())
		case *http2.DataFrame:
			c.end(f.StreamEnded())
		case *http2.RSTStreamFrame:
			c.refused.Add(1)
			c.end(true)
		case *http2.GoAwayFrame:
			if f.ErrCode == http2.ErrCodeNo {
				return errMoved
			}
			return fmt.Errorf("the server ends the connection: %v", f.ErrCode)
		case *http2.SettingsFrame, *http2.PingFrame:
			err = c.write(func() error { return c.acknowledge(f) })
		}
		if err != nil {
			return err
		}
	}
}

func (c *floodConnection) end(ended bool) {
	if ended {
		c.inFlight.Add(-1)
	}
}
