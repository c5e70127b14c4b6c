// Package network gives each member of a store a Linux network namespace, so that a test can cut the paths between
// members. All namespaces are connected by a bridge. The test itself is on the bridge and always reaches each member.
//
// The neighbour (ARP) tables are static. To cut the path from one member to another, the table of the first one gets a
// hardware address that nobody has, so packets are lost, and neither side gets an error.
package network

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
)

const (
	hostNumber, firstNumber = 1, 10
	device                  = "eth0"
	namespacePrefix         = "k1ms-"
	bridgePrefix            = "k1ms"
	unusedHardwareAddress   = "02:d6:00:00:00:00"
)

// Network is a bridge with a namespace for each member.
type Network struct {
	id      int
	subnet  string // the first three numbers of the addresses
	members int
	cut     map[[2]int]bool // from, to
}

// New creates a network, which is removed with the test. It returns an error if this process may not create namespaces.
func New(t *testing.T, members int) (*Network, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, err
	}
	removeStale()
	n := &Network{id: os.Getpid(), members: members, cut: map[[2]int]bool{}}
	n.subnet = freeSubnet(n.id)
	t.Cleanup(n.remove)
	err := errors.Join(
		ip("", "link", "add", n.bridge(), "address", n.hardware(hostNumber), "type", "bridge"),
		ip("", "addr", "add", n.address(hostNumber)+"/24", "dev", n.bridge()),
		ip("", "link", "set", n.bridge(), "up"),
	)
	for i := range members {
		if err != nil {
			return nil, err
		}
		err = n.addMember(i)
	}
	if err != nil {
		return nil, err
	}
	return n, n.writeTables()
}

func (n *Network) addMember(i int) error {
	number := firstNumber + i
	namespace, outside := n.namespace(i), n.outside(i)
	return errors.Join(
		ip("", "netns", "add", namespace),
		ip("", "link", "add", outside, "type", "veth", "peer", "name", device, "address", n.hardware(number), "netns", namespace),
		ip("", "link", "set", outside, "master", n.bridge(), "up"),
		ip(namespace, "link", "set", "lo", "up"),
		ip(namespace, "addr", "add", n.address(number)+"/24", "dev", device),
		ip(namespace, "link", "set", device, "up"),
	)
}

// Sites returns where the members run: in their namespaces, and with clocks of their own if the kernel supports that.
func (n *Network) Sites() (sites []storemembers.Site) {
	var clock []string
	if hasOwnClocks() {
		clock = ownClock
	}
	for i := range n.members {
		prefix := append(slices.Clone(clock), "ip", "netns", "exec", n.namespace(i))
		sites = append(sites, storemembers.Site{Host: n.address(firstNumber + i), Prefix: prefix})
	}
	return sites
}

// Hosts returns the addresses of all members.
func (n *Network) Hosts() (hosts []net.IP) {
	for i := range n.members {
		hosts = append(hosts, net.ParseIP(n.address(firstNumber+i)))
	}
	return hosts
}

// Cut cuts paths between members: a path is the numbers of two members, from and to.
func (n *Network) Cut(paths ...[2]int) error {
	for _, path := range paths {
		n.cut[path] = true
	}
	return n.writeTables()
}

// Heal restores all paths.
func (n *Network) Heal() error {
	clear(n.cut)
	return n.writeTables()
}

// Isolate returns the paths between a member and all others, in both directions.
func (n *Network) Isolate(member int) (paths [][2]int) {
	return append(n.Deaf(member), n.Mute(member)...)
}

// Deaf returns the paths from all other members to a member.
func (n *Network) Deaf(member int) (paths [][2]int) {
	for other := range n.members {
		if other != member {
			paths = append(paths, [2]int{other, member})
		}
	}
	return paths
}

// Mute returns the paths from a member to all others.
func (n *Network) Mute(member int) (paths [][2]int) {
	for other := range n.members {
		if other != member {
			paths = append(paths, [2]int{member, other})
		}
	}
	return paths
}

