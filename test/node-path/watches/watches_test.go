package watches

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// proxy is the user of kube-proxy.
	proxy = "system:kube-proxy"
	// controllerManager is a user that may read all Leases, and leaseReader one that may read those in a namespace.
	controllerManager, leaseReader = "system:kube-controller-manager", "lease-reader"
	// newcomer may do the same, and has sent no request before its test.
	newcomer             = "newcomer"
	leasesPath           = "/apis/coordination.k8s.io/v1/leases?"
	namespacedLeasesPath = "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases?"
)

// query is what a client asks for, without a version.
type query struct {
	resource, path string
	// node is the node whose kubelet asks; if empty, a user asks.
	node, user string
}

// queries returns what the kubelet of a node and kube-proxy ask for.
func queries(node string) []query {
	return []query{
		{"pods", "/api/v1/pods?fieldSelector=spec.nodeName%3D" + node, node, ""},
		{"nodes", "/api/v1/nodes?fieldSelector=metadata.name%3D" + node, node, ""},
		{"services", "/api/v1/services?fieldSelector=spec.clusterIP%21%3DNone", node, ""},
		{"csidrivers", "/apis/storage.k8s.io/v1/csidrivers?", node, ""},
		{"runtimeclasses", "/apis/node.k8s.io/v1/runtimeclasses?", node, ""},
		{"podcertificaterequests", "/apis/certificates.k8s.io/v1/podcertificaterequests?fieldSelector=spec.nodeName%3D" + node, node, ""},
		{"services", "/api/v1/services?fieldSelector=spec.clusterIP%21%3DNone&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name", "", proxy},
		{"endpointslices", "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=%21service.kubernetes.io%2Fheadless", "", proxy},
		{"nodes", "/api/v1/nodes?fieldSelector=metadata.name%3D" + node, "", proxy},
		// A pod of the node refers to them.
		{"configmaps", "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name%3Dof-" + node, node, ""},
		{"secrets", "/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dof-" + node, node, ""},
		{"leases", leasesPath, "", controllerManager},
		{"leases", namespacedLeasesPath, "", leaseReader},
	}
}

// clientOf returns the client that sends a query.
func (c *cluster) clientOf(t *testing.T, q query) *http.Client {
	t.Helper()
	if q.node == "" {
		return c.client(t, q.user)
	}
	return c.kubelet(t, q.node)
}

// TestWatches runs all tests in one cluster.
func TestWatches(t *testing.T) {
	c := newCluster(t, memEtcd)
	c.prepare(t)
	c.allowProxy(t)
	c.allowLeaseReader(t)
	g := c.startGateway(t)
	source := random(t)
	t.Run("lists", func(t *testing.T) { testLists(t, c, g, source) })
	t.Run("streams", func(t *testing.T) { testStreams(t, c, g, source) })
	t.Run("bookmarks and the end of a watch", func(t *testing.T) { testEnd(t, c, g) })
	t.Run("permissions", func(t *testing.T) { testPermissions(t, c, g, source) })
	t.Run("permissions by references", func(t *testing.T) { testReferences(t, c, g, source) })
	t.Run("a kubelet that starts", func(t *testing.T) { testStart(t, c, g) })
	t.Run("a version that is not known yet", func(t *testing.T) { testBehind(t, c, g) })
	t.Run("a user who was not reviewed yet", func(t *testing.T) { testNewcomer(t, c, g) })
	t.Run("many Leases", func(t *testing.T) { testManyLeases(t, c, g) })
	t.Run("many events", func(t *testing.T) { testManyEvents(t, c, g) })
	t.Run("Leases that cannot be served", func(t *testing.T) { testUnreadable(t, c, g) })
	t.Run("a certificate that may not read all Leases", func(t *testing.T) { testLimited(t, c) })
	t.Run("what is forwarded", func(t *testing.T) { testForwarded(t, c, g) })
	t.Run("a slow client", func(t *testing.T) { testSlow(t, c, g) })
	t.Run("cost", func(t *testing.T) { testCost(t, c, g) })
	t.Run("without references", func(t *testing.T) { testWithoutReferences(t, c) })
	t.Run("too many bytes", func(t *testing.T) { testTooLarge(t, c) })
	t.Run("faults", func(t *testing.T) { testFaults(t, c, g, source) })
	t.Run("two gateways at once", func(t *testing.T) { testTwoGateways(t, c, g, source) })
	// The API servers have restarted, so that their caches do not have the first versions.
	t.Run("a version that is too old", func(t *testing.T) { testExpired(t, c, g) })
	// Afterwards the other caches may have what the API servers have lost.
	t.Run("a store that is replaced by an older one", func(t *testing.T) { testReplaced(t, c, g) })
}

