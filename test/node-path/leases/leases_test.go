package leases

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// workers send random renewals at the same time.
	workers = 8
	// warmUp bounds the renewals after which a gateway must serve.
	warmUp = 20 * comparisons
	// restartTimeout bounds the time in which a restarted store is used again.
	restartTimeout = 5 * time.Minute
)

// TestLeases runs all tests in one cluster.
func TestLeases(t *testing.T) {
	c := newCluster(t)
	g := c.startGateway(t, "on", c.storeURL, "/registry")
	t.Run("it serves after enough comparisons", func(t *testing.T) { testTurnsOn(t, c, g) })
	t.Run("random renewals", func(t *testing.T) { testRandom(t, c, g) })
	t.Run("the header of an answer", func(t *testing.T) { testHeader(t, c, g) })
	t.Run("the Lease of another node", func(t *testing.T) { testForeign(t, c, g) })
	t.Run("a stale version", func(t *testing.T) { testStale(t, c, g) })
	t.Run("a Lease that is created again", func(t *testing.T) { testRecreated(t, c, g) })
	t.Run("other fields", func(t *testing.T) { testOtherFields(t, c, g) })
	t.Run("unusual requests", func(t *testing.T) { testUnusual(t, c, g) })
	t.Run("the life of a Lease", func(t *testing.T) { testLifecycle(t, c, g) })
	t.Run("two gateways", func(t *testing.T) { testTwoGateways(t, c, g) })
	t.Run("Leases that are known from the store", func(t *testing.T) { testStored(t, c) })
	t.Run("users of RBAC", func(t *testing.T) { testReviewed(t, c, g) })
	t.Run("renewals that wait for their turn", func(t *testing.T) { testTurns(t, c) })
	t.Run("a store that does not answer", func(t *testing.T) { testSilentStore(t, c) })
	t.Run("the store is killed", func(t *testing.T) { testKilledStore(t, c, g) })
	t.Run("another prefix is refused", func(t *testing.T) { testWrongPrefix(t, c) })
	t.Run("shadow mode serves nothing", func(t *testing.T) { testShadow(t, c) })
	if count := g.compared("different"); count != 0 {
		t.Errorf("%d comparisons found a difference, want none", count)
	}
}

// turnOn renews a Lease until the gateway serves.
func turnOn(t *testing.T, g *gateway, k *kubelet, lease *coordinationv1.Lease) *coordinationv1.Lease {
	t.Helper()
	// While it is not permitted to serve, it compares nothing.
	for start, renewals := g.forwarded("not_permitted"), 0; renewals < warmUp+g.forwarded("not_permitted")-start; renewals++ {
		if g.state() == 2 {
			return lease
		}
		lease = k.renew(t, g.address, lease)
	}
	t.Fatalf("the state is %d after %d renewals, want 2", g.state(), warmUp)
	return nil
}

func testTurnsOn(t *testing.T, c *cluster, g *gateway) {
	k := c.newKubelet(t, "first")
	lease := k.create(t, g.address)
	// A renewal that is sent before all comparisons are complete could be served, if it turns on meanwhile.
	for renewals := 0; g.compared("equal") < comparisons && renewals < warmUp; renewals++ {
		lease = k.renew(t, g.address, lease)
		testcluster.Eventually(t, startTimeout, "the renewal is compared", func() bool {
			return g.compared("equal")+g.compared("unknown") == g.forwarded("shadow")
		})
	}
	testcluster.Eventually(t, startTimeout, "it has turned on", func() bool { return g.state() == 2 })
	if equal, served := g.compared("equal"), g.served(); equal < comparisons || served != 0 {
		t.Errorf("%d equal comparisons and %d served renewals when it turned on, want %d and none", equal, served, comparisons)
	}
	g.uninterrupted(t, func(r *remarks, _ string) {
		lease = k.renew(t, g.address, k.renew(t, g.address, lease))
		if g.served() < 1 {
			r.add("no renewal was served")
		}
	})
}

