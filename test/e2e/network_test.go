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
)

// network connects replicas with each other and with the API server, which is named "api". A path can
// be cut: data that is sent is dropped, and neither side gets an error.
type network interface {
	// kind describes the implementation.
	kind() string
	// place returns the address on which a replica listens, and the address to which others connect.
	place(t *testing.T, name string) (bind, reach string)
	// server returns the address at which replicas connect to the API server.
	server(t *testing.T, target string) string
	// command returns a command that runs in a replica's network.
	command(name, program string, args []string) *exec.Cmd
	// dial connects to the loopback interface of a replica.
	dial(name string) func(ctx context.Context, network, address string) (net.Conn, error)
	// is registers the process of a replica.
	is(pid int, name string)
	// set cuts or restores paths. A path is a pair of names, from and to; "*" matches all names.
	set(cut bool, ways ...[2]string) error
	// reset closes all connections of a replica, so that both sides get an error.
	reset(name string) error
}

// newNetwork returns a network of namespaces or, without the privileges for them, of proxies.
//
//	FAULTS_NETWORK  proxy: always use proxies
func newNetwork(t *testing.T) network {
	t.Helper()
	if os.Getenv("FAULTS_NETWORK") != "proxy" {
		n, err := newNamespaces(t)
		if err == nil {
			t.Logf("replicas are in %s", n.kind())
			return n
		}
		t.Logf("network namespaces are not available: %v", err)
	}
	n := newProxies()
	t.Logf("replicas are on loopback, with %s between them", n.kind())
	return n
}

// cuts is the set of paths that are cut: from, to.
type cuts map[[2]string]bool

func (c cuts) has(from, to string) bool {
	return c[[2]string{from, to}] || c[[2]string{from, "*"}] || c[[2]string{"*", to}]
}

func (c cuts) set(cut bool, ways ...[2]string) {
	for _, way := range ways {
		if cut {
			c[way] = true
		} else {
			delete(c, way)
		}
	}
}

// proxies is a network of TCP proxies on loopback. Each process is reached through a proxy, which stops
// forwarding while a path is cut. After the path is restored, it forwards the delayed bytes.
type proxies struct {
	mu sync.Mutex
	// names of processes, by process ID.
	names map[int]string
	cuts  cuts
	open  map[*wire]bool
}

// wire is a proxied connection between two processes.
type wire struct {
	from, to string
	near     net.Conn
	far      net.Conn
}

func newProxies() *proxies {
	return &proxies{names: map[int]string{}, cuts: cuts{}, open: map[*wire]bool{}}
}

func (n *proxies) kind() string { return "proxies" }

func (n *proxies) place(t *testing.T, name string) (bind, reach string) {
	t.Helper()
	bind = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	return bind, n.reach(t, name, bind)
}

func (n *proxies) server(t *testing.T, target string) string {
	t.Helper()
	return n.reach(t, "api", target)
}

func (n *proxies) command(_, program string, args []string) *exec.Cmd {
	return exec.Command(program, args...)
}

func (n *proxies) dial(string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext
}

// reach starts a proxy for a listener of a process and returns its address.
func (n *proxies) reach(t *testing.T, name, target string) string {
	t.Helper()
	return acceptAll(t, "127.0.0.1", func(near net.Conn) { n.connect(name, target, near) })
}

// acceptAll listens on a free port of a host until the test ends. It returns host and port.
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

func (n *proxies) connect(name, target string, near net.Conn) {
	w := &wire{from: n.whose(near.RemoteAddr()), to: name, near: near}
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
	both.Go(func() { n.carry(w.from, w.to, near, far) })
	both.Go(func() { n.carry(w.to, w.from, far, near) })
	both.Wait()
	n.mu.Lock()
	delete(n.open, w)
	n.mu.Unlock()
}

// carry copies bytes until one side closes the connection. A cut delays the closing too.
func (n *proxies) carry(from, to string, source, sink net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		count, err := source.Read(buffer)
		for n.isCut(from, to) {
			time.Sleep(10 * time.Millisecond)
		}
		if count > 0 {
			if _, failed := sink.Write(buffer[:count]); failed != nil {
				err = failed
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

func (n *proxies) set(cut bool, ways ...[2]string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cuts.set(cut, ways...)
	return nil
}

func (n *proxies) reset(name string) error {
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

func (n *proxies) is(pid int, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names[pid] = name
}

// whose returns the name of the process that connects from an address of this machine.
func (n *proxies) whose(address net.Addr) string {
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

// inodeOf returns the inode of a socket on loopback by its port.
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