// TestEtcd runs the tests of what comes from the store with etcd in place of mem_etcd, if NODE_PATH_ETCD is set, as
// `make node-path` does: it takes several minutes.
func TestEtcd(t *testing.T) {
	if os.Getenv("NODE_PATH_ETCD") == "" {
		t.Skip("NODE_PATH_ETCD is not set")
	}
	c := newCluster(t, etcd)
	c.prepare(t)
	c.allowProxy(t)
	c.allowLeaseReader(t)
	g := c.startGateway(t)
	source := random(t)
	t.Run("lists", func(t *testing.T) { testLists(t, c, g, source) })
	t.Run("streams", func(t *testing.T) { testStreams(t, c, g, source) })
	t.Run("a user who was not reviewed yet", func(t *testing.T) { testNewcomer(t, c, g) })
	t.Run("many Leases", func(t *testing.T) { testManyLeases(t, c, g) })
	t.Run("many events", func(t *testing.T) { testManyEvents(t, c, g) })
	t.Run("Leases that cannot be served", func(t *testing.T) { testUnreadable(t, c, g) })
	t.Run("faults", func(t *testing.T) { testFaults(t, c, g, source) })
	t.Run("two gateways at once", func(t *testing.T) { testTwoGateways(t, c, g, source) })
}

// allowProxy lets kube-proxy's user do what it may do in any cluster, and wait until the gateway knows.
func (c *cluster) allowProxy(t *testing.T) {
	t.Helper()
	_, err := c.admin.RbacV1().ClusterRoleBindings().Create(context.Background(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test-proxy"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: proxy}},
	}, metav1.CreateOptions{})
	must(t, err)
}

