package wire

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// connections are client connections to other replicas, by address.
type connections struct {
	mu   sync.Mutex
	open map[string]*grpc.ClientConn
}

// get returns the connection to an address, and creates it if there is none. gRPC connects in the
// background.
func (c *connections) get(address string, certificates *TLS) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if connection := c.open[address]; connection != nil {
		return connection, nil
	}
	connection, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(certificates.credentials()),
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
		c.open = map[string]*grpc.ClientConn{}
	}
	c.open[address] = connection
	return connection, nil
}

// Keep closes the connections to all replicas except the given members.
func (d *Dialer) Keep(members []membership.Member) {
	addresses := map[string]bool{}
	for _, member := range members {
		addresses[member.Address] = true
	}
	c := &d.connections
	c.mu.Lock()
	defer c.mu.Unlock()
	for address, connection := range c.open {
		if !addresses[address] {
			connection.Close()
			delete(c.open, address)
		}
	}
}
