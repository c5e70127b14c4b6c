package gateway

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	informers    = 30
	faultTimeout = 6 * time.Minute
)

// reader is an informer on ConfigMaps with a connection of its own.
type reader struct {
	store cache.Store
	lists atomic.Int64
}

// testKilledServer kills an API server while informers watch through the gateway. They must see every
// change, and after the server's return the load must become even without further lists.
func testKilledServer(t *testing.T, c *cluster) {
	readers := make([]*reader, informers)
	for i := range readers {
		readers[i] = c.newReader(t, i)
	}
	client := c.client(t, c.gateway)
	c.writeUntilSeen(t, client, readers, "before")
	lists := sumLists(readers)
	victim := c.Servers[0]
	before := c.connections(t)
	must(t, syscall.Kill(c.PIDAt(t, "https://"+victim), syscall.SIGKILL))
	c.writeUntilSeen(t, client, readers, "after the kill")
	testcluster.Eventually(t, faultTimeout, "the killed API server is ready again", func() bool {
		return strings.Contains(c.page("/metrics"), fmt.Sprintf("kube_gateway_server_ready{server=%q} 1", victim))
	})
	lost := sumLists(readers) - lists
	t.Logf("connections %v before; %d of %d informers listed again because of the kill", before, lost, informers)
	if lost > int64(before[victim]) {
		t.Errorf("%d informers listed again, but only %d were connected to the killed API server", lost, before[victim])
	}
	lists = sumLists(readers)
	// Watches move after an event that is younger than the returned server's caches.
	deadline, written := time.Now().Add(faultTimeout), 0
	for even := false; !even; {
		if time.Now().After(deadline) {
			t.Fatalf("the load is not even after %v: %v", faultTimeout, c.connections(t))
		}
		written++
		c.writeUntilSeen(t, client, readers, fmt.Sprintf("while moving-%d", written))
		now := c.connections(t)
		even = min(now[c.Servers[0]], now[c.Servers[1]]) >= informers*4/10
		time.Sleep(time.Second)
	}
	if more := sumLists(readers) - lists; more != 0 {
		t.Errorf("%d informers listed again because connections moved", more)
	}
	t.Logf("connections %v after", c.connections(t))
}

// newReader starts an informer through the gateway. It ends with the test.
func (c *cluster) newReader(t *testing.T, number int) *reader {
	t.Helper()
	config := c.admin(t, c.gateway)
	// Clients with different dialers do not share a connection.
	config.UserAgent = fmt.Sprintf("reader-%d", number)
	config.Dial = (&dialer{}).DialContext
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	r := &reader{}
	maps := client.CoreV1().ConfigMaps("default")
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			r.lists.Add(1)
			return maps.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			if options.SendInitialEvents != nil && *options.SendInitialEvents {
				r.lists.Add(1)
			}
			return maps.Watch(ctx, options)
		},
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source, ObjectType: &corev1.ConfigMap{}, Handler: cache.ResourceEventHandlerFuncs{},
	})
	r.store = store
	go controller.RunWithContext(t.Context())
	testcluster.Eventually(t, startTimeout, "an informer has synced", controller.HasSynced)
	return r
}

// writeUntilSeen writes a ConfigMap through the gateway and waits until all informers have it.
func (c *cluster) writeUntilSeen(t *testing.T, client kubernetes.Interface, readers []*reader, text string) {
	t.Helper()
	name := strings.ReplaceAll(text, " ", "-")
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	testcluster.Eventually(t, startTimeout, "a write succeeds "+text, func() bool {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), object, metav1.CreateOptions{})
		return err == nil
	})
	for i, reader := range readers {
		testcluster.Eventually(t, startTimeout, fmt.Sprintf("informer %d sees the write %s", i, text), func() bool {
			_, exists, _ := reader.store.GetByKey("default/" + name)
			return exists
		})
	}
}

// connections returns the client connections of each API server.
func (c *cluster) connections(t *testing.T) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, line := range strings.Split(c.page("/metrics"), "\n") {
		for _, server := range c.Servers {
			var count int
			if _, err := fmt.Sscanf(line, fmt.Sprintf("kube_gateway_server_connections{server=%q} %%d", server), &count); err == nil {
				counts[server] = count
			}
		}
	}
	return counts
}

func sumLists(readers []*reader) int64 {
	var sum int64
	for _, r := range readers {
		sum += r.lists.Load()
	}
	return sum
}
