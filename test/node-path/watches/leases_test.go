package watches

import (
	"context"
	"fmt"
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
	// readAgain is more than the 30 s after which a gateway reads Leases again that it could not serve.
	readAgain = 45 * time.Second
	// servesLeases is 1 while the gateway serves Leases from the store.
	servesLeases = `kube_gateway_node_path_cache_serving{resource="leases"}`
	// unreadable is 1 while the gateway cannot serve Leases from the store.
	unreadable = `kube_gateway_node_path_cache_unreadable{resource="leases"}`
)

// testNewcomer begins a watch as a user about whom the gateway knows nothing. An API server begins it, and the gateway goes on
// when it knows that this is allowed.
func testNewcomer(t *testing.T, c *cluster, g *gateway) {
	client, name := c.client(t, newcomer), `kube_gateway_node_path_reads_total{reason="",resource="leases",result="continued"`
	before := g.metric(name)
	path := namespacedLeasesPath + "&watch=true&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=" + c.version(t)
	ours, theirs := stream(t, client, g.address, path), stream(t, client, c.Servers[0], path)
	testcluster.Eventually(t, startTimeout, "the gateway goes on with the watch", func() bool {
		c.mark(t)
		return g.metric(name) == before+1
	})
	c.mark(t)
	a, b := collectBoth(ours, theirs)
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
	seen := stream(t, client, g.address, leasesPath+"&watch=true&timeoutSeconds=300&resourceVersion="+c.version(t))
	counted := make(chan int, 1)
	go func() { counted <- countMany(t, seen) }()
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
	must(t, leases.Delete(ctx, "many-0", metav1.DeleteOptions{}))
	select {
	case count := <-counted:
		perEvent := float64((g.cpu(t) - cpu).Microseconds()) / float64(max(count, 1))
		t.Logf("%d events in %v (%.0f/s), the last one after %v: %.1f µs of CPU of the gateway each", count, took, float64(count)/took.Seconds(), time.Since(started), perEvent)
		if count != manyEvents {
			t.Errorf("%d events, want %d", count, manyEvents)
		}
	case <-time.After(settleTimeout):
		t.Error("the watch does not get the last event")
	}
	for i := range manyLeases - 1 {
		must(t, leases.Delete(ctx, fmt.Sprintf("many-%d", i+1), metav1.DeleteOptions{}))
	}
}

// countMany counts the changes of Leases that testManyEvents makes, until the first one is deleted or the watch ends.
func countMany(t *testing.T, reader interface{ Read([]byte) (int, error) }) (count int) {
	version := int64(0)
	for {
		next, err := read(reader)
		if err != nil {
			t.Errorf("the watch ended after %d events: %v", count, err)
			return count
		}
		if next.version <= version {
			t.Errorf("version %d after %d", next.version, version)
		}
		version = next.version
		lease, isLease := next.object.(*coordinationv1.Lease)
		switch {
		case !isLease || !strings.HasPrefix(lease.Name, "many-"):
		case next.kind == watch.Deleted:
			return count
		case next.kind == watch.Modified:
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
	testcluster.Eventually(t, settleTimeout, "all Leases are in the cache", func() bool { return g.metric(objects) == existing+count })
	time.Sleep(idleTime)
	each := (g.memory(t) - before) / count
	t.Logf("%d Leases of %d bytes: %d bytes of memory each", count, len(value), each)
	if each > maxLease {
		t.Errorf("%d bytes for a Lease, want at most %d", each, maxLease)
	}
	// All of them are deleted at one revision.
	_, err = c.store.Delete(ctx, leaseKeys+namespace+"/memory-", clientv3.WithPrefix())
	must(t, err)
	testcluster.Eventually(t, settleTimeout, "no Leases are in the cache", func() bool { return g.metric(objects) < existing+count/2 })
	if g.metric(unreadable) != 0 || g.metric(servesLeases) != 1 {
		t.Error("Leases are not served any more")
	}
}

// testUnreadable looks at a value that the gateway does not know, and at a certificate that may not read all Leases: their
// requests are forwarded, and the gateway says why.
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
	testcluster.Eventually(t, readAgain, "Leases are served again", func() bool {
		return g.metric(unreadable) == 0 && g.metric(servesLeases) == 1
	})
	limited := c.startGatewayAs(t, limitedStoreName, "references: true", 9)
	if limited.metric(unreadable) != 1 {
		t.Error("a gateway that may not read all Leases does not say so")
	}
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
