package dataplane

import (
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/tun"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/nat64"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/prefix64"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/registry"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

// fakeTUN is a TUN device whose kernel is the test.
type fakeTUN struct {
	fromKernel, toKernel chan []byte
	events               chan tun.Event
	closed               chan struct{}
}

func newFakeTUN() *fakeTUN {
	return &fakeTUN{fromKernel: make(chan []byte), toKernel: make(chan []byte, 100), events: make(chan tun.Event), closed: make(chan struct{})}
}

func (f *fakeTUN) Read(buffers [][]byte, sizes []int, offset int) (int, error) {
	select {
	case <-f.closed:
		return 0, os.ErrClosed
	case packet := <-f.fromKernel:
		sizes[0] = copy(buffers[0][offset:], packet)
		return 1, nil
	}
}

func (f *fakeTUN) Write(packets [][]byte, offset int) (int, error) {
	for _, packet := range packets {
		f.toKernel <- append([]byte(nil), packet[offset:]...)
	}
	return len(packets), nil
}

func (f *fakeTUN) Close() error {
	close(f.closed)
	close(f.events)
	return nil
}

func (f *fakeTUN) File() *os.File           { return nil }
func (f *fakeTUN) MTU() (int, error)        { return 1392, nil }
func (f *fakeTUN) Name() (string, error)    { return "fake", nil }
func (f *fakeTUN) Events() <-chan tun.Event { return f.events }
func (f *fakeTUN) BatchSize() int           { return 1 }

// node is the other end of a tunnel.
type node struct {
	socket *net.UDPConn
	tunnel *wireguard.Tunnel
	peer   *wireguard.Peer
}

func newPlane(t *testing.T) (*Dataplane, *fakeTUN) {
	t.Helper()
	key, err := wireguard.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	configuration := nat64.Default(prefix64.WellKnown, netip.MustParsePrefix("192.0.2.0/30"))
	device := newFakeTUN()
	d, err := New(Config{PrivateKey: key, MTU: 1420, NAT64: &configuration, Masquerade: true}, device)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, device
}

// connect adds a peer and makes its handshake.
func connect(t *testing.T, d *Dataplane, name string) *node {
	t.Helper()
	key, err := wireguard.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	err = d.AddPeer(registry.Peer{
		Node: registry.Node{Name: name, Prefixes: []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/96")}},
		Key:  key.Public(), IPv4: netip.MustParseAddr("10.64.0.1"),
	})
	if err != nil {
		t.Fatal(err)
	}
	socket, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(d.Port())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	n := &node{socket: socket, tunnel: wireguard.New(key, rand.Reader, 1420, time.Now())}
	if n.peer, err = n.tunnel.AddPeer(d.PublicKey(), nil); err != nil {
		t.Fatal(err)
	}
	n.tunnel.Wake(n.peer, time.Now())
	n.tunnel.Tick(time.Now(), 1, func(m wireguard.Datagram) { n.write(t, m.Data) })
	n.write(t, n.tunnel.Handshake(n.read(t), nil, false, time.Now()).Reply)
	return n
}

func (n *node) write(t *testing.T, datagram []byte) {
	t.Helper()
	if _, err := n.socket.Write(datagram); err != nil {
		t.Fatal(err)
	}
}

func (n *node) read(t *testing.T) []byte {
	t.Helper()
	buffer := make([]byte, 2048)
	if err := n.socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	length, err := n.socket.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	return buffer[:length]
}

func (n *node) send(t *testing.T, packet []byte) {
	t.Helper()
	buffer := make([]byte, len(packet)+wireguard.Overhead+16)
	copy(buffer[wireguard.HeaderSize:], packet)
	n.write(t, n.tunnel.Seal(n.peer, buffer, len(packet), time.Now()))
}

// receive returns the next packet for the node; keepalives are skipped.
func (n *node) receive(t *testing.T) []byte {
	t.Helper()
	for {
		if peer, packet := n.tunnel.Open(n.read(t), time.Now()); peer != nil && len(packet) > 0 {
			return packet
		}
	}
}

// udp6 is a datagram without payload for the echo port of 11.0.0.1.
func udp6(source string) []byte {
	p := []byte{0x60, 0, 0, 0, 0, 8, 17, 64}
	p = append(append(p, netip.MustParseAddr(source).AsSlice()...), netip.MustParseAddr("64:ff9b::11.0.0.1").AsSlice()...)
	return append(p, 0x13, 0x88, 0, 7, 0, 8, 0xff, 0xff)
}

// udp4 is a datagram for a packet that has come from a node.
func udp4(from []byte) []byte {
	p := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0}
	p = append(append(p, from[16:20]...), from[12:16]...)
	p = append(p, from[22], from[23], from[20], from[21], 0, 8, 0, 0)
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(p[i])<<8 | uint32(p[i+1])
	}
	sum = sum>>16 + sum&0xffff
	p[10], p[11] = byte(^sum>>8), byte(^sum)
	return p
}

func (f *fakeTUN) next(t *testing.T) []byte {
	t.Helper()
	select {
	case packet := <-f.toKernel:
		return packet
	case <-time.After(time.Minute):
		t.Fatal("no packet for the kernel")
		return nil
	}
}

