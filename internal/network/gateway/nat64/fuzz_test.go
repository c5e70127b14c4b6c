package nat64

import (
	"testing"
	"time"
)

// FuzzPackets gives hostile bytes to both sides of a translator with sessions. Nothing may panic, and
// what comes out must have right checksums, if what went in had.
func FuzzPackets(f *testing.F) {
	dst := mapped(server)
	f.Add(udp6(podA, dst, 5000, 53, "q"))
	f.Add(tcp6(podA, 4000, 443, flagSYN, ""))
	f.Add(packet6(podA, dst, 58, sealed(podA, dst, 58, echo(128, 7, "x"))))
	f.Add(split6(udp6(podA, dst, 5000, 53, longText(2000)), 1232, 3)[0])
	f.Add(udp6(podA, dst, 5000, 53, "q")[:47])
	tr := newTest(f, nil)
	v := mustOut(f, tr, tr.AddNode("x"), udp6(podB, dst, 5000, 53, "q"), start)
	f.Add(udp4(v.src, 53, "a"))
	f.Add(tcp4(v.src, 53, flagSYN, "a"))
	report := append([]byte{3, 4, 0, 0, 0, 0, 5, 0}, udp4(v.src, 53, "a")...)
	f.Add(packet4(server, v.src.Addr(), 1, sealed(server, v.src.Addr(), 1, report), 0))
	f.Fuzz(func(t *testing.T, packet []byte) {
		tr := newTest(t, nil)
		n := tr.AddNode("x")
		mustOut(t, tr, n, udp6(podB, dst, 5000, 53, "q"), start)
		for range 2 { // the second time, the session exists
			for _, direction := range []func() (Result, []byte){
				func() (Result, []byte) { return out(tr, n, packet, start) },
				func() (Result, []byte) { return in(tr, packet, start) },
			} {
				r, o := direction()
				if (r.Action == Drop) != (len(o) == 0) {
					t.Fatalf("action %v with %d bytes", r.Action, len(o))
				}
				if len(o) > 0 && o[0]>>4 == 4 && slowSum(o[:20]) != 0 {
					t.Fatalf("checksum of the IPv4 header: % x", o)
				}
				if r.Action == Reply && o[0]>>4 == 6 {
					see6(t, o)
				}
			}
		}
		tr.RemoveNode(n)
		if tr.Sessions() != 0 || len(tr.bindings) != 0 {
			t.Fatal("state is left")
		}
		tr.Advance(start + time.Hour)
	})
}

func BenchmarkOutbound(b *testing.B) {
	tr := newTest(b, nil)
	n := tr.AddNode("a")
	p := udp6(podA, mapped(server), 5000, 53, longText(1300))
	buffer := make([]byte, 2048)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		tr.FromIPv6(n, p, buffer, start)
	}
}