// writeTables writes the neighbour tables of all members and of the host.
func (n *Network) writeTables() error {
	errs := []error{n.writeTable("", n.bridge(), -1)}
	for i := range n.members {
		errs = append(errs, n.writeTable(n.namespace(i), device, i))
	}
	return errors.Join(errs...)
}

// writeTable writes the neighbour table of a member; -1 is the host.
func (n *Network) writeTable(namespace, device string, from int) error {
	var lines strings.Builder
	line := func(number int, hardware string) {
		fmt.Fprintf(&lines, "neigh replace %s lladdr %s dev %s nud permanent\n", n.address(number), hardware, device)
	}
	if from >= 0 {
		line(hostNumber, n.hardware(hostNumber))
	}
	for to := range n.members {
		switch {
		case to == from:
		case n.cut[[2]int{from, to}]:
			line(firstNumber+to, unusedHardwareAddress)
		default:
			line(firstNumber+to, n.hardware(firstNumber+to))
		}
	}
	return ipBatch(namespace, lines.String())
}

func (n *Network) bridge() string { return fmt.Sprintf("%s%d", bridgePrefix, n.id) }

func (n *Network) namespace(member int) string {
	return fmt.Sprintf("%s%d-%d", namespacePrefix, n.id, member)
}

// outside returns the name of the device that connects a member with the bridge.
func (n *Network) outside(member int) string {
	return fmt.Sprintf("%s%d-%d", bridgePrefix, n.id, member)
}

func (n *Network) address(number int) string { return fmt.Sprintf("%s.%d", n.subnet, number) }

func (n *Network) hardware(number int) string {
	return fmt.Sprintf("02:d6:%02x:%02x:00:%02x", n.id>>8&0xff, n.id&0xff, number)
}

// remove removes the namespaces, with their devices, and the bridge. What does not exist was not created.
func (n *Network) remove() {
	for i := range n.members {
		// The kernel removes the devices of a namespace later than the namespace.
		_ = ip("", "link", "del", n.outside(i))
		_ = ip("", "netns", "del", n.namespace(i))
	}
	_ = ip("", "link", "del", n.bridge())
}

// ip runs ip(8) in a namespace; "" is that of this process.
func ip(namespace string, args ...string) error { return run(namespace, "", args...) }

// ipBatch runs commands of ip(8), one in each line.
func ipBatch(namespace, lines string) error { return run(namespace, lines, "-batch", "-") }

func run(namespace, input string, args ...string) error {
	if namespace != "" {
		args = append([]string{"-n", namespace}, args...)
	}
	cmd := exec.Command("ip", args...)
	cmd.Stdin = strings.NewReader(input)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}

// freeSubnet returns the first three numbers of a /24 subnet of 10.214.0.0/16 that no interface uses.
func freeSubnet(start int) string {
	used := map[string]bool{}
	addresses, _ := net.InterfaceAddrs()
	for _, address := range addresses {
		used[address.String()] = true
	}
	for i := range 256 {
		subnet := fmt.Sprintf("10.214.%d", (start+i)%256)
		if !used[fmt.Sprintf("%s.%d/24", subnet, hostNumber)] {
			return subnet
		}
	}
	return "10.214.0"
}

// removeStale removes the namespaces and bridges of tests that were killed.
func removeStale() {
	namespaces, _ := filepath.Glob("/run/netns/" + namespacePrefix + "*")
	for _, path := range namespaces {
		name := filepath.Base(path)
		if pid, _, _ := strings.Cut(strings.TrimPrefix(name, namespacePrefix), "-"); gone(pid) {
			_ = ip("", "netns", "del", name)
		}
	}
	bridges, _ := filepath.Glob("/sys/class/net/" + bridgePrefix + "*")
	for _, path := range bridges {
		if name := filepath.Base(path); gone(strings.TrimPrefix(name, bridgePrefix)) {
			_ = ip("", "link", "del", name)
		}
	}
}

// gone reports whether text is a process ID that no process has.
func gone(text string) bool {
	pid, err := strconv.Atoi(text)
	return err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}
