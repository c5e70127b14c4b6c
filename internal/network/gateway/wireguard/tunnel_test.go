package wireguard

import (
	"bytes"
	"crypto/rand"
	"testing"
	"time"
)

// end is one end of a tunnel in a test.
type end struct {
	tunnel *Tunnel
	peer   *Peer
}

func newPair(t testing.TB, now time.Time) (a, b end) {
	t.Helper()
	var ends [2]end
	for i := range ends {
		key, err := NewPrivateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		ends[i].tunnel = New(key, rand.Reader, 1420, now)
	}
	for i := range ends {
		peer, err := ends[i].tunnel.AddPeer(ends[1-i].tunnel.Public(), i)
		if err != nil {
			t.Fatal(err)
		}
		ends[i].peer = peer
	}
	return ends[0], ends[1]
}

func (e end) tick(now time.Time) [][]byte {
	var sent [][]byte
	e.tunnel.Tick(now, 100, func(d Datagram) { sent = append(sent, d.Data) })
	return sent
}

func (e end) seal(packet string, now time.Time) []byte {
	buffer := make([]byte, len(packet)+Overhead+padding)
	copy(buffer[HeaderSize:], packet)
	return e.tunnel.Seal(e.peer, buffer, len(packet), now)
}

func (e end) open(t testing.TB, datagram []byte, now time.Time) (string, bool) {
	t.Helper()
	if !IsTransport(datagram) {
		t.Fatalf("not a transport message: % x", datagram[:4])
	}
	peer, packet := e.tunnel.Open(bytes.Clone(datagram), now)
	return string(bytes.TrimRight(packet, "\x00")), peer == e.peer && peer != nil
}

var source = []byte{1, 2, 3, 4}

// connect makes a handshake that a begins.
func connect(t testing.TB, a, b end, now time.Time) {
	t.Helper()
	a.seal("first", now)
	initiations := a.tick(now)
	if len(initiations) != 1 {
		t.Fatalf("%d messages instead of an initiation", len(initiations))
	}
	response := b.tunnel.Handshake(initiations[0], source, false, now)
	if response.Peer != b.peer || response.Reply == nil {
		t.Fatal("the initiation was not answered")
	}
	confirmation := a.tunnel.Handshake(response.Reply, source, false, now)
	if confirmation.Peer != a.peer {
		t.Fatal("the response was not accepted")
	}
	if packet, ok := b.open(t, confirmation.Reply, now); !ok || packet != "" {
		t.Fatal("the keepalive was not accepted")
	}
}

func exchange(t testing.TB, a, b end, now time.Time) {
	t.Helper()
	for i, ends := range [][2]end{{a, b}, {b, a}} {
		datagram := ends[0].seal("packet", now)
		if datagram == nil {
			t.Fatalf("direction %d: no keys", i)
		}
		if packet, ok := ends[1].open(t, datagram, now); !ok || packet != "packet" {
			t.Fatalf("direction %d: received %q, %v", i, packet, ok)
		}
	}
}

func TestHandshakeAndPackets(t *testing.T) {
	now := time.Now()
	a, b := newPair(t, now)
	connect(t, a, b, now)
	exchange(t, a, b, now)
}

func TestPaddingStaysWithinTheMTU(t *testing.T) {
	now := time.Now()
	a, b := newPair(t, now)
	connect(t, a, b, now)
	for length, padded := range map[int]int{1: 16, 16: 16, 1400: 1408, 1410: 1420, 1420: 1420, 1500: 1500} {
		if got := len(a.seal(string(make([]byte, length)), now)) - Overhead; got != padded {
			t.Errorf("%d bytes are padded to %d; want %d", length, got, padded)
		}
	}
}

func TestReplaysAndForgeriesAreDropped(t *testing.T) {
	now := time.Now()
	a, b := newPair(t, now)
	connect(t, a, b, now)
	datagram := a.seal("packet", now)
	forged := bytes.Clone(datagram)
	forged[len(forged)-1] ^= 1
	if _, ok := b.open(t, forged, now); ok {
		t.Error("a forged datagram was accepted")
	}
	if _, ok := b.open(t, datagram, now); !ok {
		t.Error("a datagram was dropped after a forged one with its counter")
	}
	if _, ok := b.open(t, datagram, now); ok {
		t.Error("a replay was accepted")
	}
}