// testRandom sends random renewals through the gateway and the same ones to an API server, and compares what they store
// and answer.
func testRandom(t *testing.T, c *cluster, g *gateway) {
	count, seed := 1000, testcluster.Seed(t, "NODE_PATH_SEED")
	if text := os.Getenv("NODE_PATH_RENEWALS"); text != "" {
		var err error
		count, err = strconv.Atoi(text)
		must(t, err)
	}
	kubelets, randoms, renewed := make([]*kubelet, workers), make([]*rand.Rand, workers), make([]*coordinationv1.Lease, workers)
	for worker := range workers {
		kubelets[worker] = c.newKubelet(t, fmt.Sprintf("random-%d", worker))
		randoms[worker] = rand.New(rand.NewPCG(seed, uint64(worker)))
		renewed[worker] = kubelets[worker].create(t, c.Servers[worker%2])
	}
	before, sent := g.served(), 0
	// On a busy machine the detection refuses now and then, and renewals are forwarded.
	for missing := count; missing > 0 && sent < 10*count && !t.Failed(); missing = count - (g.served() - before) {
		var left, done atomic.Int64
		left.Store(int64(missing))
		var all sync.WaitGroup
		for worker := range workers {
			all.Go(func() {
				for left.Add(-1) >= 0 && !t.Failed() {
					renewed[worker] = c.renewRandomly(t, g, kubelets[worker], renewed[worker], randoms[worker])
					done.Add(1)
				}
			})
		}
		all.Wait()
		sent += int(done.Load())
	}
	served := g.served() - before
	t.Logf("%d random renewals are equal, %d of them were served", sent, served)
	if served < count {
		t.Errorf("%d of %d renewals were served from the store, want %d", served, sent, count)
	}
}

// renewRandomly changes the content of a Lease, which is forwarded. Then it renews the Lease through the gateway, which
// serves that, and renews the result through an API server.
func (c *cluster) renewRandomly(t *testing.T, g *gateway, k *kubelet, lease *coordinationv1.Lease, random *rand.Rand) *coordinationv1.Lease {
	changed := change(lease, random)
	lease = k.put(t, g.address, k.name, changed).lease(t, http.StatusOK)
	renewed, started := lease.DeepCopy(), time.Now()
	renewed.Spec.RenewTime = randomTime(random)
	ours := k.put(t, g.address, k.name, renewed)
	lease = ours.lease(t, http.StatusOK)
	again := lease.DeepCopy()
	again.Spec.RenewTime = randomTime(random)
	theirs := k.put(t, c.Servers[random.IntN(2)], k.name, again)
	last := theirs.lease(t, http.StatusOK)
	if got := lease.Spec.RenewTime; !got.Equal(renewed.Spec.RenewTime) {
		t.Errorf("renewTime is %v, want %v", got, renewed.Spec.RenewTime)
	}
	// It has no fractions of a second.
	if at := lease.ManagedFields[0].Time.Time; at.Before(started.Add(-2*time.Second)) || at.After(time.Now().Add(2*time.Second)) {
		t.Errorf("the time of managedFields is %v, and the renewal was sent at %v", at, started)
	}
	if want := as(t, theirs.body, lease, lease.ResourceVersion); !bytes.Equal(ours.body, want) {
		t.Errorf("the answer is\n%q, kube-apiserver's\n%q", ours.body, want)
	}
	stored := c.stored(t, k.name, lease.ResourceVersion)
	if want := as(t, c.stored(t, k.name, last.ResourceVersion), lease, ""); !bytes.Equal(stored, want) {
		t.Errorf("the stored value is\n%q, kube-apiserver's\n%q", stored, want)
	}
	return last
}

// as returns what kube-apiserver sent or stored, with the times of another renewal of the same Lease, and a version.
func as(t *testing.T, bytes []byte, renewal *coordinationv1.Lease, version string) []byte {
	t.Helper()
	lease := decode(t, bytes)
	lease.ResourceVersion = version
	lease.Spec.RenewTime = renewal.Spec.RenewTime
	lease.ManagedFields[0].Time = renewal.ManagedFields[0].Time
	return encode(t, lease)
}

