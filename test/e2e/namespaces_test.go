package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// namespaces is a network of Linux network namespaces, one for each replica, which veth pairs connect
// to a common bridge. The neighbour (ARP) tables are static. To cut the path to a station, its entry
// is set to a hardware address that does not exist, so that packets are dropped silently.
//
// The API server listens on loopback, as in every cluster. The bridge's address forwards to it.
type namespaces struct {
	// id identifies this process; it is part of the names of all interfaces and namespaces.
	id     int
	subnet string

	mu       sync.Mutex
	stations map[string]*station
	pids     map[string]int
	cuts     cuts
}

// station is an endpoint on the bridge. The station of the API server is not in a namespace.
type station struct {
	name, namespace, device string
	number                  int
}

const (
	// Host numbers of the stations; the API server has the first.
	apiStation, firstStation, lastStation = 1, 10, 250
	// The port on which replicas listen for each other. Each replica has its own address.
	namespacePort = 7000
	namespaceHead = "k1m-"
	// A hardware address that no station has.
	nobody = "02:d5:00:00:00:00"
)

// newNamespaces creates a bridge. It fails without the privileges for network namespaces.
func newNamespaces(t *testing.T) (*namespaces, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces require root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, err
	}
	sweepNamespaces()
	n := &namespaces{id: os.Getpid(), stations: map[string]*station{}, pids: map[string]int{}, cuts: cuts{}}
	n.subnet = freeSubnet(n.id)
	bridge := n.bridge()
	t.Cleanup(func() { _ = ip("link", "del", bridge) })
	err := errors.Join(
		ip("link", "add", bridge, "address", n.hardware(apiStation), "type", "bridge"),
		ip("addr", "add", n.address(apiStation)+"/24", "dev", bridge),
		ip("link", "set", bridge, "up"),
	)
	if err == nil {
		// Create a namespace to find out whether that is permitted.
		probe := fmt.Sprintf("%s%d-probe", namespaceHead, n.id)
		err = errors.Join(ip("netns", "add", probe), ip("netns", "del", probe))
	}
	n.stations["api"] = &station{name: "api", device: bridge, number: apiStation}
	return n, err
}

func (n *namespaces) kind() string { return "network namespaces on a bridge, " + n.subnet + ".0/24" }

func (n *namespaces) bridge() string { return fmt.Sprintf("k1mb%d", n.id) }

func (n *namespaces) address(number int) string { return fmt.Sprintf("%s.%d", n.subnet, number) }

func (n *namespaces) hardware(number int) string {
	return fmt.Sprintf("02:d5:%02x:%02x:00:%02x", n.id>>8&0xff, n.id&0xff, number)
}

// place creates a namespace for a replica.
func (n *namespaces) place(t *testing.T, name string) (bind, reach string) {
	t.Helper()
	n.mu.Lock()
	number := firstStation + len(n.stations)
	s := &station{name: name, namespace: fmt.Sprintf("%s%d-%s", namespaceHead, n.id, name), device: "eth0", number: number}
	n.stations[name] = s
	n.mu.Unlock()
	if number > lastStation {
		t.Fatalf("a bridge has no room for more than %d replicas", lastStation-firstStation)
	}
	outside := fmt.Sprintf("k1m%d-%d", n.id, number)
	t.Cleanup(func() {
		_ = ip("link", "del", outside)
		_ = ip("netns", "del", s.namespace)
	})
	must(t, errors.Join(
		ip("netns", "add", s.namespace),
		ip("link", "add", outside, "type", "veth", "peer", "name", s.device, "address", n.hardware(number), "netns", s.namespace),
		ip("link", "set", outside, "master", n.bridge(), "up"),
		s.ip("link", "set", "lo", "up"),
		s.ip("addr", "add", n.address(number)+"/24", "dev", s.device),
		s.ip("link", "set", s.device, "up"),
	))
	must(t, n.write())
	at := net.JoinHostPort(n.address(number), strconv.Itoa(namespacePort))
	return at, at
}

// server forwards connections of replicas to the API server.
func (n *namespaces) server(t *testing.T, target string) string {
	t.Helper()
	return acceptAll(t, n.address(apiStation), func(near net.Conn) { forward(near, target) })
}

func forward(near net.Conn, target string) {
	defer near.Close()
	far, err := net.DialTimeout("tcp", target, time.Second)
	if err != nil {
		return
	}
	defer far.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() { _, _ = io.Copy(way[1], way[0]); ended <- struct{}{} }()
	}
	<-ended
}

// command returns a command that runs in a replica's namespace.
func (n *namespaces) command(name, program string, args []string) *exec.Cmd {
	n.mu.Lock()
	defer n.mu.Unlock()
	return exec.Command("ip", append([]string{"netns", "exec", n.stations[name].namespace, program}, args...)...)
}

// dial connects to the loopback interface in a replica's namespace, which is never cut off.
func (n *namespaces) dial(name string) func(ctx context.Context, network, address string) (net.Conn, error) {
	file := n.file(name)
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		failed := inside(file, func() { conn, err = (&net.Dialer{}).DialContext(ctx, network, address) })
		return conn, errors.Join(err, failed)
	}
}

func (n *namespaces) file(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return filepath.Join("/run/netns", n.stations[name].namespace)
}

// inside calls a function in a namespace. Sockets stay in the namespace in which they were created.
// The thread returns to its own namespace: if it exited, the kernel would kill the programs that it
// has started (PDEATHSIG).
func inside(file string, f func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer here.Close()
	if err := enter(file); err != nil {
		return err
	}
	f()
	if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
		panic(err) // The thread is in the wrong namespace and cannot be used.
	}
	return nil
}

