package nat64

import (
	"math/rand/v2"
	"net/netip"
	"time"
)

// Headroom is how many bytes longer than a packet its translation may be.
const Headroom = header6 + 8 - header4

// MinOutput is the smallest output buffer: it must hold an ICMP error.
const MinOutput = 1280

// Action is what to do with the output of a translation.
type Action uint8

const (
	// Drop: there is no output.
	Drop Action = iota
	// Forward the output to the other side.
	Forward
	// Reply with the output, an ICMP error, to the side that the packet came from.
	Reply
)

// Result is the result of a translation. Reason is set unless Action is Forward.
type Result struct {
	Action Action
	Length int   // of the output
	Node   *Node // that the packet is for or from; nil if unknown
	Reason Reason
}

// Translator is the NAT64 of a gateway. It is not safe for concurrent use. The time that its methods
// take is since any fixed moment and never goes back.
type Translator struct {
	config    Config
	pool      *pool
	inPool    map[[4]byte]int // indexes of the pool
	sessions6 map[key6]*session
	sessions4 map[key4]*session
	bindings  map[bindingKey]*binding
	wheel     wheel
	fragments fragmentTable
	random    *rand.Rand
	errors4   bucket // ICMP errors to IPv4
	dropped   [reasons]uint64
}

// errorsPerSecond limits the ICMP errors that the translator itself sends: to each node, and to IPv4.
const errorsPerSecond = 200

// ownAddress4 is the dummy address of RFC 7600: the source of errors that the translator sends to
// nodes, embedded in the prefix.
var ownAddress4 = [4]byte{192, 0, 0, 8}

// New returns a translator without nodes.
func New(config Config) (*Translator, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	random := rand.New(rand.NewChaCha8(config.Seed))
	t := &Translator{
		config: config, random: random,
		pool:      newPool(config.Pool, config.FirstPort, config.LastPort, random),
		inPool:    map[[4]byte]int{},
		sessions6: map[key6]*session{}, sessions4: map[key4]*session{}, bindings: map[bindingKey]*binding{},
		fragments: fragmentTable{entries: map[fragmentKey]*fragmented{}},
	}
	for i, address := range t.pool.addresses {
		t.inPool[address] = i
	}
	return t, nil
}

// Sessions returns the number of sessions of all nodes.
func (t *Translator) Sessions() int { return len(t.sessions6) }

// Dropped returns how many packets have been dropped for a reason.
func (t *Translator) Dropped(reason Reason) uint64 { return t.dropped[reason] }

// FromIPv6 translates a packet of a node, which the caller has authenticated together with the source
// address. The output must have room for MinOutput bytes and for the packet.
func (t *Translator) FromIPv6(n *Node, packet, out []byte, now time.Duration) Result {
	var d datagram
	if reason := parse6(packet, &d, false); reason != NotDropped {
		return t.drop(n, reason)
	}
	remote, inPrefix := t.config.Prefix.Extract(&d.destination6)
	switch {
	case !isUnicast6(&d.source6):
		return t.drop(n, BadSource)
	case !inPrefix:
		return t.drop(n, NotInPrefix)
	case d.hops <= 1:
		return t.refuse6(n, packet, &d, out, HopLimit, now)
	}
	d.destination4 = remote
	length, reason := t.outbound(n, &d, out, now)
	if reason != NotDropped {
		return t.refuse6(n, packet, &d, out, reason, now)
	}
	n.counters.PacketsOut++
	n.counters.BytesOut += uint64(len(packet))
	return Result{Action: Forward, Length: length, Node: n}
}

// FromIPv4 translates a packet for the pool. The output must have room for MinOutput bytes and for the
// packet with Headroom.
func (t *Translator) FromIPv4(packet, out []byte, now time.Duration) Result {
	var d datagram
	if reason := parse4(packet, &d); reason != NotDropped {
		return t.drop(nil, reason)
	}
	if !isUnicast4(d.source4) {
		return t.drop(nil, BadSource)
	}
	if d.hops <= 1 {
		return t.refuse4(packet, &d, out, HopLimit, now)
	}
	if size := len(d.payload) + t.overhead6(&d); size > t.config.MTU6 {
		return t.refuse4(packet, &d, out, TooBig, now)
	}
	n, length, reason := t.inbound(&d, out, now)
	if reason != NotDropped {
		return t.drop(n, reason)
	}
	n.counters.PacketsIn++
	n.counters.BytesIn += uint64(len(packet))
	return Result{Action: Forward, Length: length, Node: n}
}

func (t *Translator) drop(n *Node, reason Reason) Result {
	t.dropped[reason]++
	return Result{Node: n, Reason: reason}
}

func (t *Translator) overhead6(d *datagram) int {
	if d.fragment.present {
		return header6 + 8
	}
	return header6
}

// nextID returns an identification for an IPv4 packet.
func (t *Translator) nextID() uint16 { return uint16(t.random.Uint32()) }

// permitted checks the destination of a new session.
func (t *Translator) permitted(remote [4]byte) Reason {
	if _, own := t.inPool[remote]; own {
		return Hairpin
	}
	address := netip.AddrFrom4(remote)
	for _, prefix := range t.config.Denied {
		if prefix.Contains(address) {
			return DeniedDestination
		}
	}
	return NotDropped
}

// isUnicast4 is false for addresses that may not be a source.
func isUnicast4(address [4]byte) bool {
	return address[0] != 0 && address[0] != 127 && address[0] < 224
}
