package nat64

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"
)

func TestUDPThereAndBack(t *testing.T) {
	tr := newTest(t, nil)
	n := tr.AddNode("a")
	v := mustOut(t, tr, n, udp6(podA, mapped(server), 5000, 53, "question"), start)
	if v.dst != netip.AddrPortFrom(server, 53) || !testPool.Contains(v.src.Addr()) || string(v.transport[8:]) != "question" {
		t.Fatalf("translated to %+v", v)
	}
	back := mustIn(t, tr, udp4(v.src, 53, "answer"), start)
	if back.src != netip.AddrPortFrom(mapped(server), 53) || back.dst != netip.AddrPortFrom(podA, 5000) || string(back.transport[8:]) != "answer" {
		t.Fatalf("translated back to %+v", back)
	}
	c := tr.Counters(n)
	if c.Sessions != 1 || c.Ports != 1 || c.PacketsOut != 1 || c.PacketsIn != 1 || c.UsedAddress != v.src.Addr() {
		t.Fatalf("counters %+v", c)
	}
}

func TestUDPWithoutChecksumGetsOne(t *testing.T) {
	tr := newTest(t, nil)
	v := mustOut(t, tr, tr.AddNode("a"), udp6(podA, mapped(server), 5000, 53, "q"), start)
	p := udp4(v.src, 53, "answer")
	p[26], p[27] = 0, 0
	mustIn(t, tr, p, start)
}

func TestMappingIsEndpointIndependentAndFilteringStrict(t *testing.T) {
	tr := newTest(t, nil)
	n := tr.AddNode("a")
	first := mustOut(t, tr, n, udp6(podA, mapped(server), 5000, 53, "q"), start)
	second := mustOut(t, tr, n, udp6(podA, mapped(netip.MustParseAddr("11.0.0.2")), 5000, 54, "q"), start)
	if first.src != second.src {
		t.Errorf("one source has two mappings: %v and %v", first.src, second.src)
	}
	r, _ := in(tr, udp4(first.src, 54, "a"), start)
	mustDrop(t, r, NoSession)
}

func TestEchoThereAndBack(t *testing.T) {
	tr := newTest(t, nil)
	n := tr.AddNode("a")
	dst := mapped(server)
	v := mustOut(t, tr, n, packet6(podA, dst, 58, sealed(podA, dst, 58, echo(128, 77, "odd"))), start)
	if v.transport[0] != 8 {
		t.Fatalf("type %d", v.transport[0])
	}
	id := binary.BigEndian.Uint16(v.transport[4:])
	reply := packet4(server, v.src.Addr(), 1, sealed(server, v.src.Addr(), 1, echo(0, id, "odd")), 0)
	back := mustIn(t, tr, reply, start)
	if back.transport[0] != 129 || binary.BigEndian.Uint16(back.transport[4:]) != 77 || back.dst.Addr() != podA {
		t.Fatalf("translated back to %+v", back)
	}
}

func TestTCPStates(t *testing.T) {
	tr := newTest(t, nil)
	n := tr.AddNode("a")
	r, _ := out(tr, n, tcp6(podA, 4000, 443, 0x10, "data"), start)
	mustDrop(t, r, NoSession)
	v := mustOut(t, tr, n, tcp6(podA, 4000, 443, flagSYN, ""), start)
	mustIn(t, tr, tcp4(v.src, 443, flagSYN|0x10, ""), start)
	idle := start + 2*time.Hour
	tr.Advance(idle)
	mustOut(t, tr, n, tcp6(podA, 4000, 443, 0x10, "still there"), idle)
	mustOut(t, tr, n, tcp6(podA, 4000, 443, 0x10|flagFIN, ""), idle)
	mustIn(t, tr, tcp4(v.src, 443, 0x10|flagFIN, ""), idle)
	mustOut(t, tr, n, tcp6(podA, 4000, 443, 0x10, ""), idle+time.Minute)
	tr.Advance(idle + 4*time.Minute + 2*time.Second)
	if tr.Sessions() != 0 || tr.Counters(n).Ports != 0 {
		t.Fatalf("%d sessions and %d ports after both sides have finished", tr.Sessions(), tr.Counters(n).Ports)
	}
}

