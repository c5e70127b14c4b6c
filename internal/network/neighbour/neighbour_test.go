package neighbour

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/bpf"

	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

var (
	router = MAC{2, 0, 0, 0, 0, 1}
	node   = MAC{2, 0, 0, 0, 0, 2}
	source = netip.MustParseAddr("fe80::1")
	prefix = netip.MustParsePrefix("2001:db8:2:0:0:5::/96")
	target = netip.MustParseAddr("2001:db8:2:0:0:5:7:9")
)

func TestAnswer(t *testing.T) {
	frame := AppendSolicitation(nil, router, source, target)
	s, ok := ParseSolicitation(frame)
	if !ok || s != (Solicitation{From: router, Source: source, Target: target}) {
		t.Fatalf("parsed %+v, %v", s, ok)
	}
	answer := AppendAdvertisement(nil, s, node)
	got, at, ok := ParseAdvertisement(answer)
	if !ok || got != target || at != node {
		t.Fatalf("answered %s at %x, %v", got, at, ok)
	}
	if to := MAC(answer[0:6]); to != router {
		t.Errorf("the answer goes to %x", to)
	}
	if len(frame) != frameSize || len(answer) != frameSize {
		t.Errorf("frames of %d and %d bytes", len(frame), len(answer))
	}
}

// A detection of duplicate addresses has no source. It is answered to all nodes.
func TestDuplicateAddressDetection(t *testing.T) {
	frame := AppendSolicitation(nil, router, netip.IPv6Unspecified(), target)
	if _, ok := ParseSolicitation(frame); ok {
		t.Error("a detection with the Ethernet address of its sender is invalid, but was parsed")
	}
	frame = frame[:len(frame)-optionSize]
	frame[19], frame[56], frame[57] = messageSize, 0, 0
	sum := icmp6Checksum(frame[22:54], frame[54:])
	frame[56], frame[57] = byte(sum>>8), byte(sum)
	s, ok := ParseSolicitation(frame)
	if !ok || !s.Source.IsUnspecified() {
		t.Fatalf("parsed %+v, %v", s, ok)
	}
	answer := AppendAdvertisement(nil, s, node)
	if MAC(answer[0:6]) != (MAC{0x33, 0x33, 0, 0, 0, 1}) || answer[ethernetSize+ipv6Size+4]&flagSolicited != 0 {
		t.Errorf("the answer is %x", answer)
	}
}

// A changed byte makes a solicitation invalid, or changes only what its sender may choose. No bytes panic.
func TestHostileFrames(t *testing.T) {
	good := AppendSolicitation(nil, router, source, target)
	random := rand.New(rand.NewPCG(3, 4))
	for range 200_000 {
		frame := append([]byte{}, good[:random.IntN(len(good)+1)]...)
		for range random.IntN(4) {
			if len(frame) > 0 {
				frame[random.IntN(len(frame))] = byte(random.Uint32())
			}
		}
		ParseSolicitation(frame)
		ParseAdvertisement(frame)
	}
	for i := ethernetSize; i < len(good); i++ {
		frame := append([]byte{}, good...)
		frame[i] ^= 0x10
		if i >= ethernetSize+1 && i < ethernetSize+4 {
			continue // traffic class and flow label
		}
		if _, ok := ParseSolicitation(frame); ok {
			t.Errorf("a solicitation with a wrong byte %d was parsed", i)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(AppendSolicitation(nil, router, source, target))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if s, ok := ParseSolicitation(frame); ok {
			if got, at, ok := ParseAdvertisement(AppendAdvertisement(nil, s, node)); !ok || got != s.Target || at != node {
				t.Errorf("%x: answered %s at %x", frame, got, at)
			}
		}
	})
}