// randomTime returns a time that kubelets may send. A renewal may also go back.
func randomTime(random *rand.Rand) *metav1.MicroTime {
	moment := time.Unix(random.Int64N(4e9), random.Int64N(1e6)*1000)
	if random.IntN(4) == 0 {
		moment = moment.Truncate(time.Second)
	}
	return &metav1.MicroTime{Time: moment}
}

// change returns the Lease with random other fields.
func change(lease *coordinationv1.Lease, random *rand.Rand) *coordinationv1.Lease {
	changed := lease.DeepCopy()
	changed.Spec.RenewTime = randomTime(random)
	text := func() string {
		const letters = "abcdefghijklmnopqrstuvwxyz"
		return strings.Repeat(letters[random.IntN(26):][:1], 1+random.IntN(60))
	}
	texts := func() map[string]string {
		result := map[string]string{}
		for range random.IntN(4) {
			result["example.com/"+text()] = text()
		}
		return result
	}
	spec := &changed.Spec
	switch random.IntN(7) {
	case 0:
		changed.Labels = texts()
	case 1:
		changed.Annotations = texts()
	case 2:
		holder := text() + "ü"
		spec.HolderIdentity = &holder
	case 3:
		duration := 1 + random.Int32N(1<<30)
		spec.LeaseDurationSeconds = &duration
	case 4:
		spec.AcquireTime = randomTime(random)
	case 5:
		transitions := random.Int32N(1 << 30)
		spec.LeaseTransitions = &transitions
	default:
		changed.Finalizers = slices.Sorted(slices.Values([]string{"example.com/" + text()}))
	}
	return changed
}

func testHeader(t *testing.T, c *cluster, g *gateway) {
	var k *kubelet
	var ours answer
	g.uninterrupted(t, func(r *remarks, suffix string) {
		k = c.newKubelet(t, "header"+suffix)
		lease, before := k.renew(t, g.address, k.create(t, g.address)), g.served()
		ours = k.put(t, g.address, k.name, later(lease))
		if g.served() != before+1 {
			r.add("the renewal was not served")
		}
	})
	theirs := k.put(t, c.Servers[0], k.name, later(ours.lease(t, http.StatusOK)))
	theirs.lease(t, http.StatusOK)
	for _, result := range []answer{ours, theirs} {
		header := result.header
		if length := header.Get("Content-Length"); length != strconv.Itoa(len(result.body)) {
			t.Errorf("Content-Length is %s, the body has %d bytes", length, len(result.body))
		}
		// The times and versions may have other lengths.
		header.Del("Content-Length")
		if id := header.Get("Audit-Id"); len(id) != 36 {
			t.Errorf("Audit-Id is %q", id)
		}
		header.Del("Audit-Id")
		if _, err := http.ParseTime(header.Get("Date")); err != nil {
			t.Error(err)
		}
		header.Del("Date")
	}
	if got, want := fmt.Sprint(ours.header), fmt.Sprint(theirs.header); got != want {
		t.Errorf("the header is %s, kube-apiserver's %s", got, want)
	}
}

// same sends a request through the gateway and to an API server, and compares the answers, which must have a status.
func (k *kubelet) same(t *testing.T, c *cluster, g *gateway, name string, lease *coordinationv1.Lease, status int) {
	t.Helper()
	through, direct := k.put(t, g.address, name, lease), k.put(t, c.Servers[0], name, lease)
	if through.status != status || through.status != direct.status || !bytes.Equal(through.body, direct.body) {
		t.Errorf("the answer is %d %q, that of an API server %d %q; want %d", through.status, through.body, direct.status, direct.body, status)
	}
}

