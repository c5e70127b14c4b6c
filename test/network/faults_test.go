package network

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/k8s-1m/k8s-1m/internal/network/address"
	"github.com/k8s-1m/k8s-1m/internal/network/agent"
	"github.com/k8s-1m/k8s-1m/internal/network/capture"
	"github.com/k8s-1m/k8s-1m/internal/network/cni"
	"github.com/k8s-1m/k8s-1m/internal/network/filter"
	"github.com/k8s-1m/k8s-1m/internal/network/lab"
	"github.com/k8s-1m/k8s-1m/internal/network/neighbour"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
	"github.com/k8s-1m/k8s-1m/internal/network/probe"
)

// While the agent is down, pods keep their network and their filter. A pod that is added meanwhile gets its network when the
// agent is back.
func TestAgentIsKilled(t *testing.T) {
	l := newLab(t, agent.ModeRouted, 2, 2)
	echoAll(t, l)
	n, other := l.Nodes()[0], l.Nodes()[1].Pods[0]
	reaches(t, n.Pods[0], other.Address)
	reaches(t, n.Pods[1], other.Address) // the agent has bound both
	must(t, n.StopAgent(syscall.SIGKILL))
	reaches(t, n.Pods[0], other.Address)
	reaches(t, other, n.Pods[1].Address)
	late, _, err := n.AddPod(t.Context(), 9)
	must(t, err)
	echo(t, late.NS, late.Address)
	silent := func(from *netns.Namespace, to netip.Addr) {
		t.Helper()
		client := dial(t, from, to)
		defer client.Close()
		if seen, err := probe.Ask(client, "hello", 2*time.Second); err == nil {
			t.Errorf("a pod that the filter does not know has network: %s was seen", seen)
		}
	}
	silent(other.NS, late.Address)
	silent(late.NS, n.Pods[0].Address) // on the same bridge
	takeMAC(t, l, late.NS, n, n.Pods[0])
	reaches(t, n.Pods[1], n.Pods[0].Address)
	must(t, n.StartAgent(t.Context()))
	reaches(t, other, late.Address)
	reaches(t, late, other.Address)
	reaches(t, other, n.Pods[0].Address)
}

// takeMAC sends a frame with the Ethernet address of a pod from another one. The bridge must not learn that the address has moved.
func takeMAC(t *testing.T, l *lab.Lab, from *netns.Namespace, n *lab.Node, victim *lab.Pod) {
	t.Helper()
	var raw *neighbour.Socket
	must(t, from.Do(func() (err error) {
		raw, err = neighbour.OpenSocket(podLink, netip.Prefix{}, false)
		return err
	}))
	defer raw.Close()
	frame := datagram(mac(t, victim.NS, podLink), mac(t, n.NS, podBridge), victim.Address, address.Gateway(n.Plan.Pods), "wrong")
	if sent, err := raw.Send([][]byte{frame}); err != nil || sent != 1 {
		t.Fatalf("%d frames were sent: %v", sent, err)
	}
	handle, err := n.NS.Links()
	must(t, err)
	entries, err := handle.NeighList(0, unix.AF_BRIDGE)
	must(t, err)
	port, err := handle.LinkByName(portOf(t, l, n, victim))
	must(t, err)
	own := mac(t, victim.NS, podLink)
	for _, e := range entries {
		if slices.Equal(e.HardwareAddr, net.HardwareAddr(own[:])) && e.MasterIndex != 0 && e.LinkIndex != port.Attrs().Index {
			t.Errorf("the bridge has learned the Ethernet address of %s at link %d", victim.Name, e.LinkIndex)
		}
	}
}

// portOf returns the name of the port of the bridge at which a pod is.
func portOf(t *testing.T, l *lab.Lab, n *lab.Node, pod *lab.Pod) string {
	t.Helper()
	attachments, _, err := cni.Attachments(cni.ResultsDir(filepath.Join(l.Dir(), n.Plan.Name, "cni")), podBridge)
	must(t, err)
	for _, a := range attachments {
		if a.Address == pod.Address {
			return a.Port
		}
	}
	t.Fatalf("no port of %s", pod.Name)
	return ""
}

