package watches

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// shortTimeout is the number of seconds after which watches end that use two gateways in turn.
	shortTimeout = 3
	// suspension is the time for which a gateway is suspended.
	suspension = 5 * time.Second
)

// trial is a test in which objects change at random and something fails while clients watch. What they saw is held
// against the history of the store.
type trial struct {
	*cluster
	source    *rand.Rand
	histories map[string]*history
	watchers  []*watcher
	following sync.WaitGroup
	// context ends all watches.
	context context.Context
	cancel  context.CancelFunc
}

// newTrial begins to record the history of the store. The watches end with the test.
func (c *cluster) newTrial(t *testing.T, source *rand.Rand) *trial {
	t.Helper()
	r := &trial{cluster: c, source: source, histories: map[string]*history{}}
	for resource, prefix := range map[string]string{"pods": "/registry/pods/", "nodes": "/registry/minions/", "services": "/registry/services/specs/", "leases": leaseKeys} {
		r.histories[resource] = c.record(t, prefix)
	}
	r.context, r.cancel = context.WithCancel(context.Background())
	t.Cleanup(r.stop)
	return r
}

func (r *trial) stop() {
	r.cancel()
	r.following.Wait()
}

// watch begins to watch as the kubelet of each node and as kube-controller-manager. Whenever a watch ends, it goes on at the next of the gateways.
func (r *trial) watch(t *testing.T, timeout int, gateways ...*gateway) {
	t.Helper()
	var addresses []string
	for _, g := range gateways {
		addresses = append(addresses, g.address)
	}
	for _, node := range nodes {
		client := r.kubelet(t, node)
		for _, q := range queries(node)[:3] {
			name := fmt.Sprintf("%s of %s at %v for %d s", q.resource, node, addresses, timeout)
			r.follow(&watcher{name: name, path: q.path, addresses: addresses, client: client, resource: q.resource, node: node, timeout: timeout})
		}
	}
	name := fmt.Sprintf("Leases at %v for %d s", addresses, timeout)
	r.follow(&watcher{name: name, path: leasesPath, addresses: addresses, client: r.client(t, controllerManager), resource: "leases", timeout: timeout})
}

func (r *trial) follow(w *watcher) {
	r.watchers = append(r.watchers, w)
	r.following.Go(func() { w.follow(r.context, r.histories[w.resource].start) })
}

// change changes random objects.
func (r *trial) change(t *testing.T) {
	t.Helper()
	for range number(t, "NODE_PATH_CHANGES", 300) {
		// An API server that was killed answers nothing.
		_ = r.changeRandomly(r.source)
	}
}

// states returns how many watches began with the state.
func (r *trial) states() (sum int64) {
	for _, w := range r.watchers {
		sum += w.expired.Load()
	}
	return sum
}

// killServer kills an API server while objects change, and waits until it is used again.
func (r *trial) killServer(t *testing.T, server string, gateways ...*gateway) {
	t.Helper()
	must(t, syscall.Kill(r.PIDAt(t, "https://"+server), syscall.SIGKILL))
	r.change(t)
	testcluster.Eventually(t, settleTimeout, "the API server is back", func() bool {
		_, err := r.admin.CoreV1().Nodes().Get(r.context, nodes[0], metav1.GetOptions{})
		for _, g := range gateways {
			if err != nil || g.metric(`kube_gateway_server_ready{server="`+server+`"}`) != 1 {
				return false
			}
		}
		return true
	})
}

// killStore kills the store while objects change, and waits until it is used again, also by a gateway unless it is nil.
func (r *trial) killStore(t *testing.T, g *gateway) {
	t.Helper()
	url := r.Named(t, "store").Address
	killed := r.PIDAt(t, url)
	must(t, syscall.Kill(killed, syscall.SIGKILL))
	r.change(t)
	testcluster.Eventually(t, settleTimeout, "the store is back", func() bool {
		_, err := r.admin.CoreV1().Nodes().Get(r.context, nodes[0], metav1.GetOptions{})
		return err == nil && (g == nil || g.metric(servesLeases) == 1)
	})
	if r.PIDAt(t, url) == killed {
		t.Error("the store was not started again")
	}
}

// compactWithout compacts the store while a gateway is suspended and has lost its connection. It must read all Leases again.
func (r *trial) compactWithout(t *testing.T, g *gateway) {
	t.Helper()
	must(t, g.process.Process.Signal(syscall.SIGSTOP))
	r.killStore(t, nil)
	r.change(t)
	result, err := r.store.Get(r.context, "x")
	must(t, err)
	_, err = r.store.Compact(r.context, result.Header.Revision)
	must(t, err)
	must(t, g.process.Process.Signal(syscall.SIGCONT))
	testcluster.Eventually(t, settleTimeout, "the gateway finds the compaction", func() bool { return isLogged(g, "the store was compacted") == nil })
	testcluster.Eventually(t, settleTimeout, "Leases are served again", func() bool { return g.metric(servesLeases) == 1 })
}

// killGateway kills a gateway, and starts it again after some changes.
func (r *trial) killGateway(t *testing.T, g *gateway) {
	t.Helper()
	testcluster.Stop(g.process)
	r.change(t)
	r.restart(t, g)
}

// suspend stops a gateway for a while, in which objects change, and calls a function at the end of this time.
func (r *trial) suspend(t *testing.T, g *gateway, during func()) {
	t.Helper()
	must(t, g.process.Process.Signal(syscall.SIGSTOP))
	for end := time.Now().Add(suspension); time.Now().Before(end); {
		r.change(t)
	}
	during()
	must(t, g.process.Process.Signal(syscall.SIGCONT))
}

