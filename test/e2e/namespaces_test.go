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

// namespaces are a network of the kernel's own: each replica is in a network namespace, with
// a wire to a bridge that all share, on which the API server is reached as well. Who is where
// on the wire is written down and not asked for; so a way is cut by writing down a wrong
// station, which nobody has. What is sent there is gone, and nobody is told.
//
// The API server itself listens on loopback, as in every cluster: what reaches the bridge's
// address is handed on to it.
type namespaces struct {
	// id is of this process; everything that is made has it in its name.
	id     int
	subnet string

	mu       sync.Mutex
	stations map[string]*station
	pids     map[string]int
	cuts     cuts
}

// station is something on the bridge. That of the API server is in no namespace.
type station struct {
	name, namespace, device string
	number                  int
}

const (
	// Stations of a bridge: the API server has the first.
	apiStation, firstStation, lastStation = 1, 10, 250
	// The port that replicas listen on for each other; each has an address of its own.
	namespacePort = 7000
	namespaceHead = "k1m-"
	// Nobody has this on a bridge.
	nobody = "02:d5:00:00:00:00"
)

// newNamespaces makes a bridge, or says why there can be none.
func newNamespaces(t *testing.T) (*namespaces, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces are for root only")
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
		// Whether there can be namespaces is known when there has been one.
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

// place makes a namespace for a replica.
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

// server hands on what replicas send to the API server.
func (n *namespaces) server(t *testing.T, target string) string {
	t.Helper()
	return acceptAll(t, n.address(apiStation), func(near net.Conn) { handOn(near, target) })
}

func handOn(near net.Conn, target string) {
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

// command runs a program where a replica is.
func (n *namespaces) command(name, program string, args []string) *exec.Cmd {
	n.mu.Lock()
	defer n.mu.Unlock()
	return exec.Command("ip", append([]string{"netns", "exec", n.stations[name].namespace, program}, args...)...)
}

// dial connects to what is on loopback where a replica is, whether that is cut off or not.
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

// inside calls a function in a namespace. Connections and listeners stay where they were
// made. The thread comes back: if it ended, the kernel would end the programs that it has
// started.
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
		panic(err) // Nobody else could use this thread.
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

// set cuts ways, or mends them.
func (n *namespaces) set(cut bool, ways ...[2]string) error {
	n.mu.Lock()
	n.cuts.set(cut, ways...)
	n.mu.Unlock()
	return n.write()
}

// write writes down for each station where the others are.
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

// reset shuts all connections of a replica to others, so that both sides see it.
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
			continue // It was closed meanwhile.
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

// ip runs ip(8) where a station is.
func (s *station) ip(args ...string) error {
	if s.namespace != "" {
		args = append([]string{"-n", s.namespace}, args...)
	}
	return ip(args...)
}

// batch runs several of its commands.
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

// freeSubnet is a part of 10.213.0.0/16 that nothing here uses.
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

// sweepNamespaces removes what tests have left behind that were killed.
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

// TestCuts holds a network of namespaces to what the campaigns need of it.
func TestCuts(t *testing.T) {
	n, err := newNamespaces(t)
	if err != nil {
		t.Skipf("there can be no network namespaces: %v", err)
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
		t.Fatal("nothing arrives")
	}
	must(t, n.set(true, [2]string{"b", "a"}))
	if arrives(b, a, notAtAll) {
		t.Error("it arrives although it is cut")
	}
	if !arrives(a, b, soon) {
		t.Error("the other way is cut as well")
	}
	must(t, n.set(false, [2]string{"b", "a"}))
	must(t, n.set(true, [2]string{"*", "b"}))
	if !arrives(b, a, soon) || arrives(a, b, notAtAll) {
		t.Error("what b sends is to arrive, and what it is sent is not")
	}
	must(t, n.set(false, [2]string{"*", "b"}))
	if !arrives(a, b, soon) {
		t.Error("it is mended, and nothing arrives")
	}
}
