package netns

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// create creates a namespace that is removed with the test, or skips the test if that is not allowed.
func create(t *testing.T, name string) *Namespace {
	t.Helper()
	if err := Check(); err != nil {
		t.Skip(err)
	}
	n, err := Create("k1mt-" + strconv.Itoa(os.Getpid()) + "-" + name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Delete(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Two namespaces at one bridge exchange a datagram, and a program that is started in one of them sees its addresses.
func TestNamespacesReachEachOther(t *testing.T) {
	provider, a, b := create(t, "provider"), create(t, "a"), create(t, "b")
	must(t, provider.AddBridge("br0", nil, 1400))
	for i, n := range []*Namespace{a, b} {
		number := strconv.Itoa(i + 1)
		must(t, Veth(End{In: provider, Name: "port" + number, Bridge: "br0"}, End{In: n, Name: "eth0", MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)}}, 1400))
		must(t, n.AddAddress("eth0", netip.MustParsePrefix("2001:db8::"+number+"/64")))
	}
	var listener net.PacketConn
	must(t, b.Do(func() (err error) {
		listener, err = net.ListenPacket("udp", "[2001:db8::2]:7777")
		return err
	}))
	defer listener.Close()
	must(t, listener.SetReadDeadline(time.Now().Add(time.Minute)))
	var sender net.Conn
	must(t, a.Do(func() (err error) {
		sender, err = net.Dial("udp", "[2001:db8::2]:7777")
		return err
	}))
	defer sender.Close()
	_, err := sender.Write([]byte("hello"))
	must(t, err)
	buffer := make([]byte, 16)
	n, from, err := listener.ReadFrom(buffer)
	must(t, err)
	if !bytes.Equal(buffer[:n], []byte("hello")) || !strings.HasPrefix(from.String(), "[2001:db8::1]:") {
		t.Errorf("got %q from %s", buffer[:n], from)
	}
	output, err := a.Run(t.Context(), "ip", "-6", "addr", "show", "dev", "eth0")
	must(t, err)
	if !strings.Contains(output, "2001:db8::1/64") || !strings.Contains(output, "mtu 1400") {
		t.Errorf("ip addr in a shows %s", output)
	}
}

// After Do, the threads of this process are in their own namespace again.
func TestDoLeavesNoThreadBehind(t *testing.T) {
	n := create(t, "a")
	own, err := os.Readlink("/proc/self/ns/net")
	must(t, err)
	var inside string
	for range 50 {
		must(t, n.Do(func() (err error) {
			inside, err = os.Readlink("/proc/thread-self/ns/net")
			return err
		}))
	}
	if inside == own {
		t.Fatal("the function did not run in the namespace")
	}
	tasks, err := os.ReadDir("/proc/self/task")
	must(t, err)
	for _, task := range tasks {
		if ns, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net"); err == nil && ns != own {
			t.Errorf("thread %s is still in %s", task.Name(), ns)
		}
	}
	cmd := exec.Command("readlink", "/proc/self/ns/net")
	output := &bytes.Buffer{}
	cmd.Stdout = output
	must(t, n.Start(cmd))
	must(t, cmd.Wait())
	if strings.TrimSpace(output.String()) != inside {
		t.Errorf("a program ran in %s instead of %s", output, inside)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "../etc"} {
		if _, err := Create(name); err == nil || !strings.Contains(err.Error(), "not a name") {
			t.Errorf("Create(%q): %v", name, err)
		}
		if err := Delete(name); err == nil {
			t.Errorf("Delete(%q) succeeded", name)
		}
	}
	n := create(t, "listed")
	names, err := List(n.Name())
	must(t, err)
	if len(names) != 1 || names[0] != n.Name() {
		t.Errorf("List returned %q", names)
	}
}

func TestRoutesAndSysctls(t *testing.T) {
	n := create(t, "a")
	must(t, n.AddBridge("br0", nil, 0))
	must(t, n.Sysctl("ipv6/conf/all/forwarding", "1"))
	value, err := n.ReadSysctl("ipv6/conf/all/forwarding")
	must(t, err)
	if value != "1" {
		t.Errorf("forwarding is %q", value)
	}
	route := Route{To: netip.MustParsePrefix("2001:db8:1::/64"), Via: netip.MustParseAddr("fe80::1"), Link: "br0"}
	must(t, n.AddRoute(route))
	must(t, n.AddRoute(Route{To: netip.MustParsePrefix("2001:db8::/32"), Unreachable: true}))
	output, err := n.Run(t.Context(), "ip", "-6", "route", "show")
	must(t, err)
	if !strings.Contains(output, "2001:db8:1::/64 via fe80::1 dev br0") || !strings.Contains(output, "unreachable 2001:db8::/32") {
		t.Errorf("routes: %s", output)
	}
	must(t, n.DeleteRoute(route))
	must(t, n.DeleteRoute(route))
	if err := n.AddRoute(Route{To: route.To, Link: "none"}); err == nil || !strings.Contains(err.Error(), "find none") {
		t.Errorf("a route through a link that does not exist: %v", err)
	}
	must(t, n.DeleteLink("br0"))
	must(t, n.DeleteLink("br0"))
}
