package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// receiveWindow is the size of the receive window of a connection, in bytes. It is never enlarged: the responses are
// smaller than that together.
const receiveWindow = 1 << 30

// http2Conn is an HTTP/2 connection whose frames the load generator writes itself, which costs a small part of what
// net/http does. Frames are sent by a flush of writes.
type http2Conn struct {
	socket *tls.Conn
	writes *bufio.Writer
	framer *http2.Framer
}

// dialHTTP2 connects to a server and sends the preface. ctx may end afterwards.
func dialHTTP2(ctx context.Context, address string, credentials *tls.Config) (*http2Conn, error) {
	config := credentials.Clone()
	config.NextProtos = []string{http2.NextProtoTLS}
	config.ServerName, _, _ = net.SplitHostPort(address)
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	socket, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &http2Conn{socket: socket.(*tls.Conn), writes: bufio.NewWriter(socket)}
	c.framer = http2.NewFramer(c.writes, bufio.NewReader(socket))
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err = c.writes.WriteString(http2.ClientPreface)
	err = errors.Join(err,
		c.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0}),
		c.framer.WriteWindowUpdate(0, receiveWindow),
		c.writes.Flush())
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return c, nil
}

// acknowledge writes the answer to a frame that needs one: SETTINGS or PING.
func (c *http2Conn) acknowledge(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return c.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.framer.WritePing(true, f.Data)
		}
	}
	return nil
}
