package checksum

import "testing"

func TestSum(t *testing.T) {
	for name, c := range map[string]struct {
		data    []byte
		initial uint32
		want    uint32
	}{
		"the example of RFC 1071":     {[]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}, 0, 0xddf2},
		"nothing":                     {nil, 0, 0},
		"an odd octet":                {[]byte{0x12, 0x34, 0x56}, 0, 0x1234 + 0x5600},
		"a carry of the initial sum":  {[]byte{0xff, 0xff}, 0x1ffff, 1},
		"an IPv4 header with its sum": {[]byte{0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7}, 0, 0xffff},
	} {
		if got := Sum(c.data, c.initial); got != c.want {
			t.Errorf("%s: %#x, want %#x", name, got, c.want)
		}
	}
}