// allowLeaseReader lets a user read the Leases of a namespace.
func (c *cluster) allowLeaseReader(t *testing.T) {
	t.Helper()
	ctx, object := context.Background(), metav1.ObjectMeta{Name: leaseReader}
	_, err := c.admin.RbacV1().Roles(namespace).Create(ctx, &rbacv1.Role{
		ObjectMeta: object,
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"list", "watch"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = c.admin.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: object,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: leaseReader},
		Subjects: []rbacv1.Subject{
			{APIGroup: rbacv1.GroupName, Kind: "User", Name: leaseReader}, {APIGroup: rbacv1.GroupName, Kind: "User", Name: newcomer},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

// isServed asks until the gateway serves a query: it reviews users of RBAC at their first request.
func (c *cluster) isServed(t *testing.T, g *gateway, client *http.Client, q query) {
	t.Helper()
	for _, verb := range []string{"list", "watch"} {
		before := g.served(q.resource, verb)
		testcluster.Eventually(t, startTimeout, q.path+" is served", func() bool {
			path := q.path + "&resourceVersion=0"
			if verb == "watch" {
				path += "&watch=true&timeoutSeconds=1"
			}
			body(t, client, g.address, path)
			return g.served(q.resource, verb) > before
		})
	}
}

// testLists compares lists, byte for byte except the version of the list.
func testLists(t *testing.T, c *cluster, g *gateway, source *rand.Rand) {
	for range 40 {
		must(t, ignore(c.changeRandomly(source)))
	}
	must(t, c.writeReferenced(context.Background(), "of-"+nodes[0], "listed"))
	for _, q := range queries(nodes[0]) {
		client := c.clientOf(t, q)
		c.isServed(t, g, client, q)
		var ours, theirs []byte
		testcluster.Eventually(t, settleTimeout, "the lists of "+q.path+" are equal", func() bool {
			_, ours = body(t, client, g.address, q.path+"&resourceVersion=0")
			_, theirs = body(t, client, c.Servers[1], q.path+"&limit=500&resourceVersion=0")
			return bytes.Equal(unversioned(t, ours), unversioned(t, theirs))
		})
		if name := map[string]string{"pods": "r-", "podcertificaterequests": "of-" + nodes[0], "secrets": "of-" + nodes[0]}[q.resource]; !bytes.Contains(ours, []byte(name)) {
			t.Errorf("no %s in the list of %s", name, q.path)
		}
	}
}

// unversioned returns a list without its version.
func unversioned(t *testing.T, list []byte) []byte {
	t.Helper()
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(list, nil, nil)
	if err != nil {
		t.Fatalf("decode %q: %v", list, err)
	}
	accessor, err := meta.ListAccessor(object)
	must(t, err)
	version := accessor.GetResourceVersion()
	return bytes.Replace(list, []byte("\x12"+string(rune(len(version)))+version), nil, 1)
}

// pair is the same watch at the gateway and at an API server.
type pair struct {
	query        query
	start        string
	ours, theirs io.Reader
}

// testStreams compares the events of watches that begin at the same version, byte for byte, while objects change.
func testStreams(t *testing.T, c *cluster, g *gateway, source *rand.Rand) {
	g.uninterrupted(t, func() string { return c.compareChanges(t, g, source) })
	compareInitialEvents(t, c, g)
}

// compareChanges opens watches, changes objects, and returns what differs in the watches.
func (c *cluster) compareChanges(t *testing.T, g *gateway, source *rand.Rand) string {
	t.Helper()
	version := c.version(t)
	var pairs []pair
	for _, q := range append(queries(nodes[0]), queries(nodes[1])[:2]...) {
		client := c.clientOf(t, q)
		c.isServed(t, g, client, q)
		before := g.served(q.resource, "watch")
		start := "&watch=true&resourceVersion=" + version
		pairs = append(pairs, pair{q, start, stream(t, client, g.address, q.path+start), stream(t, client, c.Servers[1], q.path+start)})
		if g.served(q.resource, "watch") != before+1 {
			return fmt.Sprintf("the watch %s was forwarded", q.path)
		}
	}
	for range number(t, "NODE_PATH_CHANGES", 300) {
		must(t, ignore(c.changeRandomly(source)))
	}
	last := c.mark(t)
	for _, p := range pairs {
		if differs := compareStreams(t, p, last.of(p.query.resource, p.query.node)); differs != "" {
			return differs
		}
	}
	// The same from the history: all changes are in the past.
	for _, p := range pairs[:2] {
		client := c.clientOf(t, p.query)
		p.ours = stream(t, client, g.address, p.query.path+p.start)
		p.theirs = stream(t, client, c.Servers[0], p.query.path+p.start)
		if differs := compareStreams(t, p, last.of(p.query.resource, p.query.node)); differs != "" {
			return differs
		}
	}
	return ""
}

// throughMark returns the events of all Leases up to the last one of a Lease that only the test changes. Others change
// until the streams are no longer read.
func throughMark(q query, events []event) []event {
	if q.path != leasesPath {
		return events
	}
	for len(events) > 0 {
		accessor, err := meta.Accessor(events[len(events)-1].object)
		if err == nil && accessor.GetNamespace() == namespace {
			break
		}
		events = events[:len(events)-1]
	}
	return events
}

// compareStreams returns what differs in two streams up to the event with a version, and after it until both are silent. 0 is
// the version of a stream without such an event.
func compareStreams(t *testing.T, p pair, last int64) string {
	t.Helper()
	ours, theirs := collectBoth(p.ours, p.theirs, patience, func(a, b []event) bool {
		a, b = throughMark(p.query, a), throughMark(p.query, b)
		return len(a) == len(b) && hasVersion(a, last) && hasVersion(b, last)
	})
	ours, theirs = throughMark(p.query, ours), throughMark(p.query, theirs)
	if (p.query.resource == "pods" || p.query.resource == "leases") && len(theirs) < 5 {
		return fmt.Sprintf("%s: only %d events", p.query.path, len(theirs))
	}
	for i := range max(len(ours), len(theirs)) {
		if i >= len(ours) || i >= len(theirs) || !bytes.Equal(ours[i].raw, theirs[i].raw) {
			return fmt.Sprintf("%s%s: event %d differs: %d events of the gateway, %d of the API server\n%v\n%v", p.query.path, p.start, i, len(ours), len(theirs), at(ours, i), at(theirs, i))
		}
	}
	t.Logf("%s: %d equal events", p.query.path, len(ours))
	return ""
}

// hasVersion returns whether one of the events has at least this version.
func hasVersion(events []event, version int64) bool {
	return version == 0 || slices.ContainsFunc(events, func(e event) bool { return e.version >= version })
}

func at(events []event, i int) any {
	if i < len(events) {
		return fmt.Sprintf("%s %q", events[i].short(), events[i].raw)
	}
	return "nothing"
}

const (
	// silence is the time without an event after which two streams are complete, if they can be equal.
	silence = 700 * time.Millisecond
	// patience is the time after which they are different: a busy machine delays one of them. briefly is used if the
	// comparison is repeated anyway.
	patience, briefly = 2 * time.Minute, 5 * time.Second
)

// collectBoth reads the events of two streams at the same time, until both have ended, or are silent and complete, but not for
// longer than a limit.
func collectBoth(ours, theirs io.Reader, limit time.Duration, complete func(a, b []event) bool) (a, b []event) {
	fromOurs, fromTheirs := eventsOf(ours), eventsOf(theirs)
	for deadline := time.After(limit); ; {
		silent := time.After(silence)
		if fromOurs == nil && fromTheirs == nil {
			return a, b
		}
		select {
		case next, ok := <-fromOurs:
			if a = append(a, next); !ok {
				a, fromOurs = a[:len(a)-1], nil
			}
		case next, ok := <-fromTheirs:
			if b = append(b, next); !ok {
				b, fromTheirs = b[:len(b)-1], nil
			}
		case <-silent:
			if complete(a, b) {
				return a, b
			}
		case <-deadline:
			return a, b
		}
	}
}

// eventsOf reads the events of a stream until its end.
func eventsOf(reader io.Reader) <-chan event {
	events := make(chan event)
	go func() {
		defer close(events)
		for {
			next, err := read(reader)
			if err != nil {
				return
			}
			events <- next
		}
	}()
	return events
}

// haveSameLength returns whether two streams can be equal, apart from bookmarks.
func haveSameLength(a, b []event) bool {
	return len(withoutBookmarks(a)) == len(withoutBookmarks(b))
}

// compareInitialEvents compares watches that send the state first, with the bookmark after it.
func compareInitialEvents(t *testing.T, c *cluster, g *gateway) {
	for _, q := range queries(nodes[0]) {
		client := c.clientOf(t, q)
		c.isServed(t, g, client, q)
		for _, start := range []string{
			"&watch=true&resourceVersion=0", "&watch=true&allowWatchBookmarks=true&resourceVersion=0",
			"&watch=true&allowWatchBookmarks=true&resourceVersion=1" + initialEvents, "&watch=true&resourceVersion=0" + initialEvents,
			"&watch=true&allowWatchBookmarks=true&resourceVersion=0" + strings.Replace(initialEvents, "true", "false", 1),
		} {
			g.uninterrupted(t, func() string {
				before := g.served(q.resource, "watch")
				differs := ""
				// Controllers may still follow the last changes.
				for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
					ours, theirs := collectBoth(stream(t, client, g.address, q.path+start), stream(t, client, c.Servers[0], q.path+start), briefly, haveSameLength)
					if differs = difference(ours, theirs); differs == "" {
						break
					}
				}
				if differs != "" {
					return fmt.Sprintf("%s%s: %s", q.path, start, differs)
				}
				if g.served(q.resource, "watch") <= before {
					return fmt.Sprintf("the watch %s%s was forwarded", q.path, start)
				}
				return ""
			})
		}
	}
}

// difference compares events, without the versions of bookmarks: those of two caches may differ.
func difference(ours, theirs []event) string {
	for i := range max(len(ours), len(theirs)) {
		if i >= len(ours) || i >= len(theirs) {
			return fmt.Sprintf("%d events, want %d: %v", len(ours), len(theirs), at(append(ours, theirs...), i))
		}
		a, b := ours[i].object, theirs[i].object
		if ours[i].kind == watch.Bookmark {
			a, b = versioned(a, 1), versioned(b, 1)
		}
		if ours[i].kind != theirs[i].kind || !equality.Semantic.DeepEqual(a, b) {
			return fmt.Sprintf("event %d is %s\n%v\nwant %s\n%v", i, ours[i].short(), a, theirs[i].short(), b)
		}
	}
	return ""
}

// version returns the version of now.
func (c *cluster) version(t *testing.T) string {
	t.Helper()
	list, err := c.admin.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	must(t, err)
	return list.ResourceVersion
}

// testExpired compares the error of a watch from a version that is no longer known.
func testExpired(t *testing.T, c *cluster, g *gateway) {
	for _, q := range queries(nodes[0]) {
		client := c.clientOf(t, q)
		c.isServed(t, g, client, q)
		g.uninterrupted(t, func() string { return c.compareExpired(t, g, client, q) })
	}
}

func (c *cluster) compareExpired(t *testing.T, g *gateway, client *http.Client, q query) string {
	t.Helper()
	before := g.served(q.resource, "watch")
	path := q.path + "&watch=true&resourceVersion=1"
	ours, theirs := collectBoth(stream(t, client, g.address, path), stream(t, client, c.Servers[0], path), patience, func(a, b []event) bool {
		return len(a) > 0 && len(a) == len(b)
	})
	if g.served(q.resource, "watch") != before+1 {
		return fmt.Sprintf("the watch %s was forwarded", path)
	}
	if len(ours) != 1 || len(theirs) != 1 || ours[0].kind != theirs[0].kind {
		return fmt.Sprintf("%s: %v and %v, want one error each", path, ours, theirs)
	}
	for _, one := range []event{ours[0], theirs[0]} {
		status := one.object.(*metav1.Status)
		status.Message = strings.SplitAfter(status.Message, "(")[0]
	}
	if !equality.Semantic.DeepEqual(ours[0].object, theirs[0].object) {
		return fmt.Sprintf("the error is\n%v\nwant\n%v", ours[0].object, theirs[0].object)
	}
	return ""
}

// testEnd looks at the bookmark before the end of a watch, and at its header.
func testEnd(t *testing.T, c *cluster, g *gateway) {
	client := c.kubelet(t, nodes[0])
	g.uninterrupted(t, func() string {
		// A busy machine may need longer for a change than the watch lasts.
		for timeout := 6 * time.Second; ; timeout *= 2 {
			if late, wrong := c.compareEnd(t, g, client, timeout); wrong == "" || !late || timeout > startTimeout {
				return wrong
			}
		}
	})
}

// compareEnd compares watches with a timeout of some seconds, and returns what is wrong, and whether the changes were late for them.
func (c *cluster) compareEnd(t *testing.T, g *gateway, client *http.Client, timeout time.Duration) (late bool, wrong string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout+startTimeout)
	defer cancel()
	start := time.Now()
	path := fmt.Sprintf("%s&watch=true&allowWatchBookmarks=true&timeoutSeconds=%d&resourceVersion=%s", queries(nodes[0])[0].path, int(timeout.Seconds()), c.version(t))
	ours, err := get(ctx, client, g.address, path)
	must(t, err)
	defer ours.Body.Close()
	theirs, err := get(ctx, client, c.Servers[0], path)
	must(t, err)
	defer theirs.Body.Close()
	for name := range theirs.Header {
		if !strings.HasPrefix(name, "X-Kubernetes-Pf") && ours.Header.Get(name) == "" {
			return false, fmt.Sprintf("the header has no %s", name)
		}
	}
	if ours.Header.Get("Content-Type") != theirs.Header.Get("Content-Type") {
		return false, fmt.Sprintf("Content-Type %q, want %q", ours.Header.Get("Content-Type"), theirs.Header.Get("Content-Type"))
	}
	last := c.mark(t).of("pods", nodes[0])
	// The bookmark comes two seconds before the end.
	late = time.Since(start) > timeout/2
	events := readAll(ours.Body)
	if took := time.Since(start); ctx.Err() != nil || took < timeout-time.Second {
		return false, fmt.Sprintf("the watch took %v, want %v", took, timeout)
	}
	others := readAll(theirs.Body)
	if len(others) == 0 || others[len(others)-1].kind != watch.Bookmark {
		return true, fmt.Sprintf("the watch at the API server has no bookmark at its end: %v", others)
	}
	if len(events) < 2 || events[len(events)-1].kind != watch.Bookmark || events[len(events)-1].version < last {
		return late, fmt.Sprintf("the last event is not a bookmark: %v", events)
	}
	// The versions of the two caches may differ.
	got, want := versioned(events[len(events)-1].object, 1), versioned(others[len(others)-1].object, 1)
	if !equality.Semantic.DeepEqual(got, want) {
		return false, fmt.Sprintf("the bookmark is %v, want %v", got, want)
	}
	return false, ""
}

// readAll reads events until the end.
func readAll(reader io.Reader) []event {
	var events []event
	for {
		next, err := read(reader)
		if err != nil {
			return events
		}
		events = append(events, next)
	}
}

// testPermissions compares who may read what with random users and requests.
func testPermissions(t *testing.T, c *cluster, g *gateway, source *rand.Rand) {
	type user struct {
		name   string
		groups []string
	}
	users := []user{
		{"system:node:w-0", []string{"system:nodes"}}, {"system:node:w-1", []string{"system:nodes", "other"}},
		{"system:node:", []string{"system:nodes"}}, {"system:node:w-0", []string{"other"}}, {"w-0", []string{"system:nodes"}},
		{"system:node:none", []string{"system:nodes"}}, {proxy, nil}, {controllerManager, nil}, {leaseReader, nil}, {"somebody", nil}, {"admin", []string{"system:masters"}},
	}
	clients := make([]*http.Client, len(users))
	for i, user := range users {
		clients[i] = c.client(t, user.name, user.groups...)
	}
	var paths []string
	for _, node := range []string{"w-0", "w-1", "none"} {
		for _, q := range queries(node) {
			paths = append(paths, q.path)
		}
	}
	paths = append(paths, "/api/v1/pods?", "/api/v1/nodes?", "/api/v1/services?", "/apis/discovery.k8s.io/v1/endpointslices?",
		"/apis/certificates.k8s.io/v1/podcertificaterequests?", "/api/v1/namespaces/default/pods?fieldSelector=spec.nodeName%3Dw-0",
		"/api/v1/secrets?", "/api/v1/secrets?fieldSelector=metadata.name%3Dof-w-0", "/api/v1/namespaces/default/configmaps?",
		"/api/v1/namespaces/kube-system/secrets?fieldSelector=metadata.name%3Dof-w-0", "/api/v1/nodes?fieldSelector=metadata.name%3D..",
		strings.Replace(namespacedLeasesPath, namespace, "kube-node-lease", 1))
	allowed := 0
	count := number(t, "NODE_PATH_REQUESTS", 2000)
	for range count {
		i := source.IntN(len(users))
		path := paths[source.IntN(len(paths))] + "&resourceVersion=0"
		if source.IntN(2) == 0 {
			path += "&watch=true"
		}
		ours, theirs := status(t, clients[i], g.address, path), status(t, clients[i], c.Servers[0], path)
		if ours != theirs {
			t.Fatalf("%v %s: status %d, want %d", users[i], path, ours, theirs)
		}
		if ours == http.StatusOK {
			allowed++
		}
	}
	t.Logf("%d of %d requests were allowed", allowed, count)
	if allowed == 0 || allowed == count {
		t.Error("nothing was compared")
	}
}

// testStart begins watches as client-go does: an API server sends the state of now, and the gateway what follows.
func testStart(t *testing.T, c *cluster, g *gateway) {
	for _, q := range queries(nodes[0]) {
		client := c.clientOf(t, q)
		c.isServed(t, g, client, q)
		g.uninterrupted(t, func() string { return c.compareStart(t, g, client, q) })
	}
}

func (c *cluster) compareStart(t *testing.T, g *gateway, client *http.Client, q query) string {
	t.Helper()
	before, watches := g.continued(q.resource), c.serverWatches(g)
	// Informers of client-go send the time twice.
	path := q.path + "&watch=true&allowWatchBookmarks=true&timeout=10m0s&timeoutSeconds=600" + initialEvents
	ours, theirs := stream(t, client, g.address, path), stream(t, client, c.Servers[0], path)
	if !soon(func() bool { return g.continued(q.resource) == before+1 }) {
		return "the gateway does not go on with " + path
	}
	last := c.mark(t).of(q.resource, q.node)
	a, b := collectBoth(ours, theirs, patience, func(a, b []event) bool {
		return len(ownLeases(a)) == len(ownLeases(b)) && hasVersion(a, last) && hasVersion(b, last)
	})
	if differs := difference(ownLeases(a), ownLeases(b)); differs != "" {
		return fmt.Sprintf("%s: %s", path, differs)
	}
	if now := 0; !soon(func() bool { now = c.serverWatches(g); return now == watches }) {
		return fmt.Sprintf("%s: the API servers have %d watches of clients, %d before", path, now, watches)
	}
	return ""
}

// soon waits for a condition, and returns whether it became true.
func soon(condition func() bool) bool {
	for deadline := time.Now().Add(startTimeout); !condition(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// ownLeases removes bookmarks, except the one after the initial events, and Leases that others change. The components of the
// cluster renew theirs at any time, so that two watches may begin with different ones.
func ownLeases(events []event) []event {
	return slices.DeleteFunc(withoutBookmarks(events), func(e event) bool {
		lease, is := e.object.(*coordinationv1.Lease)
		return is && e.kind != watch.Bookmark && lease.Namespace != namespace
	})
}

// testBehind begins a watch at a version that the cache of a quiet resource does not have yet: an API server begins it.
func testBehind(t *testing.T, c *cluster, g *gateway) {
	client := c.kubelet(t, nodes[0])
	must(t, c.annotateNode(context.Background(), nodes[0]))
	q := queries(nodes[0])[4]
	g.uninterrupted(t, func() string {
		before := g.continued(q.resource)
		path := q.path + "&watch=true&allowWatchBookmarks=true&resourceVersion=" + c.version(t) + initialEvents
		ours, theirs := collectBoth(stream(t, client, g.address, path), stream(t, client, c.Servers[0], path), patience, func(a, b []event) bool {
			return len(withoutBookmarks(a)) > 0 && haveSameLength(a, b)
		})
		if differs := difference(withoutBookmarks(ours), withoutBookmarks(theirs)); differs != "" {
			return differs
		}
		if !soon(func() bool { return g.continued(q.resource) == before+1 }) {
			return "the gateway did not go on with " + path
		}
		return ""
	})
}

// withoutBookmarks removes bookmarks except the one after the initial events. kube-apiserver sends a further one soon after
// that, if there were changes.
func withoutBookmarks(events []event) []event {
	return slices.DeleteFunc(slices.Clone(events), func(e event) bool {
		accessor, err := meta.Accessor(e.object)
		return err == nil && e.kind == watch.Bookmark && accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] == ""
	})
}

// serverWatches returns how many watches of the gateway's clients the API servers have.
func (c *cluster) serverWatches(g *gateway) int { return g.metric("kube_gateway_server_watches") }

// testForwarded counts requests that must reach an API server.
func testForwarded(t *testing.T, c *cluster, g *gateway) {
	client := c.kubelet(t, nodes[0])
	pods := queries(nodes[0])[0].path
	for reason, path := range map[string]string{
		"consistent": pods, "form": pods + "&resourceVersion=0&resourceVersionMatch=Exact", "behind": pods + "&resourceVersion=999999999",
		"identity": "/api/v1/pods?fieldSelector=spec.nodeName%3Dw-1&resourceVersion=0",
	} {
		name := `kube_gateway_node_path_reads_total{reason="` + reason + `",resource="pods"`
		g.uninterrupted(t, func() string {
			before := g.metric(name)
			status(t, client, g.address, path)
			if g.metric(name) != before+1 {
				return fmt.Sprintf("%s was not forwarded for the reason %s", path, reason)
			}
			return ""
		})
	}
}

// testSlow watches without reading, until the gateway ends the watch. What was sent until then has no gap, and the client goes
// on after it. Another client gets everything meanwhile.
func testSlow(t *testing.T, c *cluster, g *gateway) {
	pods := c.record(t, "/registry/pods/")
	q := queries(nodes[0])[0]
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	fast := &watcher{name: "fast", addresses: []string{g.address}, path: q.path, client: c.kubelet(t, nodes[0])}
	following.Go(func() { fast.follow(ctx, pods.start) })
	unread := stream(t, c.kubelet(t, nodes[0]), g.address, fmt.Sprintf("%s&watch=true&resourceVersion=%d", q.path, pods.start))
	large := strings.Repeat("x", 100<<10)
	pod, err := c.admin.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "large"}, Spec: corev1.PodSpec{NodeName: nodes[0], Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	// More than Go's client takes without being read.
	for i := range 100 {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"large":"%d%s"}}}`, i, large)
		pod, err = c.admin.CoreV1().Pods(namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		must(t, err)
	}
	version, err := strconv.ParseInt(pod.ResourceVersion, 10, 64)
	must(t, err)
	testcluster.Eventually(t, settleTimeout, "the other client gets everything", func() bool { return fast.has(version) })
	seen := readAll(unread)
	if len(seen) == 0 || seen[len(seen)-1].version >= version {
		t.Fatalf("the watch was not ended: %d events", len(seen))
	}
	slow := &watcher{name: "slow", addresses: fast.addresses, path: q.path, client: fast.client, seen: seen}
	following.Go(func() { slow.follow(ctx, seen[len(seen)-1].version) })
	testcluster.Eventually(t, settleTimeout, "the slow client gets everything", func() bool { return slow.has(version) })
	cancel()
	following.Wait()
	changes := pods.until(t, version)
	for _, w := range []*watcher{fast, slow} {
		count := pods.check(t, w.name, w.seen, selects("pods", nodes[0]), slices.DeleteFunc(slices.Clone(changes), func(c change) bool { return c.revision > w.last }))
		t.Logf("%s: %d changes, %d of them before its first watch ended", w.name, count, len(seen))
	}
}
