package nat64

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/prefix64"
)

// The packets of tests are built and checked by code that shares nothing with the translator.

var (
	testPrefix = prefix64.MustParse("64:ff9b:1::/96")
	testPool   = netip.MustParsePrefix("192.0.2.8/30")
	podA       = netip.MustParseAddr("2001:db8:1::a")
	podB       = netip.MustParseAddr("2001:db8:2::b")
	server     = netip.MustParseAddr("11.0.0.1")
	start      = 100 * time.Second
)

func testConfig() Config {
	c := Default(testPrefix, testPool)
	c.Denied = append(c.Denied, netip.MustParsePrefix("10.0.0.0/8"))
	c.Seed[0] = 1
	return c
}

func newTest(t testing.TB, change func(*Config)) *Translator {
	t.Helper()
	c := testConfig()
	if change != nil {
		change(&c)
	}
	translator, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return translator
}

func mapped(v4 netip.Addr) netip.Addr { return netip.AddrFrom16(testPrefix.Embed(v4.As4())) }

// slowSum is the checksum of RFC 1071, a word at a time.
func slowSum(data ...[]byte) uint16 {
	total := 0
	for _, part := range data {
		for i := 0; i < len(part); i += 2 {
			word := int(part[i]) << 8
			if i+1 < len(part) {
				word |= int(part[i+1])
			}
			total += word
			total = total&0xffff + total>>16
		}
	}
	return ^uint16(total)
}

func pseudo(src, dst netip.Addr, length int, protocol byte) []byte {
	p := append(src.AsSlice(), dst.AsSlice()...)
	return append(p, 0, 0, byte(length>>8), byte(length), 0, 0, 0, protocol)
}

var checksumAt = map[byte]int{6: 16, 17: 6, 1: 2, 58: 2}

// sealed sets the checksum of a transport payload.
func sealed(src, dst netip.Addr, protocol byte, payload []byte) []byte {
	at := checksumAt[protocol]
	binary.BigEndian.PutUint16(payload[at:], 0)
	head := pseudo(src, dst, len(payload), protocol)
	if protocol == 1 {
		head = nil
	}
	checksum := slowSum(head, payload)
	if protocol == 17 && checksum == 0 {
		checksum = 0xffff
	}
	binary.BigEndian.PutUint16(payload[at:], checksum)
	return payload
}

func packet6(src, dst netip.Addr, protocol byte, payload []byte) []byte {
	p := []byte{0x60, 0, 0, 0, byte(len(payload) >> 8), byte(len(payload)), protocol, 64}
	p = append(append(p, src.AsSlice()...), dst.AsSlice()...)
	return append(p, payload...)
}

func packet4(src, dst netip.Addr, protocol byte, payload []byte, flags uint16) []byte {
	total := 20 + len(payload)
	p := []byte{0x45, 0, byte(total >> 8), byte(total), 0x12, 0x34, byte(flags >> 8), byte(flags), 64, protocol, 0, 0}
	p = append(append(p, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(p[10:], slowSum(p))
	return append(p, payload...)
}

func tcpSegment(from, to uint16, flags byte, data string) []byte {
	p := make([]byte, 20, 20+len(data))
	binary.BigEndian.PutUint16(p, from)
	binary.BigEndian.PutUint16(p[2:], to)
	p[12], p[13] = 5<<4, flags
	return append(p, data...)
}

func udpDatagram(from, to uint16, data string) []byte {
	p := make([]byte, 8, 8+len(data))
	binary.BigEndian.PutUint16(p, from)
	binary.BigEndian.PutUint16(p[2:], to)
	binary.BigEndian.PutUint16(p[4:], uint16(8+len(data)))
	return append(p, data...)
}

func echo(kind byte, id uint16, data string) []byte {
	return append([]byte{kind, 0, 0, 0, byte(id >> 8), byte(id), 0, 1}, data...)
}

func tcp6(src netip.Addr, from, to uint16, flags byte, data string) []byte {
	dst := mapped(server)
	return packet6(src, dst, 6, sealed(src, dst, 6, tcpSegment(from, to, flags, data)))
}

func udp6(src, dst netip.Addr, from, to uint16, data string) []byte {
	return packet6(src, dst, 17, sealed(src, dst, 17, udpDatagram(from, to, data)))
}

func udp4(dst netip.AddrPort, from uint16, data string) []byte {
	return packet4(server, dst.Addr(), 17, sealed(server, dst.Addr(), 17, udpDatagram(from, dst.Port(), data)), 0)
}

func tcp4(dst netip.AddrPort, from uint16, flags byte, data string) []byte {
	return packet4(server, dst.Addr(), 6, sealed(server, dst.Addr(), 6, tcpSegment(from, dst.Port(), flags, data)), 0x4000)
}

// view is what a receiver of a packet sees.
type view struct {
	src, dst  netip.AddrPort
	protocol  byte
	transport []byte
}

// see4 and see6 fail the test if a checksum or a length is wrong.
func see4(t testing.TB, p []byte) view {
	t.Helper()
	if p[0] != 0x45 || int(binary.BigEndian.Uint16(p[2:])) != len(p) || slowSum(p[:20]) != 0 {
		t.Fatalf("IPv4 header of % x", p)
	}
	src, dst := netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
	return see(t, src, dst, p[9], p[20:], p[9] != 1)
}

func see6(t testing.TB, p []byte) view {
	t.Helper()
	if p[0]>>4 != 6 || int(binary.BigEndian.Uint16(p[4:]))+40 != len(p) {
		t.Fatalf("IPv6 header of % x", p)
	}
	src, dst := netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
	return see(t, src, dst, p[6], p[40:], true)
}

func see(t testing.TB, src, dst netip.Addr, protocol byte, payload []byte, withPseudo bool) view {
	t.Helper()
	var head []byte
	if withPseudo {
		head = pseudo(src, dst, len(payload), protocol)
	}
	if slowSum(head, payload) != 0 {
		t.Fatalf("checksum of protocol %d from %v to %v: % x", protocol, src, dst, payload)
	}
	v := view{protocol: protocol, transport: payload}
	var from, to uint16
	if protocol == 6 || protocol == 17 {
		from, to = binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])
	}
	v.src, v.dst = netip.AddrPortFrom(src, from), netip.AddrPortFrom(dst, to)
	return v
}

func out(t *Translator, n *Node, p []byte, now time.Duration) (Result, []byte) {
	buffer := make([]byte, 65536+Headroom)
	r := t.FromIPv6(n, p, buffer, now)
	return r, buffer[:r.Length]
}

func in(t *Translator, p []byte, now time.Duration) (Result, []byte) {
	buffer := make([]byte, 65536+Headroom)
	r := t.FromIPv4(p, buffer, now)
	return r, buffer[:r.Length]
}

func mustOut(t testing.TB, tr *Translator, n *Node, p []byte, now time.Duration) view {
	t.Helper()
	r, o := out(tr, n, p, now)
	if r.Action != Forward {
		t.Fatalf("packet from the node: %v %v", r.Action, r.Reason)
	}
	return see4(t, o)
}

func mustIn(t testing.TB, tr *Translator, p []byte, now time.Duration) view {
	t.Helper()
	r, o := in(tr, p, now)
	if r.Action != Forward {
		t.Fatalf("packet from IPv4: %v %v", r.Action, r.Reason)
	}
	return see6(t, o)
}

func mustDrop(t testing.TB, r Result, reason Reason) {
	t.Helper()
	if r.Action == Forward || r.Reason != reason {
		t.Fatalf("got action %v, reason %q; want %q", r.Action, r.Reason, reason)
	}
}
