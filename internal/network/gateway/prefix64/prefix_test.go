package prefix64

import (
	"net/netip"
	"testing"
)

// The examples are those of RFC 6052, section 2.4.
func TestExamplesOfTheRFC(t *testing.T) {
	for prefix, want := range map[string]string{
		"2001:db8::/32":             "2001:db8:c000:221::",
		"2001:db8:100::/40":         "2001:db8:1c0:2:21::",
		"2001:db8:122::/48":         "2001:db8:122:c000:2:2100::",
		"2001:db8:122:300::/56":     "2001:db8:122:3c0:0:221::",
		"2001:db8:122:344::/64":     "2001:db8:122:344:c0:2:2100::",
		"2001:db8:122:344::/96":     "2001:db8:122:344::192.0.2.33",
		WellKnown.String():          "64:ff9b::192.0.2.33",
		"2001:db8:122:344:0:1::/96": "2001:db8:122:344:0:1:192.0.2.33",
	} {
		p := MustParse(prefix)
		v4 := netip.MustParseAddr("192.0.2.33").As4()
		embedded := p.Embed(v4)
		if got := netip.AddrFrom16(embedded); got != netip.MustParseAddr(want) {
			t.Errorf("%s: embedded as %v, want %s", prefix, got, want)
		}
		if back, ok := p.Extract(&embedded); !ok || back != v4 {
			t.Errorf("%s: extracted %v, %v", prefix, back, ok)
		}
	}
}

func TestOtherAddressesAreNotExtracted(t *testing.T) {
	outside := netip.MustParseAddr("2001:db8:123::1").As16()
	if v4, ok := MustParse("2001:db8:122::/48").Extract(&outside); ok {
		t.Errorf("extracted %v from an address outside of the prefix", v4)
	}
	reserved := netip.MustParseAddr("2001:db8:122:c000:102:2100::").As16()
	if v4, ok := MustParse("2001:db8:122::/48").Extract(&reserved); ok {
		t.Errorf("extracted %v although bits 64 to 71 are set", v4)
	}
}

func TestBadPrefixesAreRejected(t *testing.T) {
	for _, text := range []string{"", "64:ff9b::", "64:ff9b::/95", "10.0.0.0/8", "64:ff9b::1/96", "2001:db8:0:0:ff00::/96", "::ffff:0:0/96"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}
