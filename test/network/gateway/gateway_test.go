// Package gateway tests network-gateway with real programs in network namespaces: an IPv4-only server is
// reached from a pod that is behind a node.
package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/enroll"
)

func TestGateway(t *testing.T) {
	l := newLab(t)
	l.startServers(t)
	l.startDNS(t)
	l.startGateway(t)
	l.join(t, "n1", l.n1)
	l.join(t, "n2", l.n2)
	eventually(t, "the first connection", func() error { _, err := ask(l.pod, "tcp", nat64(serverAddress, 7000)); return err })
	for _, c := range []struct {
		name string
		run  func(*testing.T, *lab)
	}{
		{"NAT64", testNAT64}, {"bulk", testBulk}, {"DNS64", testDNS64}, {"masquerade", testMasquerade},
		{"errors", testErrors}, {"path MTU", testPathMTU}, {"exhaustion", testExhaustion}, {"garbage", testGarbage},
		{"spoofed sources", testSpoofed}, {"restart", testRestart}, {"kill", testKill},
		{"node leaves", testLeave}, {"node is deleted", testDeleted}, {"strangers", testStrangers}, {"revocation", testRevocation},
	} {
		if !t.Run(c.name, func(t *testing.T) { c.run(t, l) }) {
			l.showMetrics(t)
			return // later ones build on it
		}
	}
}

func inPool(t *testing.T, seen string) {
	t.Helper()
	address, err := netip.ParseAddrPort(seen)
	if err != nil || !netip.MustParsePrefix("192.0.2.8/30").Contains(address.Addr()) {
		t.Errorf("the server has seen %q; want an address of the pool", seen)
	}
}

func testNAT64(t *testing.T, l *lab) {
	for _, network := range []string{"tcp", "udp"} {
		seen, err := ask(l.pod, network, nat64(serverAddress, 7000))
		must(t, err)
		inPool(t, seen)
	}
	// Longer than the MTU: fragments in both directions.
	c, err := dial(l.pod, "udp", nat64(serverAddress, 7000))
	must(t, err)
	defer c.Close()
	eventually(t, "a long datagram", func() error {
		must(t, c.SetDeadline(time.Now().Add(2*time.Second)))
		if _, err := c.Write(append([]byte("long"), make([]byte, 3000)...)); err != nil {
			return err
		}
		buffer := make([]byte, 4096)
		if n, err := c.Read(buffer); err != nil || n != 3004 {
			return fmt.Errorf("%d bytes, %w", n, err)
		}
		return nil
	})
	output, err := l.pod.Run(t.Context(), program, "--help")
	if err != nil || !strings.Contains(output, "NAT64") {
		t.Errorf("help: %v", err)
	}
}

// testBulk moves some megabytes in both directions, in segments that are larger than the tunnel.
func testBulk(t *testing.T, l *lab) {
	for _, address := range []string{nat64(serverAddress, 7001), serverAddress + ":7001"} {
		c, err := dial(l.pod, "tcp", address)
		must(t, err)
		must(t, c.SetDeadline(time.Now().Add(patience)))
		sent, received := sha256.New(), sha256.New()
		const size = 8 << 20
		go func() {
			if _, err := io.CopyN(io.MultiWriter(c, sent), rand.Reader, size); err != nil {
				t.Error(err)
			}
		}()
		_, err = io.CopyN(received, c, size)
		must(t, err)
		if !bytes.Equal(sent.Sum(nil), received.Sum(nil)) {
			t.Errorf("%s: other bytes came back", address)
		}
		c.Close()
	}
}

func testDNS64(t *testing.T, l *lab) {
	for _, network := range []string{"udp", "tcp"} {
		resolver := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
			return dial(l.n1, network, "["+gatewayAddress+"]:53")
		}}
		addresses, err := resolver.LookupNetIP(t.Context(), "ip6", "v4only.test.")
		must(t, err)
		if len(addresses) != 1 || addresses[0] != netip.MustParseAddr("64:ff9b::"+serverAddress) {
			t.Fatalf("%s: addresses %v", network, addresses)
		}
		seen, err := ask(l.pod, "tcp", netip.AddrPortFrom(addresses[0], 7000).String())
		must(t, err)
		inPool(t, seen)
	}
}

func testMasquerade(t *testing.T, l *lab) {
	for _, network := range []string{"tcp", "udp"} {
		seen, err := ask(l.pod, network, serverAddress+":7000")
		must(t, err)
		if !strings.HasPrefix(seen, "11.0.0.254:") {
			t.Errorf("the server has seen %q; want the address of the gateway", seen)
		}
	}
	nodes, err := l.nodes()
	must(t, err)
	if !strings.HasPrefix(nodes["n1"].IPv4, "10.64.0.") || nodes["n1"].IPv4 == nodes["n2"].IPv4 {
		t.Errorf("addresses in the tunnels: %+v", nodes)
	}
}

