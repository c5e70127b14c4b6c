package network

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/ipv6"

	"github.com/k8s-1m/k8s-1m/internal/network/address"
	"github.com/k8s-1m/k8s-1m/internal/network/agent"
	"github.com/k8s-1m/k8s-1m/internal/network/capture"
	"github.com/k8s-1m/k8s-1m/internal/network/lab"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
	"github.com/k8s-1m/k8s-1m/internal/network/probe"
)

const (
	providerBridge = "br0"
	uplink         = "eth0"
	podLink        = "eth0"
	podBridge      = "cni0"
	// maxPackets bounds a capture.
	maxPackets = 400_000
)

// internet is the address of the server outside the cluster.
var internet = address.Host(lab.Internet, 2)

// In each mode, the wire shows the addresses of pods, no encapsulation and no translation.
func TestWire(t *testing.T) {
	nodes, podsPerNode := size(t, "NETWORK_NODES", 5), size(t, "NETWORK_PODS", 2)
	for _, mode := range agent.Modes {
		t.Run(mode, func(t *testing.T) {
			l := newLab(t, mode, nodes, podsPerNode)
			track(t, l.Nodes()[0].NS)
			track(t, l.Provider)
			echoAll(t, l)
			echo(t, l.Internet, internet)
			wire, err := capture.Start(l.Provider, providerBridge, maxPackets)
			must(t, err)
			first, err := capture.Start(l.Nodes()[0].NS, uplink, maxPackets)
			must(t, err)
			flows := talk(t, l)
			checkWire(t, l, stop(t, wire), flows)
			checkUplink(t, l, stop(t, first))
			checkTracking(t, l)
			t.Run("errors", func(t *testing.T) { checkErrors(t, l) })
			t.Run("path-mtu", func(t *testing.T) { checkPathMTU(t, l) })
		})
	}
}

func stop(t *testing.T, c *capture.Capture) []capture.Packet {
	t.Helper()
	packets, err := c.Stop()
	must(t, err)
	return packets
}

// flow is a datagram from a pod to an address.
type flow struct {
	from *lab.Pod
	to   netip.Addr
}

func (f flow) text() string { return fmt.Sprintf("k1m %s to %s.", f.from.Address, f.to) }

// talk lets each pod talk to a pod of the next node, to the next pod of its own node and to the server outside, all at the same
// time. It returns the flows that pass the provider.
func talk(t *testing.T, l *lab.Lab) (outside []flow) {
	t.Helper()
	var flows []flow
	nodes := l.Nodes()
	for i, n := range nodes {
		other := nodes[(i+1)%len(nodes)].Pods
		for j, pod := range n.Pods {
			outside = append(outside, flow{pod, other[j%len(other)].Address}, flow{pod, internet})
			flows = append(flows, flow{pod, n.Pods[(j+1)%len(n.Pods)].Address})
		}
	}
	flows = append(flows, outside...)
	var wait sync.WaitGroup
	limit := make(chan struct{}, 64)
	for _, f := range flows {
		client := dial(t, f.from.NS, f.to)
		limit <- struct{}{}
		wait.Go(func() {
			defer func() { _ = client.Close(); <-limit }()
			seen, err := probe.Ask(client, f.text(), patience)
			if err != nil || seen != f.from.Address {
				t.Errorf("%s to %s: the server has seen %s, %v", f.from.Address, f.to, seen, err)
			}
		})
	}
	wait.Wait()
	return outside
}

// checkWire asserts that each flow passed the provider as a plain IPv6 packet between the two addresses, and nothing else than plain
// packets did.
func checkWire(t *testing.T, l *lab.Lab, packets []capture.Packet, flows []flow) {
	t.Helper()
	passed := map[string]capture.Packet{}
	for _, p := range packets {
		switch {
		case p.EtherType != capture.EtherTypeIPv6:
			t.Errorf("a frame of type %#x passed the provider: %+v", p.EtherType, p)
		case p.Protocol == capture.UDP:
			if i, j := bytes.Index(p.Payload, []byte("k1m ")), bytes.IndexByte(p.Payload, '.'); i == 0 && j > 0 {
				passed[string(p.Payload[:j+1])] = p
			} else if p.SourcePort != probe.Port {
				t.Errorf("a datagram that is not of a pod passed the provider: %+v", p)
			}
		case p.Protocol != capture.ICMP6 && p.Protocol != 0: // hop-by-hop: membership of multicast groups
			t.Errorf("protocol %d passed the provider: %+v", p.Protocol, p)
		}
	}
	for _, f := range flows {
		p, ok := passed[f.text()]
		if !ok {
			t.Errorf("%s did not pass the provider", f.text())
		} else if p.Source != f.from.Address || p.Target != f.to {
			t.Errorf("%s passed the provider from %s to %s", f.text(), p.Source, p.Target)
		}
	}
	t.Logf("%d flows in %d packets", len(flows), len(packets))
}

// checkUplink asserts that a node sends frames with its own Ethernet address only, in each mode.
func checkUplink(t *testing.T, l *lab.Lab, packets []capture.Packet) {
	t.Helper()
	own, count := [6]byte(l.Nodes()[0].Plan.MAC), 0
	for _, p := range packets {
		if l.Nodes()[0].Plan.Pods.Contains(p.Source) {
			count++
			if p.SourceMAC != own {
				t.Errorf("the node sent a frame from %x: %+v", p.SourceMAC, p)
			}
		}
	}
	if count == 0 {
		t.Error("the node sent no packets of its pods")
	}
	dropped, err := l.DroppedMACs()
	must(t, err)
	if dropped > 0 {
		t.Errorf("the provider dropped %d frames because of their Ethernet address", dropped)
	}
}

