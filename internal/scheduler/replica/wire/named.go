package wire

import (
	"context"
	"crypto/x509"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// named are TLS credentials that know the name of the replica at the other side.
type named struct {
	credentials.TransportCredentials
	tls *TLS
	// usage is the usage that the certificate of the other side must have.
	usage x509.ExtKeyUsage
}

// peerInfo is what gRPC knows about the other side of a connection.
type peerInfo struct {
	credentials.TLSInfo
	// name is the name of the replica in the certificate.
	name string
}

// connection is a TLS connection to another replica.
type connection struct {
	net.Conn
	tls   *TLS
	peer  []*x509.Certificate
	usage x509.ExtKeyUsage
	name  string
}

// Close closes the connection.
func (c *connection) Close() error {
	c.tls.mu.Lock()
	delete(c.tls.open, c)
	c.tls.mu.Unlock()
	return c.Conn.Close()
}

// ClientHandshake connects to a server.
func (n *named) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := n.TransportCredentials.ClientHandshake(ctx, authority, raw)
	return n.track(raw, conn, info, err)
}

// ServerHandshake accepts a client.
func (n *named) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := n.TransportCredentials.ServerHandshake(raw)
	return n.track(raw, conn, info, err)
}

// track adds the name of the other side to a connection after its handshake.
func (n *named) track(raw, conn net.Conn, info credentials.AuthInfo, err error) (net.Conn, credentials.AuthInfo, error) {
	if rejected := (*certificateError)(nil); errors.As(err, &rejected) {
		n.tls.logRejected(raw.RemoteAddr(), rejected)
	}
	if err != nil {
		return nil, nil, err
	}
	state := info.(credentials.TLSInfo)
	id, err := membership.IdentityOf(state.State.PeerCertificates[0])
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	c := &connection{Conn: conn, tls: n.tls, peer: state.State.PeerCertificates, usage: n.usage, name: id.Name}
	n.tls.mu.Lock()
	n.tls.open[c] = true
	n.tls.mu.Unlock()
	return c, peerInfo{state, id.Name}, nil
}

// Clone returns a copy.
func (n *named) Clone() credentials.TransportCredentials {
	return &named{TransportCredentials: n.TransportCredentials.Clone(), tls: n.tls, usage: n.usage}
}

// callerOf returns the name of the replica that has called a method, from its certificate. known is false
// without TLS.
func callerOf(ctx context.Context) (name string, known bool) {
	if p, ok := peer.FromContext(ctx); ok {
		info, ok := p.AuthInfo.(peerInfo)
		return info.name, ok
	}
	return "", false
}
