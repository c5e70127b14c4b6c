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

// namespaces is a network of Linux network namespaces, one for each replica. A veth pair connects each
// namespace to a common bridge. The neighbour (ARP) tables are static. To cut the path from one station to
// another, the neighbour table of the first gets a hardware address that no station has, so that packets
// are lost without an error.
//
// The API server listens on loopback, as in every cluster. A listener on the bridge's address forwards
// connections to the API server.
type namespaces struct {
	// id is the ID of this process. It is part of the names of all interfaces and namespaces.
	id     int
	subnet string // the first three numbers of the addresses

	mu       sync.Mutex
	stations map[string]*station // by replica name; "api" is the API server
	pids     map[string]int      // process IDs by replica name
	cuts     cuts
}

// station is an endpoint on the bridge. The station of the API server is not in a namespace.
type station struct {
	name, namespace, device string
	number                  int
}

const (
	// Host numbers of the stations: that of the API server, and the range of those of replicas.
	apiStation, firstStation, lastStation = 1, 10, 250
	// namespacePort is the port on which each replica listens for the other replicas. It can be the
	// same for all replicas, because each replica has its own address.
	namespacePort   = 7000
	namespacePrefix = "k1m-"
	// unusedHardwareAddress is a hardware address that no station has.
	unusedHardwareAddress = "02:d5:00:00:00:00"
)

// newNamespaces creates a network without replicas. It returns an error if this process has no privileges
// for network namespaces.
func newNamespaces(t *testing.T) (*namespaces, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces require root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, err
	}
	removeStaleNamespaces()
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
		// Creating a namespace may be forbidden although creating a bridge is permitted.
		probe := fmt.Sprintf("%s%d-probe", namespacePrefix, n.id)
		err = errors.Join(ip("netns", "add", probe), ip("netns", "del", probe))
	}
	n.stations["api"] = &station{name: "api", device: bridge, number: apiStation}
	return n, err
}

func (n *namespaces) description() string {
	return "network namespaces on a bridge, " + n.subnet + ".0/24"
}

func (n *namespaces) bridge() string { return fmt.Sprintf("k1mb%d", n.id) }

func (n *namespaces) address(number int) string { return fmt.Sprintf("%s.%d", n.subnet, number) }

func (n *namespaces) hardware(number int) string {
	return fmt.Sprintf("02:d5:%02x:%02x:00:%02x", n.id>>8&0xff, n.id&0xff, number)
}

// addReplica creates a namespace for a replica. It returns the address on which the replica listens, which
// is also the address to which others connect.
func (n *namespaces) addReplica(t *testing.T, name string) (bind, reach string) {
	t.Helper()
	n.mu.Lock()
	number := firstStation + len(n.stations)
	s := &station{name: name, namespace: fmt.Sprintf("%s%d-%s", namespacePrefix, n.id, name), device: "eth0", number: number}
	n.stations[name] = s
	n.mu.Unlock()
	if number > lastStation {
		t.Fatalf("the subnet has no address for more than %d replicas", lastStation-firstStation)
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
	must(t, n.writeNeighbourTables())
	at := net.JoinHostPort(n.address(number), strconv.Itoa(namespacePort))
	return at, at
}

// forwardAPIServer forwards connections of replicas to the API server until the test ends. It returns the
// address to which replicas connect.
func (n *namespaces) forwardAPIServer(t *testing.T, target string) string {
	t.Helper()
	return acceptAll(t, n.address(apiStation), func(near net.Conn) { forward(near, target) })
}

// forward copies data between a connection and target in both directions, until one side closes.
func forward(near net.Conn, target string) {
	defer near.Close()
	far, err := net.DialTimeout("tcp", target, time.Second)
	if err != nil {
		return
	}
	defer far.Close()
	ended := make(chan struct{}, 2)
	for _, direction := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() { _, _ = io.Copy(direction[1], direction[0]); ended <- struct{}{} }()
	}
	<-ended
}

// command returns a command that runs in a replica's namespace.
func (n *namespaces) command(name, program string, args []string) *exec.Cmd {
	n.mu.Lock()
	defer n.mu.Unlock()
	return exec.Command("ip", append([]string{"netns", "exec", n.stations[name].namespace, program}, args...)...)
}

