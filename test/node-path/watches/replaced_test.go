package watches

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// lostLease exists only in the history that the store loses.
	lostLease = "lost-with-its-history"
	// lostRevisions is more than the components write while the store starts.
	lostRevisions = 3000
)

// testReplaced replaces the store by an earlier copy of itself. Once the gateway serves Leases again, it must serve nothing of the
// lost history, also if the new one has more revisions when the gateway sees it.
func testReplaced(t *testing.T, c *cluster, g *gateway) {
	client := c.client(t, controllerManager)
	for _, round := range []struct {
		passes bool
		logged string
	}{
		{false, "the store has gone back to revision"},
		{true, "the store has no longer the change of revision"},
	} {
		c.isServed(t, g, client, query{"leases", leasesPath, "", controllerManager})
		data, copied := filepath.Join(c.Dir(), "data", "mem_etcd"), filepath.Join(c.Home, "copy")
		store := c.PIDAt(t, c.Named(t, "store").Address)
		must(t, syscall.Kill(store, syscall.SIGSTOP))
		must(t, os.CopyFS(copied, os.DirFS(data)))
		must(t, syscall.Kill(store, syscall.SIGCONT))
		known := c.addLost(t, client, g)
		if round.passes {
			must(t, g.process.Process.Signal(syscall.SIGSTOP))
		}
		must(t, syscall.Kill(store, syscall.SIGSTOP))
		must(t, os.RemoveAll(data))
		must(t, os.Rename(copied, data))
		must(t, syscall.Kill(store, syscall.SIGKILL))
		// The watch caches of the API servers have the lost history.
		for _, server := range c.Servers {
			must(t, syscall.Kill(c.PIDAt(t, "https://"+server), syscall.SIGKILL))
		}
		if round.passes {
			c.pass(t, known)
			must(t, g.process.Process.Signal(syscall.SIGCONT))
		}
		testcluster.Eventually(t, settleTimeout, "the gateway finds that "+round.logged, func() bool { return isLogged(g, round.logged) == nil })
		c.servesAgain(t, client, g)
	}
}

// addLost writes a Lease and many other revisions, waits until the gateway has the Lease, and returns the last revision.
func (c *cluster) addLost(t *testing.T, client *http.Client, g *gateway) int64 {
	t.Helper()
	ctx, now := context.Background(), metav1.NowMicro()
	for range lostRevisions {
		_, err := c.store.Put(ctx, "lost", "")
		must(t, err)
	}
	_, err := c.admin.CoordinationV1().Leases(namespace).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: lostLease}, Spec: coordinationv1.LeaseSpec{RenewTime: &now},
	}, metav1.CreateOptions{})
	must(t, err)
	testcluster.Eventually(t, settleTimeout, "the gateway has the Lease", func() bool {
		isServed, hasLost := listLost(t, client, g)
		return isServed && hasLost
	})
	result, err := c.store.Get(ctx, "lost")
	must(t, err)
	return result.Header.Revision
}

// pass writes until the store has more revisions than it had before.
func (c *cluster) pass(t *testing.T, known int64) {
	t.Helper()
	testcluster.Eventually(t, settleTimeout, "the store has more revisions", func() bool {
		for range lostRevisions {
			ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
			result, err := c.store.Put(ctx, "passing", "")
			cancel()
			if err != nil {
				return false
			}
			if result.Header.Revision > known {
				return true
			}
		}
		return false
	})
}

// servesAgain waits until the gateway serves the Leases of the store, and never one that the store has lost.
func (c *cluster) servesAgain(t *testing.T, client *http.Client, g *gateway) {
	t.Helper()
	testcluster.Eventually(t, settleTimeout, "Leases are served again", func() bool {
		isServed, hasLost := listLost(t, client, g)
		if isServed && hasLost {
			t.Error("a Lease of the lost history is served")
		}
		return isServed
	})
	// The gateway serves Leases also while the API servers start. They create one for themselves.
	c.awaitServers(t)
	objects := `kube_gateway_node_path_objects{resource="leases"}`
	testcluster.Eventually(t, settleTimeout, "all Leases are in the cache", func() bool { return g.metric(objects) == c.countLeases(t) })
}

// awaitServers waits until both API servers are ready.
func (c *cluster) awaitServers(t *testing.T) {
	t.Helper()
	client := c.client(t, "admin", "system:masters")
	for _, server := range c.Servers {
		testcluster.Eventually(t, settleTimeout, server+" is ready", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
			defer cancel()
			response, err := get(ctx, client, server, "/readyz")
			if err != nil {
				return false
			}
			_ = response.Body.Close()
			return response.StatusCode == http.StatusOK
		})
	}
}

// listLost lists Leases, and returns whether the gateway has served the list and the lost Lease is in it.
func listLost(t *testing.T, client *http.Client, g *gateway) (isServed, hasLost bool) {
	t.Helper()
	before := g.served("leases", "list")
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	response, err := get(ctx, client, g.address, leasesPath+"&resourceVersion=0")
	if err != nil {
		return false, false
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return false, false
	}
	return g.served("leases", "list") > before, bytes.Contains(content, []byte(lostLease))
}