// The agent outlives a program that removes its rules, a link that goes down, and a runtime that removes its directory of results.
func TestAgentRepairsTheNode(t *testing.T) {
	l := newLab(t, agent.ModeOnLink, 2, 1)
	echoAll(t, l)
	n, other := l.Nodes()[0], l.Nodes()[1].Pods[0]
	reaches(t, other, n.Pods[0].Address)
	pid := n.Agent.PID
	must(t, n.NS.Do(filter.Remove))
	pod, _, err := n.AddPod(t.Context(), 8)
	must(t, err)
	// The counters are in the tables.
	eventually(t, "the rules are there again", func() bool {
		_, page := get(t, n.NS, "http://[::1]:9187/metrics")
		return strings.Contains(page, `network_agent_dropped_packets_total{reason="`+filter.CounterMAC+`"}`)
	})
	reaches(t, other, n.Pods[0].Address)
	echo(t, pod.NS, pod.Address)
	reaches(t, other, pod.Address)

	must(t, n.NS.Sysctl("ipv6/conf/"+uplink+"/keep_addr_on_down", "1"))
	handle, err := n.NS.Links()
	must(t, err)
	link, err := handle.LinkByName(uplink)
	must(t, err)
	must(t, handle.LinkSetDown(link))
	eventually(t, "the agent notices that its link is down", func() bool {
		content, err := os.ReadFile(filepath.Join(l.Dir(), n.Plan.Name, "agent.log"))
		return err == nil && strings.Contains(string(content), "neighbour solicitations are not answered")
	})
	must(t, handle.LinkSetUp(link))
	var raw *neighbour.Socket
	must(t, l.Provider.Do(func() (err error) {
		raw, err = neighbour.OpenSocket(providerBridge, netip.Prefix{}, false)
		return err
	}))
	defer raw.Close()
	const answered = `network_agent_neighbour_solicitations_total{result="answered"}`
	before := metric(t, n, answered)
	question := neighbour.AppendSolicitation(nil, raw.Own, netip.MustParseAddr("fe80::1"), n.Pods[0].Address)
	eventually(t, "the agent answers again", func() bool {
		_, err := raw.Send([][]byte{question})
		return err == nil && metric(t, n, answered) > before
	})

	must(t, os.RemoveAll(cni.ResultsDir(filepath.Join(l.Dir(), n.Plan.Name, "cni"))))
	eventually(t, "the agent notices that its pods are gone", func() bool { return metric(t, n, "network_agent_pods") == 0 })
	_, _, err = n.AddPod(t.Context(), 9)
	must(t, err)
	eventually(t, "the agent knows a new pod", func() bool { return metric(t, n, "network_agent_pods") == 1 })
	if n.Agent.PID != pid || !strings.Contains(n.AgentLog(), "watching again") {
		t.Errorf("the agent has process %d, had %d; its log ends with %s", n.Agent.PID, pid, n.AgentLog())
	}
}

// Of two nodes that claim one prefix, the first one keeps it, and the second one says why it starts no pods.
func TestTwoNodesClaimOnePrefix(t *testing.T) {
	for _, mode := range []string{agent.ModeOnLink, agent.ModeOneMAC} {
		t.Run(mode, func(t *testing.T) {
			l := newLab(t, mode, 2, 1)
			echoAll(t, l)
			first := l.Nodes()[0]
			plan, err := l.Plan(3)
			must(t, err)
			plan.Provided, plan.Pods, plan.AgentPrefix = first.Plan.Provided, first.Plan.Pods, first.Plan.AgentPrefix
			thief, err := l.AttachNode(3, plan)
			must(t, err)
			must(t, thief.LaunchAgent())
			eventually(t, "the second agent says that the prefix is claimed", func() bool {
				return strings.Contains(thief.AgentLog(), "is claimed by node "+first.Plan.Name)
			})
			status, page := get(t, thief.NS, "http://[::1]:9187/readyz")
			if status != http.StatusServiceUnavailable {
				t.Errorf("the second agent is ready: %d %s", status, page)
			}
			if _, page := get(t, thief.NS, "http://[::1]:9187/metrics"); !strings.Contains(page, "network_agent_ready 0") || strings.Contains(page, "network_agent_prefix_conflicts_total 0") {
				t.Errorf("the metrics of the second agent: %s", page)
			}
			if _, err := os.Stat(filepath.Join(l.Dir(), plan.Name, "net.d")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the second agent has written a CNI configuration: %v", err)
			}
			reaches(t, l.Nodes()[1].Pods[0], first.Pods[0].Address)
			must(t, l.RemoveNode(t.Context(), thief))
			reaches(t, l.Nodes()[1].Pods[0], first.Pods[0].Address)
		})
	}
}

// get returns the status and the body of a page that is served in a namespace.
func get(t *testing.T, ns *netns.Namespace, url string) (status int, page string) {
	t.Helper()
	response, err := ns.HTTPClient(patience, nil).Get(url)
	must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(body)
}

// metric returns the value of a sample of a node's agent.
func metric(t *testing.T, n *lab.Node, sample string) int {
	t.Helper()
	_, page := get(t, n.NS, "http://[::1]:9187/metrics")
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, sample+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			must(t, err)
			return int(value)
		}
	}
	t.Fatalf("no %s in %s", sample, page)
	return 0
}