// dial returns a function that connects to addresses in a replica's namespace. Its loopback interface is
// never cut off.
func (n *namespaces) dial(name string) func(ctx context.Context, network, address string) (net.Conn, error) {
	file := n.file(name)
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		namespaceErr := inNamespace(file, func() { conn, err = (&net.Dialer{}).DialContext(ctx, network, address) })
		return conn, errors.Join(err, namespaceErr)
	}
}

// file returns the file that represents a replica's namespace.
func (n *namespaces) file(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return filepath.Join("/run/netns", n.stations[name].namespace)
}

// inNamespace calls a function in a namespace. Sockets stay in the namespace in which they were created.
// Afterwards, the thread returns to its own namespace. It must not exit instead, because the kernel would
// then kill the programs that it has started (PDEATHSIG).
func inNamespace(file string, f func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	original, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer original.Close()
	if err := enterNamespace(file); err != nil {
		return err
	}
	f()
	if err := unix.Setns(int(original.Fd()), unix.CLONE_NEWNET); err != nil {
		panic(err) // The thread is in the wrong namespace and cannot be used.
	}
	return nil
}

// enterNamespace moves the current thread to a namespace.
func enterNamespace(file string) error {
	namespace, err := os.Open(file)
	if err != nil {
		return err
	}
	defer namespace.Close()
	return unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
}

func (n *namespaces) registerProcess(pid int, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pids[name] = pid
}

// setCut cuts or restores paths.
func (n *namespaces) setCut(cut bool, paths ...[2]string) error {
	n.mu.Lock()
	n.cuts.setCut(cut, paths...)
	n.mu.Unlock()
	return n.writeNeighbourTables()
}

// writeNeighbourTables writes the neighbour table of each station, according to cuts.
func (n *namespaces) writeNeighbourTables() error {
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
				hardware = unusedHardwareAddress
			}
			fmt.Fprintf(&lines, "neigh replace %s lladdr %s dev %s nud permanent\n", n.address(to.number), hardware, from.device)
		}
		if err := from.batch(lines.String()); err != nil {
			return err
		}
	}
	return nil
}

// resetConnections closes all connections of a replica to other stations, so that both sides get an error.
func (n *namespaces) resetConnections(name string) error {
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

// batch runs commands of ip(8), one in each line, in the station's namespace.
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

// freeSubnet returns the first three numbers of a /24 subnet of 10.213.0.0/16 that no bridge of another
// test uses.
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

// removeStaleNamespaces removes the interfaces and namespaces of tests that were killed.
func removeStaleNamespaces() {
	left, _ := filepath.Glob("/run/netns/" + namespacePrefix + "*")
	for _, path := range left {
		name := filepath.Base(path)
		if pid, _, _ := strings.Cut(strings.TrimPrefix(name, namespacePrefix), "-"); processGone(pid) {
			_ = ip("netns", "del", name)
		}
	}
	links, _ := filepath.Glob("/sys/class/net/k1mb*")
	for _, path := range links {
		if bridge := filepath.Base(path); processGone(strings.TrimPrefix(bridge, "k1mb")) {
			_ = ip("link", "del", bridge)
		}
	}
}

// processGone reports whether pid is a process ID that no process has.
func processGone(pid string) bool {
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
	bind, reach := n.addReplica(t, "a")
	n.addReplica(t, "b")
	var listener net.Listener
	must(t, inNamespace(n.file("a"), func() { listener, err = net.Listen("tcp", bind) }))
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
	const soon, notAtAll = patience, 300 * time.Millisecond
	if !arrives(b, a, soon) || !arrives(a, b, soon) {
		t.Fatal("no data arrives although no path is cut")
	}
	must(t, n.setCut(true, [2]string{"b", "a"}))
	if arrives(b, a, notAtAll) {
		t.Error("data arrives although the path is cut")
	}
	if !arrives(a, b, soon) {
		t.Error("no data arrives on the opposite path, which is not cut")
	}
	must(t, n.setCut(false, [2]string{"b", "a"}))
	must(t, n.setCut(true, [2]string{"*", "b"}))
	if !arrives(b, a, soon) || arrives(a, b, notAtAll) {
		t.Error("while all paths to b are cut, data from b does not arrive, or data to b arrives")
	}
	must(t, n.setCut(false, [2]string{"*", "b"}))
	if !arrives(a, b, soon) {
		t.Error("no data arrives after the path is restored")
	}
}