func TestKeysAreRenewed(t *testing.T) {
	now := time.Now()
	a, b := newPair(t, now)
	connect(t, a, b, now)
	exchange(t, a, b, now)
	for range 10 {
		now = now.Add(121 * time.Second)
		exchange(t, a, b, now)
		messages := a.tick(now)
		if len(messages) != 1 || messages[0][0] != typeInitiation {
			t.Fatal("who has begun does not renew the keys after 120 s")
		}
		if got := b.tick(now); len(got) != 0 {
			t.Fatal("both ends renew the keys")
		}
		response := b.tunnel.Handshake(messages[0], source, false, now)
		old := b.seal("with the old keys", now)
		confirmation := a.tunnel.Handshake(response.Reply, source, false, now)
		if _, ok := a.open(t, old, now); !ok {
			t.Fatal("a datagram that was overtaken was dropped")
		}
		b.open(t, confirmation.Reply, now)
		exchange(t, a, b, now)
	}
	a.tick(now.Add(time.Minute))
	b.tick(now.Add(time.Minute))
	if len(a.tunnel.indexes) != 1 || len(b.tunnel.indexes) != 1 {
		t.Errorf("%d and %d keys are kept", len(a.tunnel.indexes), len(b.tunnel.indexes))
	}
}

func TestKeysEnd(t *testing.T) {
	now := time.Now()
	a, b := newPair(t, now)
	connect(t, a, b, now)
	late := a.seal("packet", now)
	now = now.Add(181 * time.Second)
	if _, ok := b.open(t, late, now); ok {
		t.Error("a datagram was accepted after 180 s")
	}
	if a.seal("packet", now) != nil {
		t.Error("keys were used after 180 s")
	}
	now = now.Add(10 * time.Minute)
	b.tick(now)
	if len(b.tunnel.indexes) != 0 {
		t.Error("keys that nobody uses are kept")
	}
}

func TestKeepaliveIsOwedForPackets(t *testing.T) {
	now := time.Now()
	a, b := newPair(t, now)
	connect(t, a, b, now)
	b.open(t, a.seal("packet", now), now)
	if got := b.tick(now.Add(9 * time.Second)); len(got) != 0 {
		t.Error("a keepalive before its time")
	}
	now = now.Add(10 * time.Second)
	got := b.tick(now)
	if len(got) != 1 {
		t.Fatal("no keepalive")
	}
	if _, ok := a.open(t, got[0], now); !ok {
		t.Error("the keepalive was not accepted")
	}
	if got := b.tick(now.Add(10 * time.Second)); len(got) != 0 {
		t.Error("a second keepalive for one packet")
	}
}

func TestSilentPeerIsAskedAgain(t *testing.T) {
	now := time.Now()
	a, b := newPair(t, now)
	connect(t, a, b, now)
	a.seal("lost", now)
	initiations := 0
	for range 200 {
		now = now.Add(time.Second)
		for _, m := range a.tick(now) {
			if m[0] == typeInitiation {
				initiations++
			}
		}
	}
	if initiations < 17 || initiations > 19 {
		t.Errorf("%d initiations; want one in 5 s for 90 s", initiations)
	}
	if len(a.tunnel.pending) != 0 {
		t.Error("an initiation is kept")
	}
}

func TestRepeatedInitiationIsNotAnswered(t *testing.T) {
	now := time.Now()
	a, b := newPair(t, now)
	a.seal("x", now)
	initiation := a.tick(now)[0]
	if b.tunnel.Handshake(initiation, source, false, now).Reply == nil {
		t.Fatal("no response")
	}
	stamp := b.peer.LastStamp()
	if b.tunnel.Handshake(initiation, source, false, now).Reply != nil {
		t.Error("a recording was answered")
	}
	b.tunnel.RemovePeer(b.peer)
	peer, err := b.tunnel.AddPeer(a.tunnel.Public(), nil)
	if err != nil {
		t.Fatal(err)
	}
	peer.SetLastStamp(stamp)
	if b.tunnel.Handshake(initiation, source, false, now).Reply != nil {
		t.Error("a recording was answered after a restart")
	}
}