// settle waits until all watches have seen a last change.
func (r *trial) settle(t *testing.T) {
	t.Helper()
	last := r.mark(t)
	for _, w := range r.watchers {
		testcluster.Eventually(t, settleTimeout, w.name+" is watched to the end", func() bool { return w.has(last.of(w.resource, w.node)) })
	}
}

// check ends all watches, and holds what they saw against the history.
func (r *trial) check(t *testing.T) {
	t.Helper()
	r.stop()
	// What the watches saw is older than this.
	result, err := r.store.Get(context.Background(), "x")
	must(t, err)
	must(t, r.store.RequestProgress(context.Background()))
	for _, w := range r.watchers {
		changes := r.histories[w.resource].until(t, min(result.Header.Revision, w.last))
		for len(changes) > 0 && changes[len(changes)-1].revision > w.last {
			changes = changes[:len(changes)-1]
		}
		checked := r.histories[w.resource].check(t, w.name, w.seen, selects(w.resource, w.node), changes)
		t.Logf("%s: %d changes, %d watches, %d with the state", w.name, checked, w.starts.Load(), w.expired.Load())
		if checked == 0 {
			t.Errorf("%s: no change was compared", w.name)
		}
	}
	t.Logf("%d watches began with the state in all", r.states())
}

// selects returns what the kubelet of a node selects.
func selects(resource, node string) func(runtime.Object) bool {
	return func(object runtime.Object) bool {
		switch object := object.(type) {
		case *corev1.Pod:
			return object.Spec.NodeName == node
		case *corev1.Node:
			return object.Name == node
		case *corev1.Service:
			return object.Spec.ClusterIP != corev1.ClusterIPNone
		case *coordinationv1.Lease:
			return true
		}
		return resource == ""
	}
}

// testFaults watches while everything is killed once and the store is compacted.
func testFaults(t *testing.T, c *cluster, g *gateway, source *rand.Rand) {
	r := c.newTrial(t, source)
	r.watch(t, longTimeout, g)
	r.change(t)
	t.Log("compaction")
	result, err := c.store.Get(r.context, "x")
	must(t, err)
	_, err = c.store.Compact(r.context, result.Header.Revision)
	must(t, err)
	r.change(t)
	for _, server := range []string{c.Servers[1], c.Servers[0]} {
		t.Logf("kill the API server %s", server)
		r.killServer(t, server, g)
		r.settle(t)
	}
	t.Logf("%d watches began with the state before the store was killed", r.states())
	t.Log("kill the store")
	r.killStore(t, g)
	r.settle(t)
	t.Log("compact the store while the gateway is away")
	r.compactWithout(t, g)
	r.settle(t)
	t.Logf("%d watches began with the state before the gateway was killed", r.states())
	t.Log("kill the gateway")
	r.killGateway(t, g)
	r.change(t)
	r.settle(t)
	r.check(t)
}

// testTwoGateways watches through two gateways in front of the same API servers, while each of them is killed and
// suspended, and the API servers are killed. Kubelets that lose a gateway go on at the other one with the version that
// they know, also while the other one lags.
func testTwoGateways(t *testing.T, c *cluster, first *gateway, source *rand.Rand) {
	second := c.startGateway(t)
	r := c.newTrial(t, source)
	r.watch(t, longTimeout, first, second)
	r.watch(t, longTimeout, second, first)
	r.watch(t, shortTimeout, first, second)
	for _, fault := range r.faultsOfTwo(t, first, second) {
		events := func(g *gateway) int { return g.metric("kube_gateway_node_path_events_total") }
		t.Log(fault.name)
		fault.run()
		before := [2]int{events(first), events(second)}
		r.change(t)
		r.settle(t)
		t.Logf("%d watches, %d of them with the state; after the fault the gateways delivered %d and %d events",
			r.starts(), r.states(), events(first)-before[0], events(second)-before[1])
	}
	// Both gateways were started again, and the watches of the test may all have gone on at one of them. Each must serve all of them. The
	// first watch of Leases is forwarded: the gateway asks whether the user may read them.
	for _, g := range []*gateway{first, second} {
		for _, q := range append(queries(nodes[0])[:3], query{"leases", leasesPath, "", controllerManager}) {
			r.isServed(t, g, r.clientOf(t, q), q)
		}
	}
	r.check(t)
}

// fault is something that fails, and works again in the end.
type fault struct {
	name string
	run  func()
}

// faultsOfTwo returns the faults of two gateways and their API servers in a random order.
func (r *trial) faultsOfTwo(t *testing.T, first, second *gateway) []fault {
	t.Helper()
	var faults []fault
	for _, server := range r.Servers {
		faults = append(faults, fault{"kill the API server " + server, func() { r.killServer(t, server, first, second) }})
	}
	for _, pair := range [][2]*gateway{{first, second}, {second, first}} {
		g, other := pair[0], pair[1]
		faults = append(faults,
			fault{"kill the gateway " + g.address, func() { r.killGateway(t, g) }},
			fault{"suspend the gateway " + g.address, func() { r.suspend(t, g, func() {}) }},
			fault{"suspend the gateway " + g.address + " and kill the other one", func() {
				r.suspend(t, g, func() {
					testcluster.Stop(other.process)
					r.change(t)
				})
				// Its clients go on at the gateway that lags.
				r.settle(t)
				r.restart(t, other)
			}})
	}
	r.source.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	return faults
}

// starts returns how many watches have begun.
func (r *trial) starts() (sum int64) {
	for _, w := range r.watchers {
		sum += w.starts.Load()
	}
	return sum
}