// testErrors checks that errors of the server and of the gateway reach the pod.
func testErrors(t *testing.T, l *lab) {
	if _, err := ask(l.pod, "tcp", nat64(serverAddress, 7999)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed port of TCP: %v", err)
	}
	// The error comes with ICMP.
	if _, err := ask(l.pod, "udp", nat64(serverAddress, 7999)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed port of UDP: %v", err)
	}
	if _, err := ask(l.pod, "tcp", nat64("11.0.0.77", 7000)); !errors.Is(err, syscall.ENETUNREACH) && !os.IsTimeout(err) {
		t.Errorf("a host that does not exist: %v", err)
	}
	for _, address := range []string{"10.0.0.1", "169.254.169.254", "192.0.2.9", "127.0.0.1"} {
		if _, err := ask(l.pod, "tcp", nat64(address, 7000)); !errors.Is(err, syscall.EACCES) {
			t.Errorf("%s, which nodes may not reach: %v", address, err)
		}
	}
}

// testPathMTU lets the pod find a link behind the gateway that carries less.
func testPathMTU(t *testing.T, l *lab) {
	must(t, l.gateway.SetMTU("eth1", 1300))
	must(t, l.server.SetMTU("eth0", 1300))
	defer func() {
		must(t, l.server.SetMTU("eth0", 1500))
		must(t, l.gateway.SetMTU("eth1", 1500))
	}()
	c, err := dial(l.pod, "udp", nat64(serverAddress, 7000))
	must(t, err)
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	must(t, err)
	eventually(t, "the MTU of the path", func() error {
		_, _ = c.Write(make([]byte, 1320)) // fails once the MTU is known
		mtu, failure := 0, error(nil)
		if err := raw.Control(func(fd uintptr) { mtu, failure = unix.GetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU) }); err != nil {
			return err
		}
		if failure != nil || mtu != 1320 {
			return fmt.Errorf("MTU %d, %w; want 1320, 20 more than that of IPv4", mtu, failure)
		}
		return nil
	})
}

// testExhaustion lets a node use up its limits. Others must not notice.
func testExhaustion(t *testing.T, l *lab) {
	target := nat64(serverAddress, 7000)
	var sockets []net.Conn
	defer func() {
		for _, c := range sockets {
			c.Close()
		}
	}()
	refused := false
	for i := 0; i < 1000 && !refused; i++ {
		err := l.n2.Do(func() error {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(n2Address)}, Timeout: patience}
			c, err := dialer.Dial("tcp6", target)
			if err == nil {
				sockets = append(sockets, c)
			}
			return err
		})
		refused = errors.Is(err, syscall.EHOSTUNREACH)
		if err != nil && !refused {
			t.Fatal(err)
		}
	}
	if !refused {
		t.Fatal("a node opened 1,000 connections; its limit is 300 ports")
	}
	nodes, err := l.nodes()
	must(t, err)
	if nodes["n2"].NAT64.Ports != 300 {
		t.Errorf("the node has %d ports; its limit is 300", nodes["n2"].NAT64.Ports)
	}
	seen, err := ask(l.pod, "tcp", target)
	must(t, err)
	inPool(t, seen)
	metrics, err := l.page("/metrics")
	must(t, err)
	for _, want := range []string{`network_gateway_packets_dropped_total{reason="node_ports"}`, `network_gateway_node_connections{node="n2"} 300`} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("no metric %s", want)
		}
	}
}

// testGarbage sends garbage to all ports.
func testGarbage(t *testing.T, l *lab) {
	for _, target := range []string{"51820", "53"} {
		c, err := dial(l.n2, "udp", "["+gatewayAddress+"]:"+target)
		must(t, err)
		for size := range 300 {
			garbage := make([]byte, size*4)
			rand.Read(garbage)
			if size > 0 {
				garbage[0], garbage[1], garbage[2], garbage[3] = byte(size%6), 0, 0, 0
			}
			_, _ = c.Write(garbage) // the port may answer with an error
		}
		c.Close()
	}
	for _, target := range []string{"8443", "53"} {
		for range 20 {
			c, err := dial(l.n2, "tcp", "["+gatewayAddress+"]:"+target)
			must(t, err)
			garbage := make([]byte, 5000)
			rand.Read(garbage)
			_, _ = c.Write(garbage) // the server may have closed the connection
			c.Close()
		}
	}
	seen, err := ask(l.pod, "tcp", nat64(serverAddress, 7000))
	must(t, err)
	inPool(t, seen)
}

// testSpoofed sends from an address that is not the node's.
func testSpoofed(t *testing.T, l *lab) {
	must(t, l.n2.AddAddress("lo", netip.MustParsePrefix("2001:db8:1::3/128")))
	err := l.n2.Do(func() error {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("2001:db8:1::3")}, Timeout: 2 * time.Second}
		c, err := dialer.Dial("tcp", nat64(serverAddress, 7000))
		if err == nil {
			c.Close()
		}
		return err
	})
	if !os.IsTimeout(err) {
		t.Errorf("a connection from the address of another node: %v", err)
	}
	metrics, err := l.page("/metrics")
	must(t, err)
	if strings.Contains(string(metrics), `packets_dropped_total{reason="spoofed_source"} 0`) {
		t.Error("no packet was counted as spoofed")
	}
}

