// Package prefix64 maps IPv4 addresses into IPv6 prefixes and back (RFC 6052). NAT64 and DNS64 share
// it.
package prefix64

import (
	"fmt"
	"net/netip"
)

// WellKnown is the well-known prefix of RFC 6052. It may not represent IPv4 addresses that are not
// global.
var WellKnown = Prefix{prefix: netip.MustParsePrefix("64:ff9b::/96")}

// Prefix is an IPv6 prefix that represents the whole IPv4 address space. The zero value is invalid.
type Prefix struct {
	prefix netip.Prefix
}

// Parse reads a prefix such as 64:ff9b::/96. RFC 6052 permits the lengths 32, 40, 48, 56, 64 and 96.
// Bits 64 to 71 must be zero.
func Parse(text string) (Prefix, error) {
	parsed, err := netip.ParsePrefix(text)
	if err != nil {
		return Prefix{}, fmt.Errorf("NAT64 prefix %q: %w", text, err)
	}
	if !parsed.Addr().Is6() || parsed.Addr().Is4In6() {
		return Prefix{}, fmt.Errorf("NAT64 prefix %q: not an IPv6 prefix", text)
	}
	switch parsed.Bits() {
	case 32, 40, 48, 56, 64, 96:
	default:
		return Prefix{}, fmt.Errorf("NAT64 prefix %q: length %d; use 32, 40, 48, 56, 64 or 96", text, parsed.Bits())
	}
	if parsed.Masked() != parsed {
		return Prefix{}, fmt.Errorf("NAT64 prefix %q: bits are set after the prefix; use %v", text, parsed.Masked())
	}
	if parsed.Addr().As16()[8] != 0 {
		return Prefix{}, fmt.Errorf("NAT64 prefix %q: bits 64 to 71 must be zero", text)
	}
	return Prefix{prefix: parsed}, nil
}

// MustParse is Parse for constants: it panics on an error.
func MustParse(text string) Prefix {
	prefix, err := Parse(text)
	if err != nil {
		panic(err)
	}
	return prefix
}

// String returns the prefix in the usual notation.
func (p Prefix) String() string { return p.prefix.String() }

// Embed returns the IPv6 address that represents an IPv4 address.
func (p Prefix) Embed(v4 [4]byte) [16]byte {
	address := p.prefix.Addr().As16()
	position := p.prefix.Bits() / 8
	for _, octet := range v4 {
		if position == 8 { // the octet of bits 64 to 71 stays zero
			position++
		}
		address[position] = octet
		position++
	}
	return address
}

// Extract returns the IPv4 address that an IPv6 address represents. It is false for addresses outside
// of the prefix, and for those whose bits 64 to 71 are not zero.
func (p Prefix) Extract(address *[16]byte) (v4 [4]byte, ok bool) {
	length := p.prefix.Bits() / 8
	own := p.prefix.Addr().As16()
	if string(own[:length]) != string(address[:length]) {
		return v4, false
	}
	if length < 12 && address[8] != 0 {
		return v4, false
	}
	position := length
	for i := range v4 {
		if position == 8 {
			position++
		}
		v4[i] = address[position]
		position++
	}
	return v4, true
}