// A pod that sends with the address of another one is not heard: neither by pods of its node nor outside, whichever address it takes.
func TestPodWithAnothersAddress(t *testing.T) {
	l := newLab(t, agent.ModeOneMAC, 2, 2)
	n := l.Nodes()[0]
	pod, neighbourPod, far := n.Pods[0], n.Pods[1], l.Nodes()[1].Pods[0]
	wrong := func(reason string) int {
		return metric(t, n, `network_agent_dropped_packets_total{reason="`+reason+`"}`)
	}
	eventually(t, "the agent has bound its pods", func() bool { return metric(t, n, "network_agent_pods") == 2 })
	var raw *neighbour.Socket
	must(t, pod.NS.Do(func() (err error) {
		raw, err = neighbour.OpenSocket(podLink, netip.Prefix{}, false)
		return err
	}))
	defer raw.Close()
	gateway, bridgeMAC := address.Gateway(n.Plan.Pods), mac(t, n.NS, podBridge)
	neighbourMAC := mac(t, neighbourPod.NS, podLink)
	nearby, err := capture.Start(neighbourPod.NS, podLink, maxPackets)
	must(t, err)
	outside, err := capture.Start(far.NS, podLink, maxPackets)
	must(t, err)
	send := func(frames ...[]byte) {
		sent, err := raw.Send(frames)
		must(t, err)
		if sent != len(frames) {
			t.Fatalf("%d of %d frames were sent", sent, len(frames))
		}
	}
	sourcesBefore, neighboursBefore, macsBefore := wrong(filter.CounterSource), wrong(filter.CounterNeighbour), wrong(filter.CounterMAC)
	for _, source := range []netip.Addr{neighbourPod.Address, far.Address, gateway, n.Plan.Address.Addr(), internet, netip.MustParseAddr("fe80::1")} {
		send(datagram(raw.Own, bridgeMAC, source, far.Address, "wrong"), datagram(raw.Own, neighbourMAC, source, neighbourPod.Address, "wrong"))
	}
	send(datagram(neighbourMAC, bridgeMAC, neighbourPod.Address, far.Address, "wrong"), datagram(neighbourMAC, neighbourMAC, pod.Address, neighbourPod.Address, "wrong"))
	send(neighbour.AppendAdvertisement(nil, neighbour.Solicitation{From: neighbourMAC, Source: neighbourPod.Address, Target: gateway}, raw.Own))
	// Frames of one link stay in order, so these are the last ones.
	send(datagram(raw.Own, bridgeMAC, pod.Address, far.Address, "right"), datagram(raw.Own, neighbourMAC, pod.Address, neighbourPod.Address, "right"))
	for name, c := range map[string]*capture.Capture{"a pod of the same node": nearby, "a pod of another node": outside} {
		heard := func(text string) []capture.Packet {
			return capture.Select(c.Packets(), func(p capture.Packet) bool { return strings.HasPrefix(string(p.Payload), text) })
		}
		eventually(t, name+" hears the pod with its own address", func() bool { return len(heard("right")) == 1 })
		if packets := heard("wrong"); len(packets) > 0 {
			t.Errorf("%s has heard %d packets with wrong addresses: %+v", name, len(packets), packets[0])
		}
		stop(t, c)
	}
	if got := wrong(filter.CounterSource) - sourcesBefore; got != 12 {
		t.Errorf("%d packets with a wrong source were counted", got)
	}
	if got := wrong(filter.CounterMAC) - macsBefore; got != 2 {
		t.Errorf("%d frames with a wrong Ethernet address were counted", got)
	}
	if got := wrong(filter.CounterNeighbour) - neighboursBefore; got != 1 {
		t.Errorf("%d wrong neighbour advertisements were counted", got)
	}
}

func mac(t *testing.T, ns *netns.Namespace, link string) neighbour.MAC {
	t.Helper()
	a, err := ns.MAC(link)
	must(t, err)
	return neighbour.MAC(a)
}

// datagram returns a frame with an UDP datagram.
func datagram(from, to neighbour.MAC, source, target netip.Addr, text string) []byte {
	s, d := source.As16(), target.As16()
	length := 8 + len(text)
	frame := append(append([]byte{}, to[:]...), from[:]...)
	frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0, byte(length>>8), byte(length), capture.UDP, 64)
	frame = append(append(frame, s[:]...), d[:]...)
	udp := append([]byte{0, 9, 0, 9, byte(length >> 8), byte(length), 0, 0}, text...)
	sum := uint32(length) + capture.UDP
	for i, b := range append(append(append([]byte{}, s[:]...), d[:]...), udp...) {
		sum += uint32(b) << (8 * ((i + 1) % 2))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	udp[6], udp[7] = byte(^sum>>8), byte(^sum)
	return append(frame, udp...)
}