func TestConnectionsEndWhenIdle(t *testing.T) {
	tr := newTest(t, nil)
	n := tr.AddNode("a")
	mustOut(t, tr, n, udp6(podA, mapped(server), 5000, 53, "q"), start)
	mustOut(t, tr, n, tcp6(podA, 4000, 443, flagSYN, ""), start)
	tr.Advance(start + 4*time.Minute - time.Second)
	if tr.Sessions() != 2 {
		t.Fatalf("%d sessions", tr.Sessions())
	}
	tr.Advance(start + 4*time.Minute + 2*time.Second)
	if tr.Sessions() != 1 {
		t.Fatalf("%d sessions after the time of a SYN", tr.Sessions())
	}
	mustOut(t, tr, n, udp6(podA, mapped(server), 5000, 53, "q"), start+4*time.Minute+2*time.Second)
	tr.Advance(start + 6*time.Minute)
	if tr.Sessions() != 1 {
		t.Fatal("a session that was used has ended")
	}
	tr.Advance(start + 3*time.Hour)
	if tr.Sessions() != 0 {
		t.Fatal("a session that is idle has not ended")
	}
}

func TestResetAndNewConnectionWithTheSamePort(t *testing.T) {
	for _, c := range []struct {
		state    tcpState
		flags    byte
		fromNode bool
		want     tcpState
		restart  bool
	}{
		{v6Init, flagSYN, true, v6Init, true},
		{v6Init, 0, false, v6Init, false},
		{v6Init, flagSYN, false, established, true},
		{established, flagRST, false, transitory, true},
		{transitory, flagRST, true, transitory, false},
		{transitory, 0, true, established, true},
		{established, flagFIN, true, v6Fin, true},
		{v6Fin, flagFIN, true, v6Fin, true},
		{v6Fin, flagFIN, false, bothFin, true},
		{v4Fin, flagFIN, true, bothFin, true},
		{bothFin, 0, true, bothFin, false},
		{bothFin, flagSYN, true, v6Init, true},
		{bothFin, flagSYN, false, bothFin, false},
	} {
		if got, restart := c.state.next(c.flags, c.fromNode); got != c.want || restart != c.restart {
			t.Errorf("state %d, flags %d, from node %v: %d, %v; want %d, %v", c.state, c.flags, c.fromNode, got, restart, c.want, c.restart)
		}
	}
}

func TestDestinationsThatAreRefused(t *testing.T) {
	tr := newTest(t, nil)
	n := tr.AddNode("a")
	for address, reason := range map[string]Reason{
		"10.1.2.3": DeniedDestination, "169.254.169.254": DeniedDestination, "127.0.0.1": DeniedDestination,
		"224.0.0.1": DeniedDestination, "255.255.255.255": DeniedDestination, "192.0.2.9": Hairpin,
	} {
		r, o := out(tr, n, udp6(podA, mapped(netip.MustParseAddr(address)), 1, 2, "x"), start)
		mustDrop(t, r, reason)
		if v := see6(t, o); r.Action != Reply || v.transport[0] != 1 || v.transport[1] != 1 || v.dst.Addr() != podA {
			t.Errorf("%s: no answer that it is prohibited: %+v", address, v)
		}
	}
	r, _ := out(tr, n, udp6(podA, podB, 1, 2, "x"), start)
	mustDrop(t, r, NotInPrefix)
	if tr.Sessions() != 0 || tr.Counters(n).Ports != 0 {
		t.Error("refused packets have left state")
	}
}