func TestProgram(t *testing.T) {
	for _, p := range []string{"::/0", "2001:db8::/32", "2001:db8:2::/47", "2001:db8:2:0:0:5::/96", "2001:db8:2:0:0:5:7:9/128", "2001:db8:2:0:0:4::/95"} {
		want := netip.MustParsePrefix(p)
		raw, err := program(typeSolicitation, want)
		if err != nil {
			t.Fatal(err)
		}
		instructions, _ := bpf.Disassemble(raw)
		vm, err := bpf.NewVM(instructions)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range []string{"2001:db8:2:0:0:5:7:9", "2001:db8:2:0:0:5:7:8", "2001:db8:2:0:0:6:7:9", "2001:db8:3::1", "2001:db8:4::1", "2001:db9::1", "::1"} {
			a := netip.MustParseAddr(a)
			n, err := vm.Run(AppendSolicitation(nil, router, source, a))
			if err != nil || (n > 0) != want.Contains(a) {
				t.Errorf("the filter of %s passes %d bytes of a solicitation for %s, %v", p, n, a, err)
			}
		}
		if n, _ := vm.Run(AppendAdvertisement(nil, Solicitation{From: router, Source: source, Target: target}, node)); n > 0 {
			t.Errorf("the filter of %s passes an advertisement", p)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// expectAnswer sends solicitations until there is an answer, which must be one, for target.
func expectAnswer(t *testing.T, socket *Socket, frames [][]byte, from MAC) {
	t.Helper()
	var got [][]byte
	// The kernel drops frames until the link has settled.
	for deadline := time.Now().Add(time.Minute); len(got) == 0; {
		if sent, err := socket.Send(frames); err != nil || sent != len(frames) {
			t.Fatalf("sent %d, %v", sent, err)
		}
		must(t, socket.SetReadDeadline(time.Now().Add(time.Second)))
		var err error
		if got, err = socket.Receive(nil); err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if answered, at, ok := ParseAdvertisement(got[0]); len(got) != 1 || !ok || answered != target || at != from {
		t.Errorf("%d answers, the first for %s at %x", len(got), answered, at)
	}
}

// A responder answers for addresses of its prefix that nobody has, but not for others and for those of the kernel, also after its link was
// down.
func TestResponder(t *testing.T) {
	must2 := func(n *netns.Namespace, err error) *netns.Namespace {
		must(t, err)
		t.Cleanup(func() { _ = n.Delete() })
		return n
	}
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	name := "k1mt-" + strconv.Itoa(os.Getpid())
	a, b := must2(netns.Create(name+"-a")), must2(netns.Create(name+"-b"))
	must(t, netns.Veth(netns.End{In: a, Name: "eth0"}, netns.End{In: b, Name: "eth0"}, 0))
	own := netip.MustParseAddr("2001:db8:2:0:0:5::1")
	var responder *Responder
	must(t, b.Do(func() (err error) {
		responder, err = NewResponder("eth0", prefix, own)
		return err
	}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- b.Do(func() error {
			responder.Run(ctx, slog.New(slog.DiscardHandler))
			return nil
		})
	}()
	var socket *Socket
	must(t, a.Do(func() (err error) {
		socket, err = OpenSocket("eth0", netip.MustParsePrefix("2001:db8::/32"), true)
		return err
	}))
	defer socket.Close()
	outside := netip.MustParseAddr("2001:db8:2:0:0:6::1")
	var frames [][]byte
	for _, asked := range []netip.Addr{outside, own, target} {
		frames = append(frames, AppendSolicitation(nil, socket.Own, source, asked))
	}
	mac, err := b.MAC("eth0")
	must(t, err)
	expectAnswer(t, socket, frames, MAC(mac))
	links, err := b.Links()
	must(t, err)
	link, err := links.LinkByName("eth0")
	must(t, err)
	must(t, links.LinkSetDown(link))
	must(t, links.LinkSetUp(link))
	expectAnswer(t, socket, frames, MAC(mac))
	cancel()
	must(t, <-ended)
	if counts := responder.Counts(); counts.Answered == 0 || counts.Ignored != counts.Answered {
		t.Errorf("counts %+v", counts)
	}
}
