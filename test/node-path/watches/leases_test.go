package watches

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// manyLeases are changed manyEvents times by manyWriters at once.
	manyLeases, manyEvents, manyWriters = 100, 40_000, 32
	// maxLease bounds the memory of a Lease with its last change, as resident memory, of which the allocator keeps some free.
	maxLease = 1536
	// servesLeases is 1 while the gateway serves Leases from the store.
	servesLeases = `kube_gateway_node_path_cache_serving{resource="leases"}`
	// unreadable is 1 while the gateway cannot serve Leases from the store.
	unreadable = `kube_gateway_node_path_cache_unreadable{resource="leases"}`
)

// testNewcomer begins a watch as a user about whom the gateway knows nothing. An API server begins it, and the gateway goes on
// when it knows that this is allowed.
func testNewcomer(t *testing.T, c *cluster, g *gateway) {
	client, before := c.client(t, newcomer), g.continued("leases")
	path := namespacedLeasesPath + "&watch=true&allowWatchBookmarks=true&timeoutSeconds=600&resourceVersion=" + c.version(t)
	ours, theirs := stream(t, client, g.address, path), stream(t, client, c.Servers[0], path)
	testcluster.Eventually(t, startTimeout, "the gateway goes on with the watch", func() bool {
		c.mark(t)
		return g.continued("leases") == before+1
	})
	last := c.mark(t).leases
	a, b := collectBoth(ours, theirs, patience, func(a, b []event) bool { return haveSameLength(a, b) && hasVersion(a, last) && hasVersion(b, last) })
	if differs := difference(withoutBookmarks(a), withoutBookmarks(b)); differs != "" || len(a) < 2 {
		t.Errorf("%d events: %s", len(a), differs)
	}
}

// testManyEvents writes Leases into the store as fast as it takes them. One watch must get each change once and in order,
// and not end.
func testManyEvents(t *testing.T, c *cluster, g *gateway) {
	ctx, leases := context.Background(), c.admin.CoordinationV1().Leases(namespace)
	var keys, values [manyLeases]string
	for i := range manyLeases {
		name, now := fmt.Sprintf("many-%d", i), metav1.NowMicro()
		_, err := leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &now},
		}, metav1.CreateOptions{})
		must(t, err)
		keys[i] = leaseKeys + namespace + "/" + name
		stored, err := c.store.Get(ctx, keys[i])
		must(t, err)
		values[i] = string(stored.Kvs[0].Value)
	}
	client := c.client(t, controllerManager)
	c.isServed(t, g, client, query{"leases", leasesPath, "", controllerManager})
	g.uninterrupted(t, func() string { return c.watchMany(t, g, client, keys, values) })
	for i := range manyLeases {
		must(t, leases.Delete(ctx, fmt.Sprintf("many-%d", i), metav1.DeleteOptions{}))
	}
}