func testForeign(t *testing.T, c *cluster, g *gateway) {
	owner, other := c.newKubelet(t, "owner"), c.newKubelet(t, "other")
	lease := owner.renew(t, g.address, owner.create(t, g.address))
	g.uninterrupted(t, func(r *remarks, _ string) {
		before := g.forwarded("identity")
		other.same(t, c, g, owner.name, later(lease), http.StatusForbidden)
		if g.forwarded("identity") != before+1 {
			r.add("the renewal of another node was not forwarded because of its identity")
		}
	})
	// The certificate decides, not the User-Agent or the body.
	nobody := &kubelet{name: owner.name, client: c.httpClient(t, true, "system:node:owner"), agent: owner.agent}
	nobody.same(t, c, g, owner.name, later(lease), http.StatusForbidden)
	if last := decode(t, c.stored(t, owner.name, lease.ResourceVersion)); !last.Spec.RenewTime.Equal(lease.Spec.RenewTime) {
		t.Error("another node has renewed the Lease")
	}
}

func testStale(t *testing.T, c *cluster, g *gateway) {
	k := c.newKubelet(t, "stale")
	old := k.renew(t, g.address, k.create(t, g.address))
	lease := k.renew(t, g.address, old)
	k.same(t, c, g, k.name, later(old), http.StatusConflict)
	// The gateway thinks that it knows the version.
	lease = k.renew(t, c.Servers[0], lease)
	stale := lease.DeepCopy()
	lease = k.renew(t, c.Servers[1], lease)
	k.same(t, c, g, k.name, later(stale), http.StatusConflict)
	k.renew(t, g.address, lease)
	// As if the gateway had learnt a version that is no longer in the store.
	var known *coordinationv1.Lease
	g.uninterrupted(t, func(r *remarks, _ string) {
		before := g.forwarded("conflict")
		known = k.renew(t, g.address, k.renew(t, g.address, get(t, c, k.name)))
		k.renew(t, c.Servers[0], known)
		k.same(t, c, g, k.name, later(known), http.StatusConflict)
		if g.forwarded("conflict") != before+1 {
			r.add("the store was not asked, or had no conflict")
		}
	})
	none := later(known)
	none.ResourceVersion = ""
	k.same(t, c, g, k.name, none, http.StatusUnprocessableEntity)
}

// get reads a Lease from an API server.
func get(t *testing.T, c *cluster, name string) *coordinationv1.Lease {
	t.Helper()
	lease, err := c.admin.CoordinationV1().Leases("kube-node-lease").Get(context.Background(), name, metav1.GetOptions{})
	must(t, err)
	return lease
}

func testRecreated(t *testing.T, c *cluster, g *gateway) {
	g.uninterrupted(t, func(r *remarks, suffix string) { c.recreate(t, g, r, "recreated"+suffix) })
}

func (c *cluster) recreate(t *testing.T, g *gateway, r *remarks, name string) {
	t.Helper()
	k := c.newKubelet(t, name)
	lease := k.renew(t, g.address, k.renew(t, g.address, k.create(t, g.address)))
	leases := c.admin.CoordinationV1().Leases("kube-node-lease")
	must(t, leases.Delete(context.Background(), k.name, metav1.DeleteOptions{}))
	before := g.forwarded("conflict")
	if result := k.put(t, g.address, k.name, later(lease)); result.status != http.StatusNotFound && result.status != http.StatusConflict {
		t.Errorf("a deleted Lease was renewed: %d %q", result.status, result.body)
	}
	if g.forwarded("conflict") != before+1 {
		r.add("the store was not asked, or had no conflict")
	}
	if _, err := leases.Get(context.Background(), k.name, metav1.GetOptions{}); err == nil {
		t.Error("the deleted Lease exists")
	}
	again := k.create(t, c.Servers[0])
	k.same(t, c, g, k.name, later(lease), http.StatusConflict)
	served := g.served()
	k.renew(t, g.address, k.renew(t, g.address, again))
	if g.served() != served+1 {
		r.add("the second renewal of the new Lease was not served")
	}
}

func testOtherFields(t *testing.T, c *cluster, g *gateway) {
	g.uninterrupted(t, func(r *remarks, suffix string) { c.changeFields(t, g, r, "fields"+suffix) })
}

