package leases

import (
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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

// wire is a TCP proxy in front of the store that can keep the store's answers back.
type wire struct {
	url   string
	muted atomic.Bool
}

// newWire starts a proxy, which ends with the test.
func newWire(t *testing.T, storeURL string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w := &wire{url: "https://" + listener.Addr().String()}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go w.serve(client, strings.TrimPrefix(storeURL, "https://"))
		}
	}()
	return w
}

func (w *wire) serve(client net.Conn, address string) {
	defer client.Close()
	store, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer store.Close()
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(store, client)
		_ = store.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(client, muter{store, w})
		_ = client.Close()
	})
	both.Wait()
}

// muter reads from the store, and reads nothing of what arrives while the wire is muted.
type muter struct {
	store net.Conn
	wire  *wire
}

func (m muter) Read(buffer []byte) (int, error) {
	for {
		n, err := m.store.Read(buffer)
		if err != nil || !m.wire.muted.Load() {
			return n, err
		}
	}
}

// testSilentStore loses the answer to a write that the store has executed. The renewal is forwarded, and gets a conflict
// with its own write.
func testSilentStore(t *testing.T, c *cluster) {
	w := newWire(t, c.storeURL)
	g := c.startGateway(t, "on", w.url, "/registry")
	k := c.newKubelet(t, "silent")
	lease := turnOn(t, g, k, k.create(t, g.address))
	least := time.Duration(math.MaxInt64)
	for range silences {
		var took time.Duration
		lease, took = w.silence(t, c, g, k, k.renew(t, g.address, lease))
		if least = min(least, took); least <= answerTimeout {
			return
		}
	}
	t.Errorf("the answers took %v and more, want at most %v", least, answerTimeout)
}

// silence keeps the answer to a renewal back. It returns the Lease after it was served again, and the time of that renewal.
func (w *wire) silence(t *testing.T, c *cluster, g *gateway, k *kubelet, lease *coordinationv1.Lease) (*coordinationv1.Lease, time.Duration) {
	t.Helper()
	w.muted.Store(true)
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
	w.muted.Store(false)
	served := g.served()
	testcluster.Eventually(t, startTimeout, "renewals are served again", func() bool {
		lease = k.renew(t, g.address, lease)
		return g.served() >= served+2
	})
	return lease, took
}
