package claim

import (
	"net/netip"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLeasesAreRead(t *testing.T) {
	prefix := netip.MustParsePrefix("2001:db8:5:0:0:1::/96")
	want := Claim{Node: "a", Since: time.Unix(1, 0).UTC(), Released: time.Unix(2, 0).UTC()}
	lease := &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: leasePrefix + fileName(prefix)}}
	toLease(&want, lease)
	got, c, err := ReadLease(lease)
	if err != nil || got != prefix || c.Node != want.Node || !c.Since.Equal(want.Since) || !c.Released.Equal(want.Released) {
		t.Errorf("read %v, %+v, %v", got, c, err)
	}
	for _, name := range []string{"", "prefix-", "node-1", "prefix-20010db8-96", leasePrefix + fileName(prefix) + "0", "prefix-zz-1", "prefix-" + "20010db8000500000000000100000001-96"} {
		lease.Name = name
		if _, _, err := ReadLease(lease); err == nil {
			t.Errorf("a Lease with the name %q was read", name)
		}
	}
}
