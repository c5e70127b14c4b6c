package wire

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// connections are client connections to other replicas.
type connections struct {
	mu   sync.Mutex
	open map[target]*grpc.ClientConn
}

// target is a replica to which a connection leads. The name matters too, because the certificate of the
// other side must have it.
type target struct{ name, address string }

func targetOf(m membership.Member) target { return target{m.Name, m.Address} }

// get returns the connection to a replica, and creates it if there is none. gRPC connects in the
// background.
func (c *connections) get(to membership.Member, certificates *TLS) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if connection := c.open[targetOf(to)]; connection != nil {
		return connection, nil
	}
	connection, err := grpc.NewClient("passthrough:///"+to.Address,
		grpc.WithTransportCredentials(certificates.clientCredentials(to.Name)),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connectionWindow),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{}), grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: pingTimeout, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second,
		}),
	)
	if err != nil {
		return nil, err
	}
	if c.open == nil {
		c.open = map[target]*grpc.ClientConn{}
	}
	c.open[targetOf(to)] = connection
	return connection, nil
}

// Keep closes the connections to all replicas except the given members.
func (d *Dialer) Keep(members []membership.Member) {
	targets := map[target]bool{}
	for _, member := range members {
		targets[targetOf(member)] = true
	}
	c := &d.connections
	c.mu.Lock()
	defer c.mu.Unlock()
	for to, connection := range c.open {
		if !targets[to] {
			connection.Close()
			delete(c.open, to)
		}
	}
}
