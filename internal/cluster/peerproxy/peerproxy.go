// Package peerproxy forwards the connections between the members of a cluster's store, so that a member can be cut off from
// the others on one machine, without network namespaces and without privileges (`k1m up --store-faults`).
//
// Each member advertises the address of the proxy to the others. While a member is cut off, no bytes are forwarded from it
// or to it, and neither side gets an error, as in a network that loses packets. TLS stays between the members.
package peerproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/procfs"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

const (
	// pollInterval is how often a connection of a member that is cut off looks whether it still is.
	pollInterval = 10 * time.Millisecond
	dialTimeout  = time.Second
	// newTimeout is how long a connection that was opened while a member is cut off is kept. Its sender has given up before.
	newTimeout = 30 * time.Second
	copyBuffer = 64 << 10
)

// Proxy forwards connections between members.
type Proxy struct {
	// pids returns the process IDs of the members that run, by name.
	pids      func() map[string]int
	listeners []net.Listener
	// done is cancelled when the proxy is closed.
	done   context.Context
	cancel context.CancelFunc

	mu  sync.Mutex
	cut map[string]time.Time // until when a member is cut off
}

// Start forwards connections between the members of a store until the proxy is closed. The members need not run yet. pids
// returns the process IDs of those that run, by component name. While a member is cut off, nothing is forwarded for other
// processes.
func Start(config clusterdir.Config, pids func() map[string]int) (*Proxy, error) {
	p := &Proxy{pids: pids, cut: map[string]time.Time{}}
	p.done, p.cancel = context.WithCancel(context.Background())
	for _, member := range config.Settings.StoreMembers(clusterdir.MainStore) {
		listener, err := net.Listen("tcp", config.Ports.Address(clusterdir.StorePeerPort(member)))
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("forwarding the connections between members of the store: %w", err)
		}
		p.listeners = append(p.listeners, listener)
		go p.accept(p.done, listener, member, config.Ports.Address(clusterdir.StorePeerListenPort(member)))
	}
	return p, nil
}

// Close closes all connections. Afterwards, the ports of the members are free.
func (p *Proxy) Close() {
	p.cancel()
	for _, listener := range p.listeners {
		_ = listener.Close()
	}
}

// Cut cuts a member off from the others for some time, in place of an earlier time. A time of 0 ends it.
func (p *Proxy) Cut(member string, duration time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut[member] = time.Now().Add(duration)
}

// isCut reports whether one of the members is cut off; without members, whether any is.
func (p *Proxy) isCut(members ...string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for member, until := range p.cut {
		if until.After(now) && (len(members) == 0 || slices.Contains(members, member)) {
			return true
		}
	}
	return false
}

// connection is a connection to a member. Who has opened it may become known later, because a member can connect to others
// before the supervisor has noted its process ID.
type connection struct {
	proxy *Proxy
	near  net.Addr
	to    string

	mu   sync.Mutex
	from string // empty as long as it is not known
}

// isCut reports whether one of the two members is cut off. While any member is, a connection of a process that is not known
// counts as one of that member.
func (c *connection) isCut() bool {
	if !c.proxy.isCut() {
		return false
	}
	from := c.owner()
	return from == "" || c.proxy.isCut(from, c.to)
}

// owner returns the member that has opened the connection; empty if it is not known.
func (c *connection) owner() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.from == "" {
		c.from = c.proxy.owner(c.near)
	}
	return c.from
}

// accept forwards the connections to a member, which listens at target, until the listener is closed.
func (p *Proxy) accept(ctx context.Context, listener net.Listener, member, target string) {
	for {
		near, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(pollInterval) // too many open files, for example
			continue
		}
		go p.forward(ctx, near, member, target)
	}
}

// forward forwards a connection to a member until one side closes it.
func (p *Proxy) forward(ctx context.Context, near net.Conn, to, target string) {
	defer near.Close()
	c := &connection{proxy: p, near: near.RemoteAddr(), to: to}
	c.owner()
	if !c.await(ctx, newTimeout) {
		return
	}
	far, err := net.DialTimeout("tcp", target, dialTimeout)
	if err != nil {
		return
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { c.copyBytes(ctx, near, far) })
	both.Go(func() { c.copyBytes(ctx, far, near) })
	both.Wait()
}

// copyBytes copies bytes until one side closes the connection. While a member is cut off, it forwards neither bytes nor the
// end of the connection.
func (c *connection) copyBytes(ctx context.Context, source, sink net.Conn) {
	buffer := make([]byte, copyBuffer)
	for {
		n, err := source.Read(buffer)
		if !c.await(ctx, 0) {
			return
		}
		if n > 0 {
			if _, writeErr := sink.Write(buffer[:n]); writeErr != nil {
				err = writeErr
			}
		}
		if err != nil {
			_, _ = source.Close(), sink.Close()
			return
		}
	}
}

// await waits while one of the two members is cut off, at most for a time; 0 is no limit. It returns false if the time is
// over, or ctx is done.
func (c *connection) await(ctx context.Context, limit time.Duration) bool {
	for start := time.Now(); c.isCut(); {
		if limit > 0 && time.Since(start) > limit {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pollInterval):
		}
	}
	return ctx.Err() == nil
}

// owner returns the name of the member whose process has the socket with a local address of this machine; empty if none has.
func (p *Proxy) owner(address net.Addr) string {
	tcp, ok := address.(*net.TCPAddr)
	pids := p.pids()
	if !ok || len(pids) == 0 {
		return ""
	}
	target, err := socketTarget(tcp.Port)
	if err != nil {
		return ""
	}
	for name, pid := range pids {
		process, err := procfs.NewProc(pid)
		if err != nil {
			continue
		}
		// A file descriptor that is closed meanwhile has no target.
		if targets, err := process.FileDescriptorTargets(); err == nil && slices.Contains(targets, target) {
			return name
		}
	}
	return ""
}

// socketTarget returns the target of the links in /proc/PID/fd to the socket with a port of the loopback interface.
func socketTarget(port int) (string, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return "", err
	}
	//lint:ignore SA1019 netlink is faster with many sockets, but needs another library
	sockets, err := fs.NetTCP()
	if err != nil {
		return "", err
	}
	for _, socket := range sockets {
		if socket.LocalAddr.IsLoopback() && socket.LocalPort == uint64(port) {
			return "socket:[" + strconv.FormatUint(socket.Inode, 10) + "]", nil
		}
	}
	return "", fmt.Errorf("no socket has the port %d", port)
}