func (c *cluster) changeFields(t *testing.T, g *gateway, r *remarks, name string) {
	t.Helper()
	node, err := c.admin.CoreV1().Nodes().Create(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	k := c.newKubelet(t, node.Name)
	lease := k.renew(t, g.address, k.create(t, g.address))
	for name, change := range map[string]func(*coordinationv1.Lease){
		"ownerReferences": func(lease *coordinationv1.Lease) {
			lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
		},
		"duration": func(lease *coordinationv1.Lease) { *lease.Spec.LeaseDurationSeconds++ },
		"labels":   func(lease *coordinationv1.Lease) { lease.Labels = map[string]string{"a": "b"} },
		"holder":   func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = nil },
	} {
		changed, before, served := later(lease), g.forwarded("content"), g.served()
		change(changed)
		lease = k.put(t, g.address, k.name, changed).lease(t, http.StatusOK)
		same := equality.Semantic.DeepEqual(lease.Spec, changed.Spec) && equality.Semantic.DeepEqual(lease.Labels, changed.Labels) &&
			equality.Semantic.DeepEqual(lease.OwnerReferences, changed.OwnerReferences)
		if !same {
			t.Errorf("%s: the Lease is %v, want %v", name, lease, changed)
		}
		if g.forwarded("content") != before+1 {
			r.add("%s: a change was not forwarded because of its content", name)
		}
		lease = k.renew(t, g.address, lease)
		if g.served() != served+1 {
			r.add("%s: the next renewal was not served", name)
		}
	}
	// Nothing changes: kube-apiserver does not write.
	same := k.put(t, g.address, k.name, lease).lease(t, http.StatusOK)
	if same.ResourceVersion != lease.ResourceVersion {
		t.Errorf("an update without a change has the version %s, want %s", same.ResourceVersion, lease.ResourceVersion)
	}
}

func testUnusual(t *testing.T, c *cluster, g *gateway) {
	k := c.newKubelet(t, "unusual")
	lease := k.renew(t, g.address, k.renew(t, g.address, k.create(t, g.address)))
	old := &kubelet{name: k.name, client: c.httpClient(t, false, "system:node:unusual", "system:nodes"), agent: k.agent}
	other := &kubelet{name: k.name, client: k.client, agent: "kubectl/v1"}
	text, err := json.Marshal(later(lease))
	must(t, err)
	served := g.served()
	send := func(k *kubelet, query string, body []byte, fields ...string) answer {
		result, err := k.try(http.MethodPut, "https://"+g.address+leasesPath+"/unusual"+query, body, fields...)
		must(t, err)
		return result
	}
	for name, request := range map[string]func(body []byte) answer{
		"http1":     func(body []byte) answer { return send(old, "?timeout=10s", body) },
		"dry run":   func(body []byte) answer { return send(k, "?dryRun=All", body) },
		"manager":   func(body []byte) answer { return send(k, "?fieldManager=kubelet", body) },
		"JSON":      func([]byte) answer { return send(k, "", text, "Content-Type", "application/json") },
		"accept":    func(body []byte) answer { return send(k, "", body, "Accept", "application/json") },
		"token":     func(body []byte) answer { return send(k, "", body, "Authorization", "Bearer x") },
		"kubectl":   func(body []byte) answer { return send(other, "?timeout=10s", body) },
		"traced":    func(body []byte) answer { return send(k, "", body, "Traceparent", "00-0-0-00") },
		"truncated": func(body []byte) answer { return send(k, "", body[:len(body)-1]) },
		"large":     func(body []byte) answer { return send(k, "", append(body, make([]byte, 20<<10)...)) },
	} {
		result := request(encode(t, later(get(t, c, k.name))))
		bad := name == "truncated" || name == "large"
		// The Lease in JSON has an old version by then.
		if ok := result.status == http.StatusOK; ok == bad && !(name == "JSON" && result.status == http.StatusConflict) {
			t.Errorf("%s: status %d: %q", name, result.status, result.body)
		}
	}
	if count := g.served() - served; count != 0 {
		t.Errorf("%d unusual requests were served", count)
	}
	if g.forwarded("http1") == 0 || g.forwarded("form") == 0 || g.forwarded("object") == 0 || g.forwarded("body") == 0 {
		t.Error("some requests were not counted")
	}
}