// watchMany writes values to keys at random while a client watches, and returns what is wrong with its events.
func (c *cluster) watchMany(t *testing.T, g *gateway, client *http.Client, keys, values [manyLeases]string) string {
	t.Helper()
	ctx, finished := context.Background(), fmt.Sprintf("finished-%d", time.Now().UnixNano())
	seen := stream(t, client, g.address, leasesPath+"&watch=true&timeoutSeconds=600&resourceVersion="+c.version(t))
	type result struct {
		count int
		wrong string
	}
	counted := make(chan result, 1)
	go func() {
		count, wrong := countMany(seen, finished)
		counted <- result{count, wrong}
	}()
	cpu, started := g.cpu(t), time.Now()
	var writers sync.WaitGroup
	for writer := range manyWriters {
		writers.Go(func() {
			for i := range manyEvents / manyWriters {
				at := (i*manyWriters + writer) % manyLeases
				if _, err := c.store.Put(ctx, keys[at], values[at]); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	took := time.Since(started)
	_, err := c.admin.CoordinationV1().Leases(namespace).Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: finished}}, metav1.CreateOptions{})
	must(t, err)
	select {
	case got := <-counted:
		perEvent := float64((g.cpu(t) - cpu).Microseconds()) / float64(max(got.count, 1))
		t.Logf("%d events in %v (%.0f/s), the last one after %v: %.1f µs of CPU of the gateway each", got.count, took, float64(got.count)/took.Seconds(), time.Since(started), perEvent)
		if got.wrong == "" && got.count != manyEvents {
			got.wrong = fmt.Sprintf("%d events, want %d", got.count, manyEvents)
		}
		return got.wrong
	case <-time.After(settleTimeout):
		return "the watch does not get the last event"
	}
}

// countMany counts the changes of Leases that watchMany makes, until the Lease with a name is created. It returns why the events
// are wrong, or an empty text.
func countMany(reader io.Reader, finished string) (count int, wrong string) {
	version := int64(0)
	for {
		next, err := read(reader)
		if err != nil {
			return count, fmt.Sprintf("the watch ended after %d events: %v", count, err)
		}
		if next.version <= version {
			return count, fmt.Sprintf("version %d after %d", next.version, version)
		}
		version = next.version
		lease, isLease := next.object.(*coordinationv1.Lease)
		switch {
		case !isLease:
		case lease.Name == finished:
			return count, ""
		case strings.HasPrefix(lease.Name, "many-") && next.kind == watch.Modified:
			count++
		}
	}
}

// testManyLeases measures the memory of Leases, with a change of each of them in the history.
func testManyLeases(t *testing.T, c *cluster, g *gateway) {
	const template = "memory-000000"
	count := number(t, "NODE_PATH_LEASES", 10_000)
	ctx, now := context.Background(), metav1.NowMicro()
	// The garbage collector deletes a Lease without its owner.
	owner, err := c.admin.CoreV1().Nodes().Get(ctx, nodes[0], metav1.GetOptions{})
	must(t, err)
	_, err = c.admin.CoordinationV1().Leases(namespace).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: template, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner.Name, UID: owner.UID}}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new(template), LeaseDurationSeconds: new(int32(40)), RenewTime: &now},
	}, metav1.CreateOptions{})
	must(t, err)
	stored, err := c.store.Get(ctx, leaseKeys+namespace+"/"+template)
	must(t, err)
	value := string(stored.Kvs[0].Value)
	objects := `kube_gateway_node_path_objects{resource="leases"}`
	time.Sleep(idleTime)
	before, existing := g.memory(t), g.metric(objects)
	hasAll := func() bool {
		stored := c.countLeases(t)
		return stored >= count && g.metric(objects) == stored
	}
	var writers sync.WaitGroup
	for writer := range manyWriters {
		writers.Go(func() {
			for i := writer; i < count; i += manyWriters {
				name := fmt.Sprintf("memory-%06d", i+1)
				if _, err := c.store.Put(ctx, leaseKeys+namespace+"/"+name, strings.ReplaceAll(value, template, name)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	testcluster.Eventually(t, settleTimeout, "all Leases are in the cache", hasAll)
	each := g.settledMemory(t, before, count, maxLease)
	t.Logf("%d Leases of %d bytes: %d bytes of memory each", count, len(value), each)
	if each > maxLease {
		t.Errorf("%d bytes for a Lease, want at most %d", each, maxLease)
	}
	testLargeLists(t, c, g)
	// All of them are deleted at one revision.
	_, err = c.store.Delete(ctx, leaseKeys+namespace+"/memory-", clientv3.WithPrefix())
	must(t, err)
	testcluster.Eventually(t, settleTimeout, "no Leases are in the cache", func() bool { return g.metric(objects) < existing+count/2 })
	testcluster.Eventually(t, settleTimeout, "Leases are served", func() bool { return g.metric(unreadable) == 0 && g.metric(servesLeases) == 1 })
}

// countLeases returns how many Leases are in the store.
func (c *cluster) countLeases(t *testing.T) int {
	t.Helper()
	stored, err := c.store.Get(context.Background(), leaseKeys, clientv3.WithPrefix(), clientv3.WithCountOnly())
	must(t, err)
	return int(stored.Count)
}

// testUnreadable looks at a value that the gateway does not know: requests for Leases are forwarded, and the gateway says why.
func testUnreadable(t *testing.T, c *cluster, g *gateway) {
	client := c.client(t, controllerManager)
	c.isServed(t, g, client, query{"leases", leasesPath, "", controllerManager})
	open := stream(t, client, g.address, leasesPath+"&watch=true&resourceVersion="+c.version(t))
	key := leaseKeys + namespace + "/json"
	_, err := c.store.Put(context.Background(), key, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"json","namespace":"default","uid":"u"}}`)
	must(t, err)
	testcluster.Eventually(t, startTimeout, "a value in JSON ends the watch", func() bool { return g.metric(unreadable) == 1 })
	readAll(open)
	isForwarded(t, client, g, "json")
	must(t, isLogged(g, "is not a Lease of coordination.k8s.io/v1"))
	_, err = c.store.Delete(context.Background(), key)
	must(t, err)
	// The gateway reads them again after 30 s.
	testcluster.Eventually(t, settleTimeout, "Leases are served again", func() bool {
		return g.metric(unreadable) == 0 && g.metric(servesLeases) == 1
	})
}

// testLimited looks at a certificate that may not read all Leases: requests for Leases are forwarded, and the gateway says why.
func testLimited(t *testing.T, c *cluster) {
	client := c.client(t, controllerManager)
	limited := c.startGatewayAs(t, limitedStoreName, "references: true", 9)
	testcluster.Eventually(t, startTimeout, "a gateway that may not read all Leases says so", func() bool { return limited.metric(unreadable) == 1 })
	isForwarded(t, client, limited, "kube-node-lease")
	must(t, isLogged(limited, "needs permission to read all keys below "+leaseKeys))
}

// isForwarded lists Leases, which an API server must answer.
func isForwarded(t *testing.T, client *http.Client, g *gateway, name string) {
	t.Helper()
	served := g.served("leases", "list")
	code, list := body(t, client, g.address, leasesPath+"&resourceVersion=0")
	if code != http.StatusOK || !strings.Contains(string(list), name) || g.served("leases", "list") != served {
		t.Errorf("the list of Leases was served, or is not that of an API server: status %d", code)
	}
}

// isLogged returns an error if a text is not in the log of a gateway.
func isLogged(g *gateway, text string) error {
	log, err := os.ReadFile(g.log)
	if err == nil && !strings.Contains(string(log), text) {
		err = fmt.Errorf("%q is not in the log", text)
	}
	return err
}
