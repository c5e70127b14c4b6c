package gateway

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/gatewaytest"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

// The network of the tests:
//
//	pod --- n1 ---+
//	              +--- provider (IPv6) --- gateway --- server (IPv4)
//	        n2 ---+
const (
	gatewayAddress = "2001:db8:ff::1"
	serverAddress  = "11.0.0.1"
	podAddress     = "2001:db8:1::2"
	n2Address      = "2001:db8:2::2"
	program        = "../../../bin/network-gateway"
	patience       = time.Minute
)

type lab struct {
	root                                   *testing.T // programs live longer than a subtest
	directory                              string
	provider, gateway, server, n1, n2, pod *netns.Namespace
	pki                                    *gatewaytest.PKI
	serve                                  *process
	joins                                  map[string]*process
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newLab builds the network, or skips the test without the right to do so.
func newLab(t *testing.T) *lab {
	t.Helper()
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("no TUN devices: %v", err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v; run make bin/network-gateway", err)
	}
	l := &lab{root: t, directory: t.TempDir(), joins: map[string]*process{}}
	for name, namespace := range map[string]**netns.Namespace{
		"provider": &l.provider, "gateway": &l.gateway, "server": &l.server, "n1": &l.n1, "n2": &l.n2, "pod": &l.pod,
	} {
		created, err := netns.Create(fmt.Sprintf("k1mg-%d-%s", os.Getpid(), name))
		must(t, err)
		*namespace = created
		t.Cleanup(func() {
			if err := created.Delete(); err != nil {
				t.Error(err)
			}
		})
	}
	l.connect(t)
	l.issue(t)
	l.writeNodes(t, "n1", "n2")
	return l
}

// issue makes the certificates.
func (l *lab) issue(t *testing.T) {
	var err error
	l.pki, err = gatewaytest.NewPKI(l.directory, net.ParseIP(gatewayAddress))
	must(t, err)
	for _, name := range []string{"n1", "n2", "stranger"} {
		must(t, l.pki.IssueNode(name))
	}
	must(t, l.pki.IssueClient("admin", "kubernetes-admin", "system:masters"))
}

func (l *lab) connect(t *testing.T) {
	must(t, l.provider.AddBridge("br0", nil, 0))
	for i, n := range []*netns.Namespace{l.gateway, l.n1, l.n2} {
		must(t, netns.Veth(netns.End{In: l.provider, Name: "port" + strconv.Itoa(i), Bridge: "br0"}, netns.End{In: n, Name: "eth0"}, 0))
	}
	must(t, l.gateway.AddAddress("eth0", netip.MustParsePrefix(gatewayAddress+"/64")))
	must(t, l.n1.AddAddress("eth0", netip.MustParsePrefix("2001:db8:ff::11/64")))
	must(t, l.n2.AddAddress("eth0", netip.MustParsePrefix("2001:db8:ff::12/64")))
	must(t, l.n2.AddAddress("lo", netip.MustParsePrefix(n2Address+"/128")))

	must(t, netns.Veth(netns.End{In: l.gateway, Name: "eth1"}, netns.End{In: l.server, Name: "eth0"}, 0))
	must(t, l.gateway.AddAddress("eth1", netip.MustParsePrefix("11.0.0.254/24")))
	must(t, l.server.AddAddress("eth0", netip.MustParsePrefix(serverAddress+"/24")))
	must(t, l.server.AddRoute(netns.Route{To: netip.MustParsePrefix("192.0.2.8/30"), Via: netip.MustParseAddr("11.0.0.254"), Link: "eth0"}))

	must(t, netns.Veth(netns.End{In: l.n1, Name: "pod0"}, netns.End{In: l.pod, Name: "eth0"}, 0))
	must(t, l.n1.AddAddress("pod0", netip.MustParsePrefix("2001:db8:1::1/96")))
	must(t, l.pod.AddAddress("eth0", netip.MustParsePrefix(podAddress+"/96")))
	must(t, l.n1.AddAddress("pod0", netip.MustParsePrefix("172.30.0.1/24")))
	must(t, l.pod.AddAddress("eth0", netip.MustParsePrefix("172.30.0.2/24")))
	must(t, l.pod.AddRoute(netns.Route{To: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr("2001:db8:1::1"), Link: "eth0"}))
	must(t, l.pod.AddRoute(netns.Route{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("172.30.0.1"), Link: "eth0"}))
	must(t, l.n1.Sysctl("ipv6/conf/all/forwarding", "1"))
	must(t, l.n1.Sysctl("ipv4/ip_forward", "1"))
	must(t, l.gateway.AddRoute(netns.Route{To: netip.MustParsePrefix("2001:db8:1::/96"), Via: netip.MustParseAddr("2001:db8:ff::11"), Link: "eth0"}))
	must(t, l.n1.AddRoute(netns.Route{To: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr(gatewayAddress), Link: "eth0"}))
}

func (l *lab) file(name string) string { return filepath.Join(l.directory, name) }

// writeNodes replaces the file of nodes.
func (l *lab) writeNodes(t *testing.T, names ...string) {
	t.Helper()
	prefixes := map[string]string{"n1": "2001:db8:1::/96", "n2": "2001:db8:2::/96"}
	var content bytes.Buffer
	for _, name := range names {
		fmt.Fprintf(&content, "- name: %s\n  prefixes: [\"%s\"]\n", name, prefixes[name])
	}
	must(t, os.WriteFile(l.file("nodes.new"), content.Bytes(), 0o644))
	must(t, os.Rename(l.file("nodes.new"), l.file("nodes")))
}

// process is a program that ends with the test. What it prints is shown if the test fails.
type process struct {
	cmd  *exec.Cmd
	done chan error
}

func start(t *testing.T, in *netns.Namespace, output string, args ...string) *process {
	t.Helper()
	file, err := os.OpenFile(output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, err)
	defer file.Close()
	p := &process{cmd: exec.Command(program, args...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	must(t, in.Start(p.cmd))
	go func() { p.done <- p.cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		p.stop(t, syscall.SIGKILL)
		if t.Failed() {
			content, _ := os.ReadFile(output)
			t.Logf("%s:\n%s", filepath.Base(output), content)
		}
	})
	return p
}

// stop sends a signal and waits for the end.
func (p *process) stop(t *testing.T, signal syscall.Signal) {
	t.Helper()
	_ = p.cmd.Process.Signal(signal) // it may have ended
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		t.Errorf("%v did not end after %v", p.cmd.Args, signal)
	}
}

func (l *lab) startGateway(t *testing.T) {
	t.Helper()
	l.serve = start(l.root, l.gateway, l.file("gateway.log"), "serve",
		"--listen", "["+gatewayAddress+"]:8443", "--tls-cert-file", l.file("gateway.crt"), "--tls-private-key-file", l.file("gateway.key"),
		"--client-ca-file", l.file("ca.crt"), "--client-crl-file", l.file("crl.pem"), "--nodes-file", l.file("nodes"),
		"--private-key-file", l.file("wireguard.key"), "--state-file", l.file("state"), "--state-interval", "1s",
		"--nat64-pool", "192.0.2.8/30", "--masquerade-range", "10.64.0.0/24", "--node-connections", "400", "--node-ports", "300",
		"--dns64-listen", "["+gatewayAddress+"]:53", "--dns64-upstream", "127.0.0.1:5300")
}

func (l *lab) join(t *testing.T, name string, in *netns.Namespace) {
	t.Helper()
	l.joins[name] = start(l.root, in, l.file(name+".log"), "join", "--gateway", "https://["+gatewayAddress+"]:8443",
		"--ca-file", l.file("ca.crt"), "--cert-file", l.file(name+".crt"), "--key-file", l.file(name+".key"),
		"--private-key-file", l.file(name+".wireguard"), "--status-file", l.file(name+".status"))
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, condition func() error) time.Duration {
	t.Helper()
	begin := time.Now()
	for {
		err := condition()
		if err == nil {
			return time.Since(begin)
		}
		if time.Since(begin) > patience {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// dial opens a connection in a namespace.
func dial(in *netns.Namespace, network, address string) (net.Conn, error) {
	return in.Dial(network, address, 5*time.Second)
}

// ask sends a line to an echo server and returns the address that it has seen.
func ask(in *netns.Namespace, network, address string) (seen string, err error) {
	c, err := dial(in, network, address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return askOver(c)
}

func askOver(c net.Conn) (seen string, err error) {
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte("who am I\n")); err != nil {
		return "", err
	}
	buffer := make([]byte, 256)
	n, err := c.Read(buffer)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(buffer[:n])), nil
}

// nat64 is an address for NAT64 with a port.
func nat64(v4 string, port int) string {
	return net.JoinHostPort("64:ff9b::"+v4, strconv.Itoa(port))
}