// survives checks that connections go on after the gateway has been stopped by a signal and started again.
func survives(t *testing.T, l *lab, signal syscall.Signal) {
	translated, err := dial(l.pod, "tcp", nat64(serverAddress, 7000))
	must(t, err)
	defer translated.Close()
	masqueraded, err := dial(l.pod, "tcp", serverAddress+":7000")
	must(t, err)
	defer masqueraded.Close()
	before := map[net.Conn]string{}
	for _, c := range []net.Conn{translated, masqueraded} {
		before[c], err = askOver(c)
		must(t, err)
	}
	saved, err := os.Stat(l.file("state"))
	must(t, err)
	if signal == syscall.SIGKILL { // connections survive that are in the state
		eventually(t, "two writes of the state", func() error {
			now, err := os.Stat(l.file("state"))
			if err == nil && now.ModTime().Sub(saved.ModTime()) < 1500*time.Millisecond {
				err = errors.New("the state was not written")
			}
			return err
		})
	}
	l.serve.stop(t, signal)
	l.startGateway(t)
	for c, seen := range before {
		must(t, c.SetDeadline(time.Now().Add(patience)))
		if _, err := c.Write([]byte("still there?\n")); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 256)
		n, err := c.Read(buffer)
		must(t, err)
		if got := strings.TrimSpace(string(buffer[:n])); got != seen {
			t.Errorf("the server sees %s; before the restart it was %s", got, seen)
		}
	}
}

func testRestart(t *testing.T, l *lab) { survives(t, l, syscall.SIGTERM) }
func testKill(t *testing.T, l *lab)    { survives(t, l, syscall.SIGKILL) }

// gone waits until a node is not connected.
func (l *lab) gone(t *testing.T, name string) time.Duration {
	t.Helper()
	return eventually(t, "node "+name+" is gone", func() error {
		nodes, err := l.nodes()
		if _, there := nodes[name]; err == nil && there {
			err = errors.New("it is still there")
		}
		return err
	})
}

func (l *lab) there(t *testing.T, name string) {
	t.Helper()
	eventually(t, "node "+name+" is there", func() error {
		nodes, err := l.nodes()
		if _, there := nodes[name]; err == nil && !there {
			err = errors.New("it is not there")
		}
		return err
	})
}

func testLeave(t *testing.T, l *lab) {
	l.there(t, "n2")
	l.joins["n2"].stop(t, syscall.SIGTERM)
	t.Logf("gone after %v", l.gone(t, "n2"))
	routes, err := l.n2.Run(t.Context(), "ip", "-6", "route", "show")
	must(t, err)
	links, err := l.n2.Run(t.Context(), "ip", "link", "show")
	must(t, err)
	if strings.Contains(routes, "64:ff9b::") || strings.Contains(links, "ng-node") {
		t.Errorf("the node that has left has routes %s and links %s", routes, links)
	}
}

func testDeleted(t *testing.T, l *lab) {
	l.join(t, "n2", l.n2)
	l.there(t, "n2")
	l.writeNodes(t, "n1")
	t.Logf("gone after %v", l.gone(t, "n2"))
	if _, err := l.register("n2"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a deleted node registers: %v", err)
	}
	l.joins["n2"].stop(t, syscall.SIGTERM)
}

// testStrangers checks that only nodes of the cluster are admitted.
func testStrangers(t *testing.T, l *lab) {
	for file, status := range map[string]string{"stranger": "404", "admin": "403"} {
		if _, err := l.register(file); err == nil || !strings.Contains(err.Error(), status) {
			t.Errorf("%s: %v; want status %s", file, err, status)
		}
	}
	c, err := dial(l.n2, "tcp", "["+gatewayAddress+"]:8443")
	must(t, err)
	defer c.Close()
	roots, err := enroll.ReadCertificates(l.file("ca.crt"))
	must(t, err)
	anonymous := tls.Client(c, &tls.Config{RootCAs: roots, ServerName: gatewayAddress})
	must(t, anonymous.SetDeadline(time.Now().Add(patience)))
	_, err = anonymous.Write([]byte("POST /v1/registration HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"))
	if err == nil {
		_, err = anonymous.Read(make([]byte, 10))
	}
	if err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("without a certificate: %v", err)
	}
}

func testRevocation(t *testing.T, l *lab) {
	l.there(t, "n1")
	must(t, l.pki.Revoke("n1"))
	t.Logf("gone after %v", l.gone(t, "n1"))
	if _, err := l.register("n1"); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("a node with a revoked certificate registers: %v", err)
	}
	if _, err := ask(l.pod, "tcp", nat64(serverAddress, 7000)); err == nil {
		t.Error("a pod behind a node with a revoked certificate reaches the server")
	}
	must(t, l.pki.IssueNode("n1"))
	_, err := l.register("n1")
	must(t, err)
}