func TestHopLimit(t *testing.T) {
	tr := newTest(t, nil)
	n := tr.AddNode("a")
	p := udp6(podA, mapped(server), 5000, 53, "q")
	p[7] = 1
	r, o := out(tr, n, p, start)
	mustDrop(t, r, HopLimit)
	if v := see6(t, o); v.transport[0] != 3 || !bytes.Equal(v.transport[8:], p) {
		t.Fatalf("answer %+v", v)
	}
	v := mustOut(t, tr, n, udp6(podA, mapped(server), 5000, 53, "q"), start)
	q := udp4(v.src, 53, "a")
	q[8] = 1
	binary.BigEndian.PutUint16(q[10:], 0)
	binary.BigEndian.PutUint16(q[10:], slowSum(q[:20]))
	r, o = in(tr, q, start)
	mustDrop(t, r, HopLimit)
	if v := see4(t, o); v.transport[0] != 11 || v.dst.Addr() != server {
		t.Fatalf("answer %+v", v)
	}
}

func TestPacketsThatDoNotFitIntoTheTunnel(t *testing.T) {
	tr := newTest(t, nil)
	v := mustOut(t, tr, tr.AddNode("a"), udp6(podA, mapped(server), 5000, 53, "q"), start)
	fits := string(make([]byte, 1420-40-8))
	mustIn(t, tr, udp4(v.src, 53, fits), start)
	r, o := in(tr, udp4(v.src, 53, fits+"x"), start)
	mustDrop(t, r, TooBig)
	answer := see4(t, o)
	if answer.transport[0] != 3 || answer.transport[1] != 4 || binary.BigEndian.Uint16(answer.transport[6:]) != 1400 {
		t.Fatalf("answer % x", answer.transport[:8])
	}
}

// A router on the way to the server reports that a packet of the pod is too big.
func TestErrorsFromIPv4ReachThePod(t *testing.T) {
	tr := newTest(t, nil)
	n := tr.AddNode("a")
	sent := udp6(podA, mapped(server), 5000, 53, "question")
	_, translated := out(tr, n, sent, start)
	router := netip.MustParseAddr("11.9.9.9")
	pool := netip.AddrFrom4([4]byte(translated[12:16]))
	report := func(kind, code byte, parameter uint32) []byte {
		message := append([]byte{kind, code, 0, 0, 0, 0, 0, 0}, translated...)
		binary.BigEndian.PutUint32(message[4:], parameter)
		return packet4(router, pool, 1, sealed(router, pool, 1, message), 0)
	}
	for _, c := range []struct {
		kind, code byte
		parameter  uint32
		want       [2]byte
		value      uint32
	}{
		{3, 4, 1300, [2]byte{2, 0}, 1320}, {3, 4, 0, [2]byte{2, 0}, 1280}, {3, 4, 9000, [2]byte{2, 0}, 1420},
		{3, 0, 0, [2]byte{1, 0}, 0}, {3, 3, 0, [2]byte{1, 4}, 0}, {3, 13, 0, [2]byte{1, 1}, 0}, {3, 2, 0, [2]byte{4, 1}, 6},
		{11, 0, 0, [2]byte{3, 0}, 0}, {12, 0, 8 << 24, [2]byte{4, 0}, 7},
	} {
		v := mustIn(t, tr, report(c.kind, c.code, c.parameter), start)
		if [2]byte(v.transport[:2]) != c.want || binary.BigEndian.Uint32(v.transport[4:]) != c.value || v.src.Addr() != mapped(router) || v.dst.Addr() != podA {
			t.Errorf("ICMP %d/%d: % x from %v to %v", c.kind, c.code, v.transport[:8], v.src, v.dst)
		}
		inner := see6(t, v.transport[8:])
		if inner.src != netip.AddrPortFrom(podA, 5000) || inner.dst != netip.AddrPortFrom(mapped(server), 53) {
			t.Errorf("the packet in the error: %+v", inner)
		}
	}
	r, _ := in(tr, report(5, 0, 0), start)
	mustDrop(t, r, Untranslatable)
	binary.BigEndian.PutUint16(translated[20:], 1)
	r, _ = in(tr, report(3, 0, 0), start)
	mustDrop(t, r, NoSession)
}