func TestCookiesUnderLoad(t *testing.T) {
	now := time.Now()
	a, b := newPair(t, now)
	a.seal("x", now)
	cookie := b.tunnel.Handshake(a.tick(now)[0], source, true, now)
	if len(cookie.Reply) != sizeCookie || cookie.Peer != nil {
		t.Fatal("no cookie under load")
	}
	a.tunnel.Handshake(cookie.Reply, source, false, now)
	now = now.Add(5 * time.Second)
	initiation := a.tick(now)[0]
	if got := b.tunnel.Handshake(initiation, []byte{9, 9, 9, 9}, true, now); got.Peer != nil {
		t.Error("a cookie was accepted from another address")
	}
	if got := b.tunnel.Handshake(initiation, source, true, now); got.Peer != b.peer {
		t.Error("an initiation with a cookie was not accepted")
	}
}

func TestRemovedPeerIsForgotten(t *testing.T) {
	now := time.Now()
	a, b := newPair(t, now)
	connect(t, a, b, now)
	datagram := a.seal("packet", now)
	b.tunnel.RemovePeer(b.peer)
	if _, ok := b.open(t, datagram, now); ok {
		t.Error("a packet of a removed peer was accepted")
	}
	now = now.Add(200 * time.Second)
	a.seal("again", now)
	for _, m := range a.tick(now) {
		if got := b.tunnel.Handshake(m, source, false, now); got.Reply != nil || got.Peer != nil {
			t.Error("a removed peer was answered")
		}
	}
	if len(b.tunnel.indexes)+len(b.tunnel.peers)+len(b.tunnel.pending) != 0 {
		t.Error("the peer has left state")
	}
}

func TestKeys(t *testing.T) {
	key, err := NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ParsePrivateKey(key.Text()); err != nil || back != key {
		t.Errorf("private key: %v", err)
	}
	if back, err := ParsePublicKey(key.Public().String()); err != nil || back != key.Public() {
		t.Errorf("public key: %v", err)
	}
	for _, text := range []string{"", "x", "AAAA", PublicKey{}.String(), PublicKey{0: 1}.String()} {
		if _, err := ParsePublicKey(text); err == nil {
			t.Errorf("%q was accepted as a public key", text)
		}
	}
}

// FuzzDatagrams gives hostile bytes to a tunnel with a peer.
func FuzzDatagrams(f *testing.F) {
	now := time.Now()
	a, b := newPair(f, now)
	a.seal("x", now)
	initiation := a.tick(now)[0]
	f.Add(initiation)
	f.Add(initiation[:100])
	f.Add(b.tunnel.Handshake(initiation, source, false, now).Reply)
	f.Add([]byte{4, 0, 0, 0})
	f.Fuzz(func(t *testing.T, datagram []byte) {
		c, _ := newPair(t, now)
		for _, load := range []bool{false, true} {
			if got := c.tunnel.Handshake(bytes.Clone(datagram), source, load, now); got.Peer != nil {
				t.Fatal("garbage was authenticated")
			}
		}
		if IsTransport(datagram) {
			if peer, _ := c.tunnel.Open(bytes.Clone(datagram), now); peer != nil {
				t.Fatal("garbage was decrypted")
			}
		}
	})
}

func BenchmarkSealAndOpen(bench *testing.B) {
	now := time.Now()
	a, b := newPair(bench, now)
	connect(bench, a, b, now)
	buffer := make([]byte, 1400+Overhead+padding)
	bench.SetBytes(1400)
	bench.ReportAllocs()
	for bench.Loop() {
		datagram := a.tunnel.Seal(a.peer, buffer, 1400, now)
		if peer, _ := b.tunnel.Open(datagram, now); peer == nil {
			bench.Fatal("not authentic")
		}
	}
}