// testTwoGateways renews one Lease through two gateways in turn. Each sees versions that it does not know.
func testTwoGateways(t *testing.T, c *cluster, g *gateway) {
	second := c.startGateway(t, "on", c.storeURL, "/registry")
	k := c.newKubelet(t, "both")
	lease := turnOn(t, second, k, k.create(t, g.address))
	for i := range 20 {
		turn := []*gateway{g, second}[i%2]
		turn.uninterrupted(t, func(r *remarks, suffix string) {
			if suffix != "" {
				// It knows the version, because it was its turn before.
				lease = k.renew(t, c.Servers[0], lease)
			}
			// Each gateway learns from the first of its renewals, and serves the second.
			served, stale := turn.served(), lease
			lease = k.renew(t, turn.address, k.renew(t, turn.address, lease))
			if counted := turn.served(); counted != served+1 {
				r.add("turn %d: %d of 2 renewals were served, want 1", i, counted-served)
			}
			k.same(t, c, g, k.name, later(stale), http.StatusConflict)
		})
	}
	// Both think that they know the version: one wins.
	lease = k.renew(t, second.address, k.renew(t, second.address, lease))
	k.put(t, g.address, k.name, lease).lease(t, http.StatusOK)
	statuses := make([]int, 2)
	var all sync.WaitGroup
	for i, address := range []string{g.address, second.address} {
		body := encode(t, later(lease))
		all.Go(func() {
			result, err := k.try(http.MethodPut, "https://"+address+leasesPath+"/"+k.name, body)
			if err == nil {
				statuses[i] = result.status
			}
		})
	}
	all.Wait()
	slices.Sort(statuses)
	if !slices.Equal(statuses, []int{http.StatusOK, http.StatusConflict}) {
		t.Errorf("two renewals of one version got %v, want one 200 and one 409", statuses)
	}
}

// testStored renews Leases of which the gateway has seen no answer. It has a cache that is filled from the store.
func testStored(t *testing.T, c *cluster) {
	g := c.startGateway(t, "on, watch: on", c.storeURL, "/registry")
	seen := c.newKubelet(t, "seen")
	turnOn(t, g, seen, seen.create(t, c.Servers[0]))
	number := 0
	// Its cache may be behind, or the path may be interrupted for a moment.
	testcluster.Eventually(t, startTimeout, "the first renewal of a new Lease is served", func() bool {
		number++
		k := c.newKubelet(t, fmt.Sprintf("stored-%d", number))
		lease, served := k.renew(t, c.Servers[0], k.create(t, c.Servers[0])), g.served()
		renewed := k.renew(t, g.address, lease)
		stored := get(t, c, k.name)
		if !equality.Semantic.DeepEqual(renewed.ObjectMeta, stored.ObjectMeta) || !equality.Semantic.DeepEqual(renewed.Spec, stored.Spec) {
			t.Fatalf("the answer is %v, and the API server has %v", renewed, stored)
		}
		k.same(t, c, g, k.name, later(lease), http.StatusConflict)
		return g.served() == served+1
	})
}

// testReviewed renews Leases as a user that is no node.
func testReviewed(t *testing.T, c *cluster, g *gateway) {
	ctx := context.Background()
	k := &kubelet{name: "reviewed", client: c.httpClient(t, true, "simulator", "simulators"), agent: "simulator/v1"}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "simulator"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"create", "get", "update"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}}},
	}
	_, err := c.admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	must(t, err)
	bind := func(role, kind, name string) {
		_, err := c.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-" + role}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}},
		}, metav1.CreateOptions{})
		must(t, err)
	}
	bind("simulator", "Group", "simulators")
	var lease *coordinationv1.Lease
	testcluster.Eventually(t, startTimeout, "the simulator may create a Lease", func() bool {
		duration, now := int32(40), metav1.NowMicro()
		lease = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: k.name, Namespace: "kube-node-lease"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &k.name, LeaseDurationSeconds: &duration, RenewTime: &now},
		}
		result, err := k.try(http.MethodPost, "https://"+c.Servers[0]+leasesPath, encode(t, lease))
		if err != nil || result.status != http.StatusCreated {
			return false
		}
		lease = decode(t, result.body)
		return true
	})
	before := g.served()
	testcluster.Eventually(t, startTimeout, "renewals of the simulator are served", func() bool {
		lease = k.renew(t, g.address, lease)
		return g.served() >= before+2
	})
	// A user without the role.
	nobody := &kubelet{name: k.name, client: c.httpClient(t, true, "nobody"), agent: k.agent}
	for range 3 {
		nobody.same(t, c, g, k.name, later(lease), http.StatusForbidden)
		time.Sleep(pollInterval)
	}
}

