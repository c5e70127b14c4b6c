package address

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func TestSubnet(t *testing.T) {
	for _, c := range []struct {
		base   string
		length int
		index  uint64
		want   string
	}{
		{"2001:db8:1::/48", 64, 0, "2001:db8:1::/64"},
		{"2001:db8:1::/48", 64, 65535, "2001:db8:1:ffff::/64"},
		{"2001:db8:2::/64", 96, 5, "2001:db8:2:0:0:5::/96"},
		{"2001:db8:2::/64", 96, 0xffffffff, "2001:db8:2:0:ffff:ffff::/96"},
		{"2001:db8:4::/64", 80, 7, "2001:db8:4:0:7::/80"},
		{"2001:db8::/48", 128, 3, "2001:db8::3/128"},
		{"::/0", 64, 1 << 63, "8000::/64"},
		{"2001:db8::/96", 96, 0, "2001:db8::/96"},
	} {
		got, err := Subnet(prefix(c.base), c.length, c.index)
		if err != nil || got != prefix(c.want) {
			t.Errorf("Subnet(%s, %d, %d) = %s, %v; want %s", c.base, c.length, c.index, got, err, c.want)
		}
	}
	for _, c := range []struct {
		base   netip.Prefix
		length int
		index  uint64
	}{
		{prefix("2001:db8:1::/48"), 64, 65536}, {prefix("2001:db8:1::/64"), 48, 0}, {prefix("10.0.0.0/8"), 96, 0},
		{prefix("2001:db8::1/64"), 96, 0}, {netip.Prefix{}, 96, 0}, {prefix("2001:db8::/96"), 96, 1}, {prefix("2001:db8::/96"), 129, 0},
	} {
		if got, err := Subnet(c.base, c.length, c.index); err == nil {
			t.Errorf("Subnet(%s, %d, %d) = %s without an error", c.base, c.length, c.index, got)
		}
	}
}

// Subnets are compared with the arithmetic of math/big.
func TestSubnetRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		length := 1 + random.IntN(128)
		bits := random.IntN(length + 1)
		var b [16]byte
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		base := netip.PrefixFrom(netip.AddrFrom16(b), bits).Masked()
		if base.Addr().Is4In6() {
			continue
		}
		index := random.Uint64()
		if free := length - bits; free < 64 {
			index &= 1<<free - 1
		}
		got, err := Subnet(base, length, index)
		if err != nil {
			t.Fatal(err)
		}
		first := base.Addr().As16()
		want := new(big.Int).SetBytes(first[:])
		want.Add(want, new(big.Int).Lsh(new(big.Int).SetUint64(index), uint(128-length)))
		have := got.Addr().As16()
		if want.Cmp(new(big.Int).SetBytes(have[:])) != 0 {
			t.Fatalf("Subnet(%s, %d, %d) = %s", base, length, index, got)
		}
		if last := Last(got); !got.Contains(last) || last.Next().IsValid() && got.Contains(last.Next()) {
			t.Fatalf("Last(%s) = %s", got, last)
		}
	}
}

func TestPodsOfProviders(t *testing.T) {
	for provided, want := range map[string]string{
		"2001:db8:1:5::/64": "2001:db8:1:5:0:1::/96", "2001:db8:2:0:0:5::/96": "2001:db8:2:0:0:5::/96", "2001:db8:4:0:7::/80": "2001:db8:4:0:7:1::/96",
	} {
		if got, err := Pods(prefix(provided)); err != nil || got != prefix(want) {
			t.Errorf("Pods(%s) = %s, %v", provided, got, err)
		}
	}
	for _, wrong := range []string{"2001:db8::/97", "2001:db8::1/128", "10.0.0.0/8"} {
		if got, err := Pods(prefix(wrong)); err == nil {
			t.Errorf("Pods(%s) = %s without an error", wrong, got)
		}
	}
}

func TestPodRangeAvoidsTheNode(t *testing.T) {
	pods := prefix("2001:db8::/96")
	for _, c := range []struct{ node, first, last string }{
		{"2001:db8:9::1", "2001:db8::1:0", "2001:db8::ffff:ffff"}, // elsewhere
		{"2001:db8::1", "2001:db8::1:0", "2001:db8::ffff:ffff"},   // in the reserved part
		{"2001:db8::1:0", "2001:db8::1:1", "2001:db8::ffff:ffff"},
		{"2001:db8::5000:0", "2001:db8::5000:1", "2001:db8::ffff:ffff"},
		{"2001:db8::d000:0", "2001:db8::1:0", "2001:db8::cfff:ffff"},
		{"2001:db8::ffff:ffff", "2001:db8::1:0", "2001:db8::ffff:fffe"},
	} {
		first, last := PodRange(pods, addr(c.node))
		if first != addr(c.first) || last != addr(c.last) {
			t.Errorf("PodRange with a node at %s: %s to %s", c.node, first, last)
		}
	}
	if first, last := PodRange(pods, netip.Addr{}); first != addr("2001:db8::1:0") || last != addr("2001:db8::ffff:ffff") {
		t.Errorf("without an address of the node: %s to %s", first, last)
	}
}

// A million nodes of a /64 need few attempts, and the first candidate of a node is always the same.
func TestCandidates(t *testing.T) {
	pool := prefix("2001:db8:5::/64")
	taken := map[netip.Prefix]bool{}
	again := 0
	for i := range 100_000 {
		name := fmt.Sprintf("node-%06d", i)
		for attempt := 0; ; attempt++ {
			p, err := Candidate(pool, PodBits, name, attempt)
			if err != nil {
				t.Fatal(err)
			}
			if p.Bits() != PodBits || !pool.Overlaps(p) {
				t.Fatalf("candidate %s is not in the pool", p)
			}
			if !taken[p] {
				taken[p] = true
				break
			}
			again++
		}
	}
	// By the birthday paradox, 1.2 collisions are expected.
	if again > 12 {
		t.Errorf("%d collisions among 100,000 nodes", again)
	}
	first, _ := Candidate(pool, PodBits, "node-1", 0)
	second, _ := Candidate(pool, PodBits, "node-1", 0)
	other, _ := Candidate(pool, PodBits, "node-1", 1)
	if first != second || first == other {
		t.Errorf("candidates %s, %s and then %s", first, second, other)
	}
}

func TestLinkLocal(t *testing.T) {
	if got := LinkLocal(net.HardwareAddr{2, 0, 0, 1, 2, 3}); got != addr("fe80::ff:fe01:203") {
		t.Error(got)
	}
	if LinkLocal(nil).IsValid() {
		t.Error("an empty hardware address has a link-local address")
	}
}