// A scan of a /96 from outside leaves no entries in the node's table of neighbours, and its pods are reached meanwhile. Without
// the filter, the scan leaves entries.
func TestScanDoesNotFillTheTableOfNeighbours(t *testing.T) {
	const scanned = 20_000
	l := newLab(t, agent.ModeRouted, 2, 2)
	echoAll(t, l)
	n, other := l.Nodes()[0], l.Nodes()[1].Pods[0]
	reaches(t, other, n.Pods[0].Address)
	before := incomplete(t, n.NS)
	scan(t, l, n.Plan.Pods, scanned)
	reaches(t, other, n.Pods[0].Address)
	pod, _, err := n.AddPod(t.Context(), 9)
	must(t, err)
	echo(t, pod.NS, pod.Address)
	reaches(t, other, pod.Address)
	const unknown = `network_agent_dropped_packets_total{reason="` + filter.CounterUnknown + `"}`
	eventually(t, "the node has rejected the scan", func() bool { return metric(t, n, unknown) >= scanned/2 })
	if after := incomplete(t, n.NS); after > before+4 {
		t.Errorf("the scan left %d entries in the table of neighbours", after-before)
	}
	must(t, n.StopAgent(syscall.SIGKILL))
	must(t, n.NS.Do(filter.Remove))
	scan(t, l, n.Plan.Pods, 200)
	eventually(t, "without the filter, a scan leaves entries in the table", func() bool { return incomplete(t, n.NS) >= 100 })
}

// scan sends datagrams from outside to random addresses of a prefix, of which each is another one.
func scan(t *testing.T, l *lab.Lab, prefix netip.Prefix, count int) {
	t.Helper()
	var socket net.PacketConn
	must(t, l.Internet.Do(func() (err error) {
		socket, err = net.ListenPacket("udp6", "[::]:0")
		return err
	}))
	defer socket.Close()
	random := rand.New(rand.NewPCG(5, 6))
	for range count {
		target := address.Host(prefix, uint64(random.Uint32()|1<<31))
		// Errors of ICMPv6 for earlier datagrams are returned here, too.
		for try := 0; ; try++ {
			if _, err := socket.WriteTo([]byte("scan"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(target, 9))); err == nil {
				break
			} else if try == 10 {
				t.Fatal(err)
			}
		}
	}
}

// incomplete returns the number of entries of a node's table for its pods that are not permanent.
func incomplete(t *testing.T, ns *netns.Namespace) (count int) {
	t.Helper()
	index, err := ns.Index(podBridge)
	must(t, err)
	handle, err := ns.Links()
	must(t, err)
	entries, err := handle.NeighList(index, netlink.FAMILY_V6)
	must(t, err)
	for _, e := range entries {
		if e.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) == 0 {
			count++
		}
	}
	return count
}

// The provider drops frames with the Ethernet address of a pod, so a node that bridged its pods to the uplink would not be heard.
func TestProviderDropsOtherMACs(t *testing.T) {
	l := newLab(t, agent.ModeOneMAC, 1, 0)
	n := l.Nodes()[0]
	var raw *neighbour.Socket
	must(t, n.NS.Do(func() (err error) {
		raw, err = neighbour.OpenSocket(uplink, netip.Prefix{}, false)
		return err
	}))
	defer raw.Close()
	stranger := neighbour.MAC{2, 0xff, 0, 0, 0, 1}
	frames := [][]byte{
		datagram(stranger, mac(t, l.Provider, providerBridge), n.Plan.Address.Addr(), internet, "stranger"),
		datagram(raw.Own, mac(t, l.Provider, providerBridge), n.Plan.Address.Addr(), internet, "own"),
	}
	seen, err := capture.Start(l.Internet, uplink, maxPackets)
	must(t, err)
	if sent, err := raw.Send(frames); err != nil || sent != len(frames) {
		t.Fatalf("%d frames were sent: %v", sent, err)
	}
	eventually(t, "the frame with the node's Ethernet address arrives", func() bool {
		return len(capture.Select(seen.Packets(), func(p capture.Packet) bool { return strings.HasPrefix(string(p.Payload), "own") })) == 1
	})
	if packets := capture.Select(stop(t, seen), func(p capture.Packet) bool { return strings.HasPrefix(string(p.Payload), "stranger") }); len(packets) > 0 {
		t.Error("the frame with another Ethernet address arrived")
	}
	dropped, err := l.DroppedMACs()
	must(t, err)
	if dropped != 1 {
		t.Errorf("the provider has dropped %d frames", dropped)
	}
}