func TestPacketsPassInBothDirections(t *testing.T) {
	d, device := newPlane(t)
	n := connect(t, d, "a")
	n.send(t, udp6("2001:db8:1::5"))
	translated := device.next(t)
	if translated[0] != 0x45 || netip.AddrFrom4([4]byte(translated[16:20])) != netip.MustParseAddr("11.0.0.1") {
		t.Fatalf("the kernel got % x", translated)
	}
	device.fromKernel <- udp4(translated)
	back := n.receive(t)
	if back[0]>>4 != 6 || netip.AddrFrom16([16]byte(back[24:40])) != netip.MustParseAddr("2001:db8:1::5") {
		t.Errorf("the node got % x", back)
	}
	own := udp4(translated)
	copy(own[12:16], []byte{10, 64, 0, 1})
	n.send(t, own)
	if masqueraded := device.next(t); string(masqueraded) != string(own) {
		t.Errorf("the kernel got % x for masquerading", masqueraded)
	}
	copy(own[16:20], []byte{10, 64, 0, 1})
	device.fromKernel <- own
	if got := n.receive(t); string(got[:len(own)]) != string(own) {
		t.Errorf("the node got % x", got)
	}
	for _, s := range d.Nodes() {
		if s.NAT64.Sessions != 1 || s.Masquerade.PacketsOut != 1 || s.Masquerade.PacketsIn != 1 || s.Endpoint == "" {
			t.Errorf("counters %+v", s)
		}
	}
}

func TestSourcesOfOthersAreDropped(t *testing.T) {
	d, device := newPlane(t)
	n := connect(t, d, "a")
	n.send(t, udp6("2001:db8:2::5"))
	other := udp4(make([]byte, 28))
	copy(other[12:16], []byte{10, 64, 0, 2})
	n.send(t, other)
	n.send(t, []byte{0x99, 1, 2, 3})
	n.send(t, udp6("2001:db8:1::5")) // comes through, so the others have been handled
	if first := device.next(t); netip.AddrFrom4([4]byte(first[16:20])) != netip.MustParseAddr("11.0.0.1") || len(device.toKernel) != 0 {
		t.Errorf("the kernel got % x", first)
	}
	if dropped := d.Totals().Dropped; dropped["spoofed_source"] != 2 || dropped["unexpected"] != 1 {
		t.Errorf("dropped %v", dropped)
	}
}

// TestLongPacketsAreDropped sends a packet that fits into a datagram but not into the buffers of the translation.
func TestLongPacketsAreDropped(t *testing.T) {
	d, device := newPlane(t)
	n := connect(t, d, "a")
	long := append(udp6("2001:db8:1::5"), make([]byte, 20_000)...)
	length := len(long) - 40
	long[4], long[5], long[44], long[45] = byte(length>>8), byte(length), byte(length>>8), byte(length)
	n.send(t, long)
	n.send(t, udp6("2001:db8:1::5")) // comes through, so the other has been handled
	if first := device.next(t); len(first) != 28 {
		t.Errorf("the kernel got %d bytes", len(first))
	}
	if dropped := d.Totals().Dropped; dropped["unexpected"] != 1 {
		t.Errorf("dropped %v", dropped)
	}
}

func TestRestartContinues(t *testing.T) {
	d, device := newPlane(t)
	n := connect(t, d, "a")
	n.send(t, udp6("2001:db8:1::5"))
	translated := device.next(t)
	peers, sessions := d.SavePeers(), d.SaveSessions(time.Now())
	if len(peers) != 1 || len(sessions) != 1 || peers[0].LastStamp == [12]byte{} {
		t.Fatalf("saved %+v and %+v", peers, sessions)
	}
	next, device := newPlane(t)
	m := connect(t, next, "a")
	if restored := next.RestoreSessions(sessions, time.Second, time.Now()); restored != 1 {
		t.Fatalf("%d sessions restored", restored)
	}
	m.send(t, udp6("2001:db8:1::5")) // when it comes out, the handshake is complete
	if again := device.next(t); string(again[12:28]) != string(translated[12:28]) {
		t.Errorf("the session has moved: % x, before % x", again, translated)
	}
	device.fromKernel <- udp4(translated)
	if got := m.receive(t); netip.AddrFrom16([16]byte(got[24:40])) != netip.MustParseAddr("2001:db8:1::5") {
		t.Errorf("the node got % x", got)
	}
	if restored := next.RestoreSessions(sessions, time.Hour, time.Now()); restored != 0 {
		t.Error("sessions were restored after their end")
	}
	next.RestorePeer(SavedPeer{Name: "unknown"}, time.Now())
}

func TestPeersAreRemoved(t *testing.T) {
	d, device := newPlane(t)
	n := connect(t, d, "a")
	n.send(t, udp6("2001:db8:1::5"))
	device.next(t)
	if err := d.AddPeer(registry.Peer{Node: registry.Node{Name: "a"}}); err == nil {
		t.Error("a peer was added twice")
	}
	d.RemovePeer("a")
	d.RemovePeer("a")
	n.send(t, udp6("2001:db8:1::5"))
	for deadline := time.Now().Add(time.Minute); d.Totals().Dropped["not_authentic"] == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a packet of a removed peer is not dropped")
		}
	}
	if len(d.Nodes()) != 0 || d.Totals().Sessions != 0 || len(device.toKernel) != 0 || len(d.nodes)+len(d.byIPv4) != 0 {
		t.Error("the peer has left state")
	}
}

var errGone = errors.New("device is gone")

// brokenTUN fails to read.
type brokenTUN struct{ *fakeTUN }

func (brokenTUN) Read([][]byte, []int, int) (int, error) { return 0, errGone }

func TestBrokenDeviceIsReported(t *testing.T) {
	d, err := New(Config{MTU: 1420, Masquerade: true}, brokenTUN{newFakeTUN()})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-d.Failed():
		if !errors.Is(err, errGone) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a device that cannot be read is not reported")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
