package gateway

import (
	"net"
	"sync"
	"testing"
	"time"
)

// network is the network between the gateway and one API server: a TCP proxy that can be slow, silent or cut.
type network struct {
	address, server string

	mutex sync.Mutex
	conns map[net.Conn]bool
	delay time.Duration
	// refused closes all connections, silent lets no byte through.
	refused, silent bool
	healed          chan struct{}
}

// newNetwork starts a proxy in front of an API server. It ends with the test.
func newNetwork(t *testing.T, server string) *network {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	n := &network{address: listener.Addr().String(), server: server, conns: map[net.Conn]bool{}, healed: make(chan struct{})}
	t.Cleanup(func() {
		_ = listener.Close()
		n.cut()
	})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go n.serve(client)
		}
	}()
	return n
}

func (n *network) serve(client net.Conn) {
	defer client.Close()
	if !n.add(client) {
		return
	}
	defer n.remove(client)
	server, err := net.Dial("tcp", n.server)
	if err != nil {
		return
	}
	defer server.Close()
	var both sync.WaitGroup
	both.Go(func() { n.copy(server, client) })
	both.Go(func() { n.copy(client, server) })
	both.Wait()
}

// copy forwards the bytes of one direction. With a delay, each block is late by it.
func (n *network) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		count, err := from.Read(buffer)
		if delay := n.wait(); delay > 0 {
			time.Sleep(delay)
		}
		if count > 0 {
			if _, err := to.Write(buffer[:count]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// wait waits while the network is silent, and returns its delay.
func (n *network) wait() time.Duration {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for n.silent {
		healed := n.healed
		n.mutex.Unlock()
		<-healed
		n.mutex.Lock()
	}
	return n.delay
}

func (n *network) add(conn net.Conn) bool {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.refused {
		return false
	}
	n.conns[conn] = true
	return true
}

func (n *network) remove(conn net.Conn) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	delete(n.conns, conn)
}

// cut closes all connections and refuses new ones.
func (n *network) cut() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.refused = true
	for conn := range n.conns {
		_ = conn.Close()
	}
}

// slow delays all bytes.
func (n *network) slow(delay time.Duration) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.delay = delay
}

// mute lets no byte through, and closes nothing.
func (n *network) mute() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.silent = true
}

// heal ends all faults.
func (n *network) heal() {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.refused, n.silent, n.delay = false, false, 0
	close(n.healed)
	n.healed = make(chan struct{})
}