// testKilledStore kills the store under load. No renewal may be lost that was answered.
func testKilledStore(t *testing.T, c *cluster, g *gateway) {
	k := c.newKubelet(t, "killed")
	lease := k.renew(t, g.address, k.renew(t, g.address, k.create(t, g.address)))
	killed := c.PIDAt(t, c.storeURL)
	must(t, syscall.Kill(killed, syscall.SIGKILL))
	failed := 0
	served := g.served()
	for deadline := time.Now().Add(restartTimeout); g.served() < served+5; time.Sleep(pollInterval / 4) {
		if time.Now().After(deadline) {
			t.Fatalf("renewals are not served again after %v; %d failed", restartTimeout, failed)
		}
		result, err := k.try(http.MethodPut, "https://"+g.address+leasesPath+"/"+k.name+"?timeout=10s", encode(t, later(lease)))
		switch {
		case err == nil && result.status == http.StatusOK:
			lease = decode(t, result.body)
		case err == nil && result.status == http.StatusTooManyRequests:
			t.Fatalf("a renewal got 429: %q", result.body)
		default:
			// As a kubelet does.
			failed++
			if read, err := k.try(http.MethodGet, "https://"+g.address+leasesPath+"/"+k.name, nil); err == nil && read.status == http.StatusOK {
				lease = decode(t, read.body)
			}
		}
	}
	t.Logf("%d renewals failed while the store was down", failed)
	if c.PIDAt(t, c.storeURL) == killed {
		t.Error("the store was not restarted")
	}
	if last := get(t, c, k.name); !last.Spec.RenewTime.Equal(lease.Spec.RenewTime) {
		t.Errorf("the Lease was renewed at %v, want %v", last.Spec.RenewTime, lease.Spec.RenewTime)
	}
}

// testWrongPrefix checks that nothing is compared or served while the gateway sees a reason, such as another prefix in the
// store.
func testWrongPrefix(t *testing.T, c *cluster) {
	g := c.startGateway(t, "on", c.storeURL, "/elsewhere")
	k := c.newKubelet(t, "prefix")
	lease := k.create(t, g.address)
	testcluster.Eventually(t, startTimeout, "the prefix is refused", func() bool {
		return g.metric(`kube_gateway_node_path_refused{rule="storage"}`) == 1
	})
	before := g.forwarded("not_permitted")
	for range comparisons {
		lease = k.renew(t, g.address, lease)
	}
	if count := g.forwarded("not_permitted") - before; count < comparisons-1 {
		t.Errorf("%d of %d renewals were not permitted", count, comparisons)
	}
	if g.compared("equal")+g.compared("different")+g.compared("unknown") != 0 || g.served() != 0 {
		t.Error("renewals were compared or served")
	}
}

func testShadow(t *testing.T, c *cluster) {
	g := c.startGateway(t, "shadow", c.storeURL, "/registry")
	k := c.newKubelet(t, "shadow")
	lease := k.create(t, g.address)
	testcluster.Eventually(t, startTimeout, "enough comparisons", func() bool {
		lease = k.renew(t, g.address, lease)
		return g.compared("equal") >= 2*comparisons
	})
	if g.state() != 1 || g.served() != 0 {
		t.Errorf("the state is %d and %d renewals were served, want 1 and none", g.state(), g.served())
	}
}
