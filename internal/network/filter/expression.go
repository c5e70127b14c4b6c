package filter

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Offsets and lengths of header fields.
const (
	etherSource, etherSourceSize = 6, 6
	etherType, etherTypeSize     = 12, 2
	ipv6Source, ipv6Target       = 8, 24
	addressSize                  = 16
	ndTarget                     = 8 // in a message of neighbour discovery

	nameSize       = 16 // of a link's name in a register
	paddedMACSize  = 8  // of an Ethernet address in a concatenation
	registerSize   = 4
	firstRegister  = unix.NFT_REG32_00
	simpleRegister = unix.NFT_REG_1
)

// statement is a part of a rule: matches and actions, in order.
type statement []expr.Any

// rule joins statements.
func rule(statements ...statement) (all []expr.Any) {
	for _, s := range statements {
		all = append(all, s...)
	}
	return all
}

// field loads a part of a packet into registers, of which it needs size bytes.
type field struct {
	size uint32
	load func(register uint32) expr.Any
}

func payload(base expr.PayloadBase, offset, length, size uint32) field {
	return field{size, func(register uint32) expr.Any {
		return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length}
	}}
}

var (
	inputLink = field{nameSize, func(register uint32) expr.Any {
		return &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register}
	}}
	outputLink = field{nameSize, func(register uint32) expr.Any {
		return &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: register}
	}}
	sourceMAC     = payload(expr.PayloadBaseLLHeader, etherSource, etherSourceSize, paddedMACSize)
	sourceAddress = payload(expr.PayloadBaseNetworkHeader, ipv6Source, addressSize, addressSize)
	targetAddress = payload(expr.PayloadBaseNetworkHeader, ipv6Target, addressSize, addressSize)
	ndAddress     = payload(expr.PayloadBaseTransportHeader, ndTarget, addressSize, addressSize)
)

// in matches packets whose fields together are, or with invert set are not, in a set.
func in(set *nftables.Set, invert bool, fields ...field) (s statement) {
	register := uint32(firstRegister)
	for _, f := range fields {
		s = append(s, f.load(register))
		register += f.size / registerSize
	}
	return append(s, &expr.Lookup{SourceRegister: firstRegister, SetName: set.Name, SetID: set.ID, Invert: invert})
}

// link compares the name of the link that a packet comes from, or goes to.
func link(key expr.MetaKey, op expr.CmpOp, name string) statement {
	return statement{
		&expr.Meta{Key: key, Register: simpleRegister},
		&expr.Cmp{Op: op, Register: simpleRegister, Data: linkName(name)},
	}
}

func from(name string) statement    { return link(expr.MetaKeyIIFNAME, expr.CmpOpEq, name) }
func notFrom(name string) statement { return link(expr.MetaKeyIIFNAME, expr.CmpOpNeq, name) }
func notTo(name string) statement   { return link(expr.MetaKeyOIFNAME, expr.CmpOpNeq, name) }

// sourceIn matches packets whose source is in a prefix, targetIn those whose target is.
func sourceIn(p netip.Prefix) statement { return addressIn(sourceAddress, p) }
func targetIn(p netip.Prefix) statement { return addressIn(targetAddress, p) }

func addressIn(f field, p netip.Prefix) statement {
	mask := make([]byte, addressSize)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	network := p.Masked().Addr().As16()
	return statement{
		f.load(simpleRegister),
		&expr.Bitwise{SourceRegister: simpleRegister, DestRegister: simpleRegister, Len: addressSize, Mask: mask, Xor: make([]byte, addressSize)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: simpleRegister, Data: network[:]},
	}
}

// isIPv6 matches frames that are IPv6, notIPv6 those that are not.
func isIPv6() statement  { return compareIPv6(expr.CmpOpEq) }
func notIPv6() statement { return compareIPv6(expr.CmpOpNeq) }

func compareIPv6(op expr.CmpOp) statement {
	return statement{
		&expr.Payload{DestRegister: simpleRegister, Base: expr.PayloadBaseLLHeader, Offset: etherType, Len: etherTypeSize},
		&expr.Cmp{Op: op, Register: simpleRegister, Data: binaryutil.BigEndian.PutUint16(unix.ETH_P_IPV6)},
	}
}

// icmp6 matches messages of ICMPv6 with a type, also behind extension headers.
func icmp6(messageType byte) statement {
	return append(compareICMP6(expr.CmpOpEq),
		&expr.Payload{DestRegister: simpleRegister, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: simpleRegister, Data: []byte{messageType}},
	)
}

// notICMP6 matches packets that are no messages of ICMPv6.
func notICMP6() statement { return compareICMP6(expr.CmpOpNeq) }

// compareICMP6 compares the protocol behind all extension headers with ICMPv6. A packet without such a protocol never matches.
func compareICMP6(op expr.CmpOp) statement {
	return statement{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: simpleRegister},
		&expr.Cmp{Op: op, Register: simpleRegister, Data: []byte{unix.IPPROTO_ICMPV6}},
	}
}

func accept() statement { return statement{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() statement   { return statement{&expr.Verdict{Kind: expr.VerdictDrop}} }

// count counts packets in a named counter.
func count(counter string) statement {
	return statement{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counter}}
}

// unreachable answers at most some packets a second with the error that the address cannot be reached. Others do not match.
func unreachable(perSecond uint64) statement {
	return statement{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: perSecond, Unit: expr.LimitTimeSecond, Burst: uint32(perSecond)},
		&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: addressUnreachable},
	}
}

// addressUnreachable is the code of the ICMPv6 error.
const addressUnreachable = 3

func linkName(name string) []byte {
	b := make([]byte, nameSize)
	copy(b, name)
	return b
}

func paddedMAC(mac [6]byte) []byte { return append(mac[:], 0, 0) }

func addressBytes(a netip.Addr) []byte {
	b := a.As16()
	return b[:]
}