func TestErrorsFromThePodReachTheServer(t *testing.T) {
	tr := newTest(t, nil)
	n, other := tr.AddNode("a"), tr.AddNode("b")
	v := mustOut(t, tr, n, udp6(podA, mapped(server), 5000, 53, "q"), start)
	_, received := in(tr, udp4(v.src, 53, "answer"), start)
	report := func(kind, code byte, parameter uint32) []byte {
		message := append([]byte{kind, code, 0, 0, 0, 0, 0, 0}, received...)
		binary.BigEndian.PutUint32(message[4:], parameter)
		return packet6(podA, mapped(server), 58, sealed(podA, mapped(server), 58, message))
	}
	for _, c := range []struct {
		kind, code byte
		parameter  uint32
		want       [2]byte
		value      uint32
	}{
		{1, 4, 0, [2]byte{3, 3}, 0}, {1, 0, 0, [2]byte{3, 1}, 0}, {1, 1, 0, [2]byte{3, 10}, 0}, {2, 0, 1400, [2]byte{3, 4}, 1380},
		{3, 0, 0, [2]byte{11, 0}, 0}, {4, 1, 0, [2]byte{3, 2}, 0}, {4, 0, 8, [2]byte{12, 0}, 12 << 24},
	} {
		e := mustOut(t, tr, n, report(c.kind, c.code, c.parameter), start)
		if [2]byte(e.transport[:2]) != c.want || binary.BigEndian.Uint32(e.transport[4:]) != c.value || e.dst.Addr() != server || e.src.Addr() != v.src.Addr() {
			t.Errorf("ICMPv6 %d/%d: % x", c.kind, c.code, e.transport[:8])
		}
		inner := see4(t, e.transport[8:])
		if inner.src != netip.AddrPortFrom(server, 53) || inner.dst != v.src {
			t.Errorf("the packet in the error: %+v", inner)
		}
	}
	r, _ := out(tr, other, report(1, 4, 0), start)
	mustDrop(t, r, NoSession)
}

func TestOneNodeCannotTakeWhatIsForOthers(t *testing.T) {
	tr := newTest(t, func(c *Config) {
		c.Limits = Limits{Sessions: 20, Ports: 10, NewPerSecond: 5}
	})
	greedy, modest := tr.AddNode("a"), tr.AddNode("b")
	now := start
	seen := map[Reason]int{}
	for i := range uint16(200) {
		r, _ := out(tr, greedy, udp6(podA, mapped(server), 1000+i, 53, "q"), now)
		seen[r.Reason]++
		now += 50 * time.Millisecond
	}
	if seen[NotDropped] != 10 || seen[NodeRate] == 0 || seen[NodePorts] == 0 {
		t.Errorf("outcomes by reason: %v", seen)
	}
	now += time.Minute
	for i := range uint16(100) {
		r, _ := out(tr, greedy, udp6(podA, mapped(server), 1000, 100+i, "q"), now)
		seen[r.Reason]++
		now += time.Second
	}
	if c := tr.Counters(greedy); c.Sessions != 20 || c.Ports > 10 || seen[NodeSessions] == 0 {
		t.Errorf("the greedy node: %+v, outcomes %v", c, seen)
	}
	mustOut(t, tr, modest, udp6(podB, mapped(server), 5000, 53, "q"), now)
}

