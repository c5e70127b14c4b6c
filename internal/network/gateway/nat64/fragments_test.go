package nat64

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
)

// split6 makes fragments of an IPv6 packet.
func split6(p []byte, size int, id uint32) [][]byte {
	var all [][]byte
	payload := p[40:]
	for offset := 0; offset < len(payload); offset += size {
		end := min(offset+size, len(payload))
		field := uint16(offset)
		if end < len(payload) {
			field |= 1
		}
		header := []byte{p[6], 0, byte(field >> 8), byte(field), 0, 0, 0, 0}
		binary.BigEndian.PutUint32(header[4:], id)
		f := append(bytes.Clone(p[:40]), header...)
		f = append(f, payload[offset:end]...)
		f[6] = 44
		binary.BigEndian.PutUint16(f[4:], uint16(len(f)-40))
		all = append(all, f)
	}
	return all
}

func split4(p []byte, size int) [][]byte {
	var all [][]byte
	payload := p[20:]
	for offset := 0; offset < len(payload); offset += size {
		end := min(offset+size, len(payload))
		f := append(bytes.Clone(p[:20]), payload[offset:end]...)
		field := uint16(offset / 8)
		if end < len(payload) {
			field |= 0x2000
		}
		binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
		binary.BigEndian.PutUint16(f[6:], field)
		binary.BigEndian.PutUint16(f[10:], 0)
		binary.BigEndian.PutUint16(f[10:], slowSum(f[:20]))
		all = append(all, f)
	}
	return all
}

func longText(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return string(b)
}

func TestFragmentsFromANode(t *testing.T) {
	tr := newTest(t, nil)
	n := tr.AddNode("a")
	packet := udp6(podA, mapped(server), 5000, 53, longText(3000))
	var whole []byte
	var last []byte
	for i, f := range split6(packet, 1232, 99) {
		r, o := out(tr, n, f, start)
		if r.Action != Forward {
			t.Fatalf("fragment %d: %v", i, r.Reason)
		}
		if slowSum(o[:20]) != 0 || int(binary.BigEndian.Uint16(o[6:])&0x1fff)*8 != len(whole) {
			t.Fatalf("fragment %d: header % x", i, o[:20])
		}
		if last != nil && !bytes.Equal(last[4:6], o[4:6]) {
			t.Fatal("fragments of a packet have different identifications")
		}
		whole = append(whole, o[20:]...)
		last = bytes.Clone(o)
	}
	if last[6]&0x20 != 0 {
		t.Error("more fragments after the last one")
	}
	joined := append(bytes.Clone(last[:20]), whole...)
	binary.BigEndian.PutUint16(joined[2:], uint16(len(joined)))
	joined[6], joined[7], joined[10], joined[11] = 0, 0, 0, 0
	binary.BigEndian.PutUint16(joined[10:], slowSum(joined[:20]))
	if v := see4(t, joined); string(v.transport[8:]) != longText(3000) {
		t.Error("the packet has changed")
	}
}

func TestFragmentsForANode(t *testing.T) {
	tr := newTest(t, nil)
	v := mustOut(t, tr, tr.AddNode("a"), udp6(podA, mapped(server), 5000, 53, "q"), start)
	var whole, header []byte
	for i, f := range split4(udp4(v.src, 53, longText(3000)), 1200) {
		r, o := in(tr, f, start)
		if r.Action != Forward || o[6] != 44 || o[40] != 17 {
			t.Fatalf("fragment %d: %v, header % x", i, r.Reason, o[:48])
		}
		if field := binary.BigEndian.Uint16(o[42:]); int(field&^7) != len(whole) || (field&1 == 1) != (i < 2) {
			t.Fatalf("fragment %d: offset and flag %x", i, field)
		}
		whole, header = append(whole, o[48:]...), o[:40]
	}
	joined := append(bytes.Clone(header), whole...)
	joined[6] = 17
	binary.BigEndian.PutUint16(joined[4:], uint16(len(whole)))
	if got := see6(t, joined); string(got.transport[8:]) != longText(3000) {
		t.Error("the packet has changed")
	}
}

func TestFragmentsThatAreRefused(t *testing.T) {
	tr := newTest(t, func(c *Config) { c.MaxFragmented = 32 })
	n := tr.AddNode("a")
	first := split6(udp6(podA, mapped(server), 5000, 53, longText(3000)), 1232, 1)
	r, _ := out(tr, n, first[1], start)
	mustDrop(t, r, FragmentFirst)
	for id := range uint32(3) {
		fragments := split6(udp6(podA, mapped(server), 5000, 53, longText(3000)), 1232, 10+id)
		r, _ := out(tr, n, fragments[0], start)
		if want := []Reason{NotDropped, NotDropped, FragmentLimit}[id]; r.Reason != want {
			t.Errorf("packet %d: %q, want %q", id, r.Reason, want)
		}
	}
	later := start + 3*time.Second
	tr.Advance(later)
	r, _ = out(tr, n, split6(udp6(podA, mapped(server), 5000, 53, longText(3000)), 1232, 10)[1], later)
	mustDrop(t, r, FragmentFirst)
	dst := mapped(server)
	ping := packet6(podA, dst, 58, sealed(podA, dst, 58, echo(128, 1, longText(2000))))
	r, _ = out(tr, n, split6(ping, 1232, 5)[0], start)
	mustDrop(t, r, FragmentICMP)
}