// enter moves this thread to a namespace.
func enter(file string) error {
	there, err := os.Open(file)
	if err != nil {
		return err
	}
	defer there.Close()
	return unix.Setns(int(there.Fd()), unix.CLONE_NEWNET)
}

func (n *namespaces) is(pid int, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pids[name] = pid
}

// set cuts or restores paths.
func (n *namespaces) set(cut bool, ways ...[2]string) error {
	n.mu.Lock()
	n.cuts.set(cut, ways...)
	n.mu.Unlock()
	return n.write()
}

// write writes the neighbour table of each station.
func (n *namespaces) write() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, from := range n.stations {
		var lines strings.Builder
		for _, to := range n.stations {
			if from == to {
				continue
			}
			hardware := n.hardware(to.number)
			if n.cuts.has(from.name, to.name) {
				hardware = nobody
			}
			fmt.Fprintf(&lines, "neigh replace %s lladdr %s dev %s nud permanent\n", n.address(to.number), hardware, from.device)
		}
		if err := from.batch(lines.String()); err != nil {
			return err
		}
	}
	return nil
}

// reset closes all connections of a replica to others, so that both sides get an error.
func (n *namespaces) reset(name string) error {
	n.mu.Lock()
	pid := n.pids[name]
	n.mu.Unlock()
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(process)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	for _, file := range files {
		number, err := strconv.Atoi(file.Name())
		if err != nil {
			continue
		}
		socket, err := unix.PidfdGetfd(process, number, 0)
		if err != nil {
			continue // The connection was closed in the meantime.
		}
		peer, err := unix.Getpeername(socket)
		if v4, is := peer.(*unix.SockaddrInet4); err == nil && is && v4.Addr[0] == 10 {
			err = unix.Shutdown(socket, unix.SHUT_RDWR)
		}
		unix.Close(socket)
		if err != nil && !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ENOTSOCK) {
			return err
		}
	}
	return nil
}

// ip runs ip(8) in the station's namespace.
func (s *station) ip(args ...string) error {
	if s.namespace != "" {
		args = append([]string{"-n", s.namespace}, args...)
	}
	return ip(args...)
}

// batch runs several commands of ip(8).
func (s *station) batch(lines string) error {
	args := []string{"-batch", "-"}
	if s.namespace != "" {
		args = append([]string{"-n", s.namespace}, args...)
	}
	return ipWith(strings.NewReader(lines), args...)
}

func ip(args ...string) error { return ipWith(nil, args...) }

func ipWith(input io.Reader, args ...string) error {
	cmd := exec.Command("ip", args...)
	cmd.Stdin = input
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}

// freeSubnet returns a /24 of 10.213.0.0/16 that no interface of this machine uses.
func freeSubnet(start int) string {
	used := map[string]bool{}
	addresses, _ := net.InterfaceAddrs()
	for _, address := range addresses {
		used[address.String()] = true
	}
	for i := range 256 {
		subnet := fmt.Sprintf("10.213.%d", (start+i)%256)
		if !used[fmt.Sprintf("%s.%d/24", subnet, apiStation)] {
			return subnet
		}
	}
	return "10.213.0"
}

// sweepNamespaces removes the interfaces and namespaces of tests that were killed.
func sweepNamespaces() {
	left, _ := filepath.Glob("/run/netns/" + namespaceHead + "*")
	for _, path := range left {
		name := filepath.Base(path)
		if pid, _, _ := strings.Cut(strings.TrimPrefix(name, namespaceHead), "-"); gone(pid) {
			_ = ip("netns", "del", name)
		}
	}
	links, _ := filepath.Glob("/sys/class/net/k1mb*")
	for _, path := range links {
		if bridge := filepath.Base(path); gone(strings.TrimPrefix(bridge, "k1mb")) {
			_ = ip("link", "del", bridge)
		}
	}
}

func gone(pid string) bool {
	if _, err := strconv.Atoi(pid); err != nil {
		return false
	}
	_, err := os.Stat("/proc/" + pid)
	return errors.Is(err, os.ErrNotExist)
}

// TestNetworkCuts checks that paths in network namespaces can be cut and restored.
func TestNetworkCuts(t *testing.T) {
	n, err := newNamespaces(t)
	if err != nil {
		t.Skipf("network namespaces are not available: %v", err)
	}
	bind, reach := n.place(t, "a")
	n.place(t, "b")
	var listener net.Listener
	must(t, inside(n.file("a"), func() { listener, err = net.Listen("tcp", bind) }))
	must(t, err)
	defer listener.Close()
	b, err := n.dial("b")(t.Context(), "tcp", reach)
	must(t, err)
	defer b.Close()
	a, err := listener.Accept()
	must(t, err)
	defer a.Close()
	arrives := func(from, to net.Conn, within time.Duration) bool {
		_, err := from.Write([]byte("x"))
		must(t, err)
		must(t, to.SetReadDeadline(time.Now().Add(within)))
		_, err = to.Read(make([]byte, 1))
		return err == nil
	}
	const soon, notAtAll = 10 * time.Second, 300 * time.Millisecond
	if !arrives(b, a, soon) || !arrives(a, b, soon) {
		t.Fatal("no data arrives before a cut")
	}
	must(t, n.set(true, [2]string{"b", "a"}))
	if arrives(b, a, notAtAll) {
		t.Error("data arrives although the path is cut")
	}
	if !arrives(a, b, soon) {
		t.Error("the opposite path is cut too")
	}
	must(t, n.set(false, [2]string{"b", "a"}))
	must(t, n.set(true, [2]string{"*", "b"}))
	if !arrives(b, a, soon) || arrives(a, b, notAtAll) {
		t.Error("data from b did not arrive, or data to b did")
	}
	must(t, n.set(false, [2]string{"*", "b"}))
	if !arrives(a, b, soon) {
		t.Error("no data arrives after the path is restored")
	}
}
