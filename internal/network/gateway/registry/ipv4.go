package registry

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
)

// assign gives a registration an address of the range, if there is a range. The first choice depends on
// the name of the node, so that it usually keeps its address.
func (r *Registry) assign(registration *Registration) error {
	if !r.config.IPv4.IsValid() {
		registration.IPv4 = netip.Addr{}
		return nil
	}
	if registration.IPv4.IsValid() {
		return nil
	}
	size := uint64(1) << (32 - r.config.IPv4.Bits())
	usable := size - 2 // without the first and the last address
	h := fnv.New64a()
	h.Write([]byte(registration.Name))
	first := h.Sum64() % usable
	base := r.config.IPv4.Addr().As4()
	for i := range min(usable, uint64(len(r.addresses))+1) {
		var address [4]byte
		binary.BigEndian.PutUint32(address[:], binary.BigEndian.Uint32(base[:])+uint32((first+i)%usable)+1)
		if candidate := netip.AddrFrom4(address); r.addresses[candidate] == "" {
			registration.IPv4 = candidate
			return nil
		}
	}
	return fmt.Errorf("node %s: %w: no address is free in %v", registration.Name, ErrFull, r.config.IPv4)
}

// usable is true if a saved address may be assigned again.
func (r *Registry) usable(address netip.Addr) bool {
	return address.IsValid() && r.config.IPv4.IsValid() && r.config.IPv4.Contains(address) && r.addresses[address] == ""
}
