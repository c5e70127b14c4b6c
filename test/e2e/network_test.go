package e2e

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// network is between processes on this machine: each is reached by an address that hands
// on what comes, unless that is cut. A cut is like one of a wire: bytes do not arrive, and
// nobody is told; if it is mended, those that were on their way do.
type network struct {
	mu sync.Mutex
	// names of processes, by their id.
	names map[int]string
	// cut are the ways on which nothing arrives: from, to; "*" is everybody.
	cut  map[[2]string]bool
	open map[*wire]bool
}

// wire is a connection: bytes go from one to the other, and back.
type wire struct {
	from, to string
	near     net.Conn
	far      net.Conn
}

func newNetwork() *network {
	return &network{names: map[int]string{}, cut: map[[2]string]bool{}, open: map[*wire]bool{}}
}

// reach returns an address at which a process is reached that listens on another.
func (n *network) reach(t *testing.T, name, target string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go n.connect(name, target, near)
		}
	}()
	return listener.Addr().String()
}

func (n *network) connect(name, target string, near net.Conn) {
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
func (n *network) carry(from, to string, source, sink net.Conn) {
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

func (n *network) isCut(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut[[2]string{from, to}] || n.cut[[2]string{from, "*"}] || n.cut[[2]string{"*", to}]
}

// set cuts ways, or mends them.
func (n *network) set(cut bool, ways ...[2]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, way := range ways {
		if cut {
			n.cut[way] = true
		} else {
			delete(n.cut, way)
		}
	}
}

// reset breaks all connections of a process, so that both sides see it.
func (n *network) reset(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.open {
		if w.from == name || w.to == name {
			w.near.Close()
			w.far.Close()
		}
	}
}

func (n *network) is(pid int, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names[pid] = name
}

// whose is the process that connects from an address of this machine.
func (n *network) whose(address net.Addr) string {
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
