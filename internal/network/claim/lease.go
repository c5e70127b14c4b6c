package claim

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	coordination "k8s.io/api/coordination/v1"
)

// ReadLease returns the prefix and the claim that a Lease of the namespace of claims records, for programs that watch all
// claims.
func ReadLease(lease *coordination.Lease) (netip.Prefix, Claim, error) {
	prefix, err := prefixOfName(lease.Name)
	if err != nil {
		return prefix, Claim{}, fmt.Errorf("the Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	c, err := fromLease(lease)
	if err != nil {
		return prefix, Claim{}, err
	}
	return prefix, *c, nil
}

// prefixOfName is the inverse of leasePrefix and fileName.
func prefixOfName(name string) (netip.Prefix, error) {
	rest, ok := strings.CutPrefix(name, leasePrefix)
	digits, length, found := strings.Cut(rest, "-")
	address, errAddress := hex.DecodeString(digits)
	bits, errBits := strconv.ParseUint(length, 10, 8)
	if !ok || !found || errAddress != nil || errBits != nil || len(address) != 16 || bits > 128 {
		return netip.Prefix{}, fmt.Errorf("the name is not that of a claim, such as %s%s", leasePrefix, fileName(netip.MustParsePrefix("2001:db8::/96")))
	}
	prefix := netip.PrefixFrom(netip.AddrFrom16([16]byte(address)), int(bits))
	if prefix.Masked() != prefix {
		return netip.Prefix{}, fmt.Errorf("the name has bits behind the prefix %v", prefix.Masked())
	}
	return prefix, nil
}
