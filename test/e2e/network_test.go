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

// network is between replicas, and between them and the API server, which is "api". It can
// be cut as a wire can: what is sent does not arrive, and nobody is told.
type network interface {
	// kind says what it is made of.
	kind() string
	// place returns where a replica listens for others, and where these reach it.
	place(t *testing.T, name string) (bind, reach string)
	// server returns where replicas reach the API server.
	server(t *testing.T, target string) string
	// command is a program that runs where a replica is.
	command(name, program string, args []string) *exec.Cmd
	// dial connects to what is on loopback where a replica is.
	dial(name string) func(ctx context.Context, network, address string) (net.Conn, error)
	// is says which process a replica is.
	is(pid int, name string)
	// set cuts ways from somebody to somebody, or mends them; "*" is everybody.
	set(cut bool, ways ...[2]string) error
	// reset breaks all connections of a replica, so that both sides see it.
	reset(name string) error
}

// newNetwork is one of namespaces, or where there can be none, of proxies.
//
//	FAULTS_NETWORK  proxy: of proxies in any case
func newNetwork(t *testing.T) network {
	t.Helper()
	if os.Getenv("FAULTS_NETWORK") != "proxy" {
		n, err := newNamespaces(t)
		if err == nil {
			t.Logf("replicas are in %s", n.kind())
			return n
		}
		t.Logf("there can be no network namespaces: %v", err)
	}
	n := newProxies()
	t.Logf("replicas are on loopback, with %s between them", n.kind())
	return n
}

// cuts are the ways on which nothing arrives: from, to.
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

// proxies are between processes on loopback: each is reached by an address that hands on
// what comes, unless that is cut. If it is mended, the bytes arrive that were on their way.
type proxies struct {
	mu sync.Mutex
	// names of processes, by their id.
	names map[int]string
	cuts  cuts
	open  map[*wire]bool
}

// wire is a connection: bytes go from one to the other, and back.
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

// reach returns an address at which a process is reached that listens on another.
func (n *proxies) reach(t *testing.T, name, target string) string {
	t.Helper()
	return acceptAll(t, "127.0.0.1", func(near net.Conn) { n.connect(name, target, near) })
}

// acceptAll listens on a port of its own at an address, which it returns with the port, until
// the test ends.
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

// carry ends the connection when one side does, but not through a cut.
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

// whose is the process that connects from an address of this machine.
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

// inodeOf a socket on loopback, by its port.
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
