package capture

import (
	"net/netip"
	"testing"
)

// frame is an UDP datagram from 2001:db8::1 port 1 to 2001:db8::2 port 2.
func frame() []byte {
	f := make([]byte, 0, 80)
	f = append(f, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 12, UDP, 64)
	source, target := netip.MustParseAddr("2001:db8::1").As16(), netip.MustParseAddr("2001:db8::2").As16()
	f = append(append(f, source[:]...), target[:]...)
	return append(f, 0, 1, 0, 2, 0, 12, 0, 0, 'd', 'a', 't', 'a')
}

func TestParse(t *testing.T) {
	p, ok := Parse(frame(), 66)
	if !ok || p.Source != netip.MustParseAddr("2001:db8::1") || p.Target != netip.MustParseAddr("2001:db8::2") || p.Protocol != UDP ||
		p.SourcePort != 1 || p.TargetPort != 2 || string(p.Payload) != "data" || p.SourceMAC != [6]byte{2, 0, 0, 0, 0, 1} || p.Length != 66 {
		t.Errorf("%+v, %v", p, ok)
	}
	for i := range frame() {
		if p, ok := Parse(frame()[:i], i); ok != (i >= ethernetSize) || i < ethernetSize+ipv6Size && p.Source.IsValid() {
			t.Errorf("the first %d bytes: %+v, %v", i, p, ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(frame())
	f.Fuzz(func(_ *testing.T, frame []byte) { Parse(frame, len(frame)) })
}