// checkTracking asserts that connection tracking, which the test has turned on, has seen flows of pods, and has translated none.
func checkTracking(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, ns := range []*netns.Namespace{l.Provider, l.Nodes()[0].NS} {
		all, translated := tracked(t, ns)
		if all == 0 {
			t.Errorf("%s has tracked no flows", ns.Name())
		}
		if len(translated) > 0 {
			t.Errorf("%s has translated addresses: %s", ns.Name(), translated[0])
		}
	}
}

// checkErrors asserts that errors of ICMPv6 come through to pods, from the addresses that cause them.
func checkErrors(t *testing.T, l *lab.Lab) {
	nodes := l.Nodes()
	pod, other := nodes[0].Pods[0], nodes[1].Pods[0]
	unused := address.Host(nodes[1].Plan.Pods, 0xfffe0000)
	if unused == nodes[1].Plan.Address.Addr() {
		unused = unused.Next()
	}
	// A port without a server, an address that no pod has, and a prefix that no node has.
	awaitError(t, pod, netip.AddrPortFrom(other.Address, 9), syscall.ECONNREFUSED)
	awaitError(t, pod, netip.AddrPortFrom(unused, 9), syscall.EHOSTUNREACH)
	awaitError(t, pod, netip.MustParseAddrPort("[2001:db8:dead::1]:9"), syscall.ENETUNREACH)
	checkHops(t, l, pod, other)
}

// checkHops asserts who answers packets whose hop limit ends on the way: the pod's node, the provider and the other node.
func checkHops(t *testing.T, l *lab.Lab, pod, other *lab.Pod) {
	t.Helper()
	for hops := 1; hops <= 3; hops++ {
		seen, err := capture.Start(pod.NS, podLink, maxPackets)
		must(t, err)
		client := dial(t, pod.NS, other.Address)
		must(t, ipv6.NewConn(client).SetHopLimit(hops))
		eventually(t, fmt.Sprintf("an error after %d hops", hops), func() bool {
			_, _ = client.Write([]byte("x"))
			const timeExceeded = 3
			return len(capture.Select(seen.Packets(), func(p capture.Packet) bool { return p.Protocol == capture.ICMP6 && p.Type == timeExceeded })) > 0
		})
		_ = client.Close()
		stop(t, seen)
	}
	client := dial(t, pod.NS, other.Address)
	defer client.Close()
	must(t, ipv6.NewConn(client).SetHopLimit(4))
	if _, err := probe.Ask(client, "four hops", patience); err != nil {
		t.Errorf("a pod of another node is not four hops away: %v", err)
	}
}

// checkPathMTU asserts that pods have the MTU of the provider, and learn of a smaller one on the way to a server outside.
func checkPathMTU(t *testing.T, l *lab.Lab) {
	const small = 1280
	pod := l.Nodes()[0].Pods[0]
	var device *net.Interface
	must(t, pod.NS.Do(func() (err error) {
		device, err = net.InterfaceByName(podLink)
		return err
	}))
	if device.MTU != l.MTU {
		t.Errorf("the MTU of a pod is %d instead of %d", device.MTU, l.MTU)
	}
	// The server does not know of it, so it does not tell the pod by the MSS of TCP.
	must(t, l.Provider.SetMTU("internet", small))
	seen, err := capture.Start(pod.NS, podLink, maxPackets)
	must(t, err)
	const bytesSent = 1 << 20
	if got := transfer(t, pod.NS, l.Internet, internet, bytesSent); got != bytesSent {
		t.Errorf("%d of %d bytes arrived", got, bytesSent)
	}
	tooBig := capture.Select(stop(t, seen), func(p capture.Packet) bool { return p.Protocol == capture.ICMP6 && p.Type == capture.PacketTooBig })
	if len(tooBig) == 0 {
		t.Error("no message about the smaller MTU came through")
	}
	route, err := pod.NS.Run(t.Context(), "ip", "-6", "route", "get", internet.String())
	must(t, err)
	if !bytes.Contains([]byte(route), []byte("mtu 1280")) {
		t.Errorf("the pod has not learned the MTU of the path: %s", route)
	}
}

// transfer sends bytes through a TCP connection, and returns how many arrived.
func transfer(t *testing.T, from, to *netns.Namespace, address netip.Addr, count int) (arrived int64) {
	t.Helper()
	var listener net.Listener
	must(t, to.Do(func() (err error) {
		listener, err = net.Listen("tcp6", netip.AddrPortFrom(address, 0).String())
		return err
	}))
	defer listener.Close()
	received := make(chan int64, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			received <- 0
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		n, _ := io.Copy(io.Discard, conn)
		received <- n
	}()
	var client net.Conn
	must(t, from.Do(func() (err error) {
		client, err = net.DialTimeout("tcp6", listener.Addr().String(), patience)
		return err
	}))
	must(t, client.SetDeadline(time.Now().Add(patience)))
	_, err := client.Write(make([]byte, count))
	must(t, errors.Join(err, client.Close()))
	return <-received
}