func TestPoolAndTableExhausted(t *testing.T) {
	tr := newTest(t, func(c *Config) { c.FirstPort, c.LastPort, c.MaxSessions = 2000, 2009, 15 })
	n := tr.AddNode("a")
	ports := map[uint16]bool{}
	for i := range uint16(10) {
		ports[mustOut(t, tr, n, udp6(podA, mapped(server), 1000+i, 53, "q"), start).src.Port()] = true
	}
	if len(ports) != 10 {
		t.Errorf("%d ports for 10 sources", len(ports))
	}
	r, o := out(tr, n, udp6(podA, mapped(server), 1, 53, "q"), start)
	mustDrop(t, r, PoolExhausted)
	if v := see6(t, o); v.transport[0] != 1 || v.transport[1] != 3 {
		t.Errorf("answer % x", v.transport[:8])
	}
	mustOut(t, tr, n, tcp6(podA, 1, 53, flagSYN, ""), start) // TCP has ports of its own
	for i := range uint16(4) {
		mustOut(t, tr, n, udp6(podA, mapped(server), 1000, 60+i, "q"), start)
	}
	r, _ = out(tr, n, udp6(podA, mapped(server), 1000, 70, "q"), start)
	mustDrop(t, r, TableFull)
}

func TestRemovedNodeLeavesNothing(t *testing.T) {
	tr := newTest(t, nil)
	n := tr.AddNode("a")
	v := mustOut(t, tr, n, udp6(podA, mapped(server), 5000, 53, "q"), start)
	for i := range uint16(100) {
		mustOut(t, tr, n, tcp6(podA, i, i%7, flagSYN, ""), start)
	}
	tr.RemoveNode(n)
	r, _ := in(tr, udp4(v.src, 53, "late"), start)
	mustDrop(t, r, NoSession)
	if tr.Sessions() != 0 || len(tr.sessions4) != 0 || len(tr.bindings) != 0 {
		t.Error("the node has left state")
	}
	for _, sets := range tr.pool.ports {
		for _, set := range sets {
			if set != nil && (set.used != 0 || set.words != [1024]uint64{}) {
				t.Error("the node has left ports")
			}
		}
	}
	tr.Advance(start + time.Hour)
}

// The address of a pod that has moved to another node must not reach the former one.
func TestAddressThatMoves(t *testing.T) {
	tr := newTest(t, nil)
	a, b := tr.AddNode("a"), tr.AddNode("b")
	mustOut(t, tr, a, udp6(podA, mapped(server), 5000, 53, "q"), start)
	v := mustOut(t, tr, b, udp6(podA, mapped(server), 5000, 53, "q"), start)
	r, _ := in(tr, udp4(v.src, 53, "answer"), start)
	if r.Node != b || tr.Counters(a).Sessions != 0 {
		t.Errorf("the answer is for node %v; the former node has %d sessions", r.Node.Name(), tr.Counters(a).Sessions)
	}
}

func TestSavedSessionsContinue(t *testing.T) {
	tr := newTest(t, nil)
	n := tr.AddNode("a")
	v := mustOut(t, tr, n, tcp6(podA, 4000, 443, flagSYN, ""), start)
	mustIn(t, tr, tcp4(v.src, 443, flagSYN|0x10, ""), start)
	u := mustOut(t, tr, n, udp6(podA, mapped(server), 5000, 53, "q"), start)
	var saved []SavedSession
	tr.Save(start, func(s SavedSession) { saved = append(saved, s) })

	next := newTest(t, nil)
	m := next.AddNode("a")
	for _, s := range saved {
		if err := next.Restore(m, s, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if got := mustOut(t, next, m, tcp6(podA, 4000, 443, 0x10, "more"), 6*time.Second); got.src != v.src {
		t.Errorf("the connection has moved from %v to %v", v.src, got.src)
	}
	mustIn(t, next, udp4(u.src, 53, "answer"), 6*time.Second)
	for _, s := range saved {
		if err := next.Restore(m, s, 6*time.Second); err == nil {
			t.Error("a session was restored twice")
		}
	}
	next.Advance(3 * time.Hour)
	if next.Sessions() != 0 {
		t.Error("restored sessions do not end")
	}
	other := newTest(t, func(c *Config) { c.Pool = []netip.Prefix{netip.MustParsePrefix("192.0.2.64/30")} })
	if err := other.Restore(other.AddNode("a"), saved[0], start); err == nil {
		t.Error("a session of another pool was restored")
	}
}
