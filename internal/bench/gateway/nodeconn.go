package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// initialWindow is the number of bytes that a client may send before the server grants more.
const initialWindow = 65535

// nodeConn is the connection of a node to a front. It has one request at a time, and the goroutine that sends it also reads
// the answer. With net/http, the load generator took four times the CPU of kube-gateway for a renewal, and so decided how
// many renewals there were at the highest load. Not safe for concurrent use.
type nodeConn struct {
	front       *front
	number      int
	credentials *tls.Config
	// session is nil before the first request, after an error and after the server asked to dial again.
	session *nodeSession
}

// nodeSession is a connection that is open.
type nodeSession struct {
	*http2Conn
	encoder *hpack.Encoder
	head    bytes.Buffer
	next    uint32
	// window is the number of bytes that may be sent on the connection.
	window int
	// leaving is true after the server has asked to dial again.
	leaving bool
}

// nodeRequest is a request of a node. body is empty for a GET.
type nodeRequest struct {
	method, path string
	body         []byte
}

// nodeAnswer is what a server answered.
type nodeAnswer struct {
	status int
	body   []byte
}

// errNotProcessed means that the server has not executed the request and asks to dial again.
var errNotProcessed = errors.New("the server asks to dial again, and has not executed the request")

// connect opens the connection if it is not open.
func (c *nodeConn) connect(ctx context.Context) error {
	if c.session != nil {
		return nil
	}
	conn, err := dialHTTP2(ctx, c.front.address(c.number), c.credentials)
	if err != nil {
		return err
	}
	conn.framer.SetReuseFrames()
	c.session = &nodeSession{http2Conn: conn, next: 1, window: initialWindow}
	c.session.encoder = hpack.NewEncoder(&c.session.head)
	return nil
}

// close closes the connection.
func (c *nodeConn) close() {
	if c.session != nil {
		_ = c.session.socket.Close()
		c.session = nil
	}
}

// exchange sends a request and returns the answer. ctx applies before the request is sent; the answer has leaseTimeout.
// A request that the server has not executed because it leaves is sent again on another connection.
func (c *nodeConn) exchange(ctx context.Context, request nodeRequest) (nodeAnswer, error) {
	answer, err := c.try(ctx, request)
	if errors.Is(err, errNotProcessed) {
		return c.try(ctx, request)
	}
	return answer, err
}

func (c *nodeConn) try(ctx context.Context, request nodeRequest) (nodeAnswer, error) {
	if err := errors.Join(ctx.Err(), c.connect(ctx)); err != nil {
		return nodeAnswer{}, err
	}
	s := c.session
	err := s.socket.SetDeadline(time.Now().Add(leaseTimeout))
	if err == nil {
		err = s.send(c.front.addresses[0], request)
	}
	var answer nodeAnswer
	if err == nil {
		answer, err = s.receive()
	}
	if err != nil || s.leaving {
		c.close()
	}
	return answer, err
}

// send writes a request, with the fields that kubelets send.
func (s *nodeSession) send(authority string, request nodeRequest) error {
	if err := s.awaitWindow(len(request.body)); err != nil {
		return err
	}
	s.head.Reset()
	fields := [][2]string{
		{":authority", authority}, {":method", request.method}, {":path", request.path}, {":scheme", "https"},
		{"accept", protobuf + ",application/json"}, {"user-agent", kubeletAgent},
	}
	if len(request.body) > 0 {
		fields = append(fields, [2]string{"content-type", protobuf}, [2]string{"content-length", strconv.Itoa(len(request.body))})
	}
	for _, field := range fields {
		// Writing to a buffer does not fail.
		_ = s.encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	err := s.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: s.next, BlockFragment: s.head.Bytes(), EndStream: len(request.body) == 0, EndHeaders: true,
	})
	if len(request.body) > 0 {
		err = errors.Join(err, s.framer.WriteData(s.next, true, request.body))
		s.window -= len(request.body)
	}
	s.next += 2
	return errors.Join(err, s.writes.Flush())
}

// awaitWindow reads until the server has granted so many bytes.
func (s *nodeSession) awaitWindow(size int) error {
	for s.window < size {
		frame, err := s.framer.ReadFrame()
		if err != nil {
			return err
		}
		if err := s.control(frame); err != nil {
			return err
		}
	}
	return nil
}

// receive returns the answer to the request that was sent last.
func (s *nodeSession) receive() (answer nodeAnswer, err error) {
	stream := s.next - 2
	for {
		frame, err := s.framer.ReadFrame()
		if err != nil {
			return answer, err
		}
		ended := false
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			// Trailers have no status.
			if status := f.PseudoValue("status"); status != "" {
				answer.status, err = strconv.Atoi(status)
			}
			ended = f.StreamEnded()
		case *http2.DataFrame:
			answer.body = append(answer.body, f.Data()...)
			ended = f.StreamEnded()
		case *http2.RSTStreamFrame:
			return answer, fmt.Errorf("the server ended the request: %v", f.ErrCode)
		case *http2.GoAwayFrame:
			s.leaving = true
			if f.ErrCode != http2.ErrCodeNo {
				err = fmt.Errorf("the server ends the connection: %v", f.ErrCode)
			} else if f.LastStreamID < stream {
				err = errNotProcessed
			}
		default:
			err = s.control(frame)
		}
		if err != nil || ended {
			return answer, err
		}
	}
}

// control handles a frame that belongs to no request.
func (s *nodeSession) control(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			s.window += int(f.Increment)
		}
	case *http2.SettingsFrame:
		if size, ok := f.Value(http2.SettingHeaderTableSize); ok {
			s.encoder.SetMaxDynamicTableSizeLimit(size)
		}
	case *http2.GoAwayFrame:
		s.leaving = true
		return errNotProcessed
	}
	return errors.Join(s.acknowledge(frame), s.writes.Flush())
}

// failed returns an error for a status above 299.
func (a nodeAnswer) failed() error {
	if a.status >= http.StatusMultipleChoices {
		return statusError(a.status)
	}
	return nil
}
