package leases

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// answerTimeout bounds the time of a renewal that the store does not answer. A kubelet waits 10 s.
	answerTimeout = 5 * time.Second
	// silences is how often the store does not answer. On a busy machine, an answer of an API server may take long too, but not each
	// time.
	silences = 5
)

// testSilentStore loses the answer to a write that the store has executed. The renewal is forwarded, and gets a conflict
// with its own write.
func testSilentStore(t *testing.T, c *cluster) {
	p := testcluster.NewProxy(t, strings.TrimPrefix(c.storeURL, "https://"))
	g := c.startGateway(t, "on", "https://"+p.Address, "/registry")
	k := c.newKubelet(t, "silent")
	lease := turnOn(t, g, k, k.create(t, g.address))
	least := time.Duration(math.MaxInt64)
	for range silences {
		var took time.Duration
		lease, took = silence(t, p, c, g, k, k.renew(t, g.address, lease))
		if least = min(least, took); least <= answerTimeout {
			return
		}
	}
	t.Errorf("the answers took %v and more, want at most %v", least, answerTimeout)
}

// silence keeps the answer to a renewal back. It returns the Lease after it was served again, and the time of that renewal.
func silence(t *testing.T, p *testcluster.Proxy, c *cluster, g *gateway, k *kubelet, lease *coordinationv1.Lease) (*coordinationv1.Lease, time.Duration) {
	t.Helper()
	p.Lost.Store(true)
	before, started, renewed := g.forwarded("store_no_answer"), time.Now(), later(lease)
	result := k.put(t, g.address, k.name, renewed)
	if result.status != http.StatusConflict {
		t.Errorf("status %d, want 409: %q", result.status, result.body)
	}
	took := time.Since(started)
	if g.forwarded("store_no_answer") != before+1 {
		t.Error("the renewal was not forwarded because the store did not answer")
	}
	last := get(t, c, k.name)
	if !last.Spec.RenewTime.Equal(renewed.Spec.RenewTime) {
		t.Errorf("renewTime is %v, want %v: the store has executed the write", last.Spec.RenewTime, renewed.Spec.RenewTime)
	}
	// As a kubelet does after a conflict.
	lease = k.renew(t, g.address, last)
	p.Lost.Store(false)
	served := g.served()
	testcluster.Eventually(t, startTimeout, "renewals are served again", func() bool {
		lease = k.renew(t, g.address, lease)
		return g.served() >= served+2
	})
	return lease, took
}
