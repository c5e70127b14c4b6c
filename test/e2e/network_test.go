package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// network connects replicas with each other and with the API server, which has the name "api". The test can
// cut a path. Then data on this path does not arrive, and neither side gets an error.
type network interface {
	// description describes the implementation.
	description() string
	// addReplica adds a replica. It returns the address on which the replica listens, and the address to
	// which others connect.
	addReplica(t *testing.T, name string) (bind, reach string)
	// forwardAPIServer returns the address at which replicas connect to the API server.
	forwardAPIServer(t *testing.T, target string) string
	// command returns a command that runs in a replica's network.
	command(name, program string, args []string) *exec.Cmd
	// dial returns a function that connects to the loopback interface of a replica.
	dial(name string) func(ctx context.Context, network, address string) (net.Conn, error)
	// registerProcess registers the process of a replica.
	registerProcess(pid int, name string)
	// setCut cuts or restores paths. A path is a pair of names: from and to. "*" matches all names.
	setCut(cut bool, paths ...[2]string) error
	// resetConnections closes all connections of a replica, so that both sides get an error.
	resetConnections(name string) error
}

// newNetwork returns a network of network namespaces. If this process has no privileges for them, it
// returns a network of proxies.
//
//	FAULTS_NETWORK  proxy: always use proxies
func newNetwork(t *testing.T) network {
	t.Helper()
	if os.Getenv("FAULTS_NETWORK") != "proxy" {
		n, err := newNamespaces(t)
		if err == nil {
			t.Logf("replicas are in %s", n.description())
			return n
		}
		t.Logf("network namespaces are not available: %v", err)
	}
	n := newProxies()
	t.Logf("replicas are on loopback, with %s between them", n.description())
	return n
}

// cuts is the set of paths that are cut: from, to.
type cuts map[[2]string]bool

func (c cuts) has(from, to string) bool {
	return c[[2]string{from, to}] || c[[2]string{from, "*"}] || c[[2]string{"*", to}]
}

func (c cuts) setCut(cut bool, paths ...[2]string) {
	for _, path := range paths {
		if cut {
			c[path] = true
		} else {
			delete(c, path)
		}
	}
}

// proxies is a network of TCP proxies on loopback. Other processes connect to a process through a proxy,
// which stops forwarding while a path is cut. After the path is restored, it forwards the delayed bytes.
type proxies struct {
	mu sync.Mutex
	// names contains the names of replicas, by process ID.
	names map[int]string
	cuts  cuts
	open  map[*proxiedConn]bool
}

// proxiedConn is a proxied connection between two processes.
type proxiedConn struct {
	from, to string
	near     net.Conn
	far      net.Conn
}

func newProxies() *proxies {
	return &proxies{names: map[int]string{}, cuts: cuts{}, open: map[*proxiedConn]bool{}}
}

func (n *proxies) description() string { return "proxies" }

func (n *proxies) addReplica(t *testing.T, name string) (bind, reach string) {
	t.Helper()
	bind = testcluster.FreeAddress(t)
	return bind, n.reach(t, name, bind)
}

func (n *proxies) forwardAPIServer(t *testing.T, target string) string {
	t.Helper()
	return n.reach(t, "api", target)
}

func (n *proxies) command(_, program string, args []string) *exec.Cmd {
	return exec.Command(program, args...)
}

func (n *proxies) dial(string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext
}

// reach starts a proxy for a listener of a process and returns the address of the proxy.
func (n *proxies) reach(t *testing.T, name, target string) string {
	t.Helper()
	return acceptAll(t, "127.0.0.1", func(near net.Conn) { n.connect(name, target, near) })
}

// acceptAll listens on a free port of a host until the test ends, and calls serve for each connection. It
// returns host and port.
func acceptAll(t *testing.T, host string, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(near)
		}
	}()
	return listener.Addr().String()
}

// connect forwards a connection to a process until one side closes it.
func (n *proxies) connect(name, target string, near net.Conn) {
	w := &proxiedConn{from: n.processNameOf(near.RemoteAddr()), to: name, near: near}
	defer near.Close()
	for n.isCut(w.from, w.to) || n.isCut(w.to, w.from) {
		time.Sleep(10 * time.Millisecond)
	}
	far, err := net.DialTimeout("tcp", target, time.Second)
	if err != nil {
		return
	}
	w.far = far
	n.mu.Lock()
	n.open[w] = true
	n.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { n.copyBytes(w.from, w.to, near, far) })
	both.Go(func() { n.copyBytes(w.to, w.from, far, near) })
	both.Wait()
	n.mu.Lock()
	delete(n.open, w)
	n.mu.Unlock()
}

// copyBytes copies bytes until one side closes the connection. While the path is cut, it forwards neither
// bytes nor the end of the connection.
func (n *proxies) copyBytes(from, to string, source, sink net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		count, err := source.Read(buffer)
		for n.isCut(from, to) {
			time.Sleep(10 * time.Millisecond)
		}
		if count > 0 {
			if _, writeErr := sink.Write(buffer[:count]); writeErr != nil {
				err = writeErr
			}
		}
		if err != nil {
			source.Close()
			sink.Close()
			return
		}
	}
}

func (n *proxies) isCut(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cuts.has(from, to)
}

func (n *proxies) setCut(cut bool, paths ...[2]string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cuts.setCut(cut, paths...)
	return nil
}

func (n *proxies) resetConnections(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.open {
		if w.from == name || w.to == name {
			w.near.Close()
			w.far.Close()
		}
	}
	return nil
}

func (n *proxies) registerProcess(pid int, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names[pid] = name
}

// processNameOf returns the name of the replica that connects from an address of this machine; "?" if no
// replica does.
func (n *proxies) processNameOf(address net.Addr) string {
	inode := inodeOf(address.(*net.TCPAddr).Port)
	n.mu.Lock()
	defer n.mu.Unlock()
	for pid, name := range n.names {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, file := range files {
			if link, _ := os.Readlink(file); link == "socket:["+inode+"]" {
				return name
			}
		}
	}
	return "?"
}

// inodeOf returns the inode of the socket with a port on loopback; "" if it does not exist.
func inodeOf(port int) string {
	file, err := os.Open("/proc/net/tcp")
	if err != nil {
		return ""
	}
	defer file.Close()
	local := fmt.Sprintf("0100007F:%04X", port)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 9 && fields[1] == local {
			return fields[9]
		}
	}
	return ""
}
