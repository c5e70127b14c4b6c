package neighbour

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/net/bpf"
)

// Offsets in an Ethernet frame with IPv6 and neighbour discovery.
const (
	offsetEtherType = 12
	offsetProtocol  = ethernetSize + 6
	offsetType      = ethernetSize + ipv6Size
	offsetTarget    = ethernetSize + ipv6Size + 8
	wholeFrame      = 1 << 16
)

// program returns a filter for the kernel that passes messages of one type whose target is in a prefix, so that the messages about
// all other nodes of a link do not wake this process.
func program(messageType byte, prefix netip.Prefix) ([]bpf.RawInstruction, error) {
	type test struct {
		load        bpf.Instruction
		mask, value uint32
	}
	tests := []test{
		{bpf.LoadAbsolute{Off: offsetEtherType, Size: 2}, 0, etherTypeIPv6},
		{bpf.LoadAbsolute{Off: offsetProtocol, Size: 1}, 0, protocolICMP6},
		{bpf.LoadAbsolute{Off: offsetType, Size: 1}, 0, uint32(messageType)},
	}
	address := prefix.Masked().Addr().As16()
	for word := 0; word < 4 && word*32 < prefix.Bits(); word++ {
		mask := ^uint32(0)
		if rest := prefix.Bits() - word*32; rest < 32 {
			mask <<= 32 - rest
		}
		tests = append(tests, test{
			bpf.LoadAbsolute{Off: uint32(offsetTarget + 4*word), Size: 4}, mask, binary.BigEndian.Uint32(address[4*word:]) & mask,
		})
	}
	var instructions []bpf.Instruction
	for _, t := range tests {
		instructions = append(instructions, t.load)
		if t.mask != 0 && t.mask != ^uint32(0) {
			instructions = append(instructions, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: t.mask})
		}
		instructions = append(instructions, bpf.JumpIf{Cond: bpf.JumpEqual, Val: t.value, SkipTrue: 1}, bpf.RetConstant{Val: 0})
	}
	return bpf.Assemble(append(instructions, bpf.RetConstant{Val: wholeFrame}))
}
