package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	seededNodes = 30
	nodeKeys    = "/registry/minions/"
	leaseKeys   = "/registry/leases/kube-node-lease/"
	csiNodeKeys = "/registry/csinodes/"
	// rareReports is the flag of node-sim without which nodes report their status within five minutes.
	rareReports = "node-status-report-frequency=8000h"
)

// TestSeedStore checks on both stores and with both simulators that nodes that k1m writes into the store equal those that
// the API server stores, and that no component changes them.
func TestSeedStore(t *testing.T) {
	t.Run("mem_etcd", func(t *testing.T) { seedStore(t, "mem_etcd", storedLeasesAreEqual) })
	t.Run("etcd", func(t *testing.T) { seedStore(t, "etcd", storedLeasesAreEqual) })
	nodeSim := []string{"--node-simulator", "node-sim", "--node-sim-arg", rareReports}
	t.Run("node-sim", func(t *testing.T) { seedStore(t, "mem_etcd", nodeSimObjectsAreEqual, nodeSim...) })
}

// seedStore seeds a cluster. ownedAreEqual compares the objects that nodes own.
func seedStore(t *testing.T, store string, ownedAreEqual func(*testing.T, *workspace, *clientv3.Client), flags ...string) {
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", "seeded") })
	up := append([]string{"up", "--name", "seeded", "--store", store, "--nodes", fmt.Sprint(seededNodes)}, flags...)
	started := time.Now()
	t.Log(w.succeed(t, append(up, "--seed-store")...).stdout)
	if s := w.status(t, "seeded"); s.Nodes.Ready != seededNodes || s.Nodes.NotReady != 0 {
		t.Fatalf("the nodes are %+v, want %d ready", s.Nodes, seededNodes)
	}
	keys := storeClient(t, w, "seeded")
	unchangedPutsKeepTheVersion(t, w)
	storedNodesAreEqual(t, w, keys)
	ownedAreEqual(t, w, keys)
	seedIsOnlyForEmptyStores(t, w, up)

	w.succeed(t, "pods", "create", "--name", "seeded", "--count", "20")
	// After this time, kube-controller-manager would have marked nodes without heartbeats.
	time.Sleep(time.Until(started.Add(time.Minute)))
	seededNodesAreUnchanged(t, keys)
	if s := w.status(t, "seeded"); s.Nodes.NotReady != 0 || s.Pods.ByPhase["Running"] != 20 {
		t.Errorf("after a minute the cluster is %+v, want all nodes ready and all pods running", s)
	}
}

// storeClient returns a client of the main store of a cluster, which uses the certificate of the API servers.
func storeClient(t *testing.T, w *workspace, name string) *clientv3.Client {
	t.Helper()
	return clientOfStore(t, w, name, "store")
}

// clientOfStore returns a client of the store with the given component name.
func clientOfStore(t *testing.T, w *workspace, name, store string) *clientv3.Client {
	t.Helper()
	pki := filepath.Join(w.clusterDir(name), "pki")
	tls, err := transport.TLSInfo{
		TrustedCAFile: filepath.Join(pki, "etcd", "ca.crt"),
		CertFile:      filepath.Join(pki, "apiserver-etcd-client.crt"), KeyFile: filepath.Join(pki, "apiserver-etcd-client.key"),
	}.ClientConfig()
	must(t, err)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{w.status(t, name).component(t, store).Address}, TLS: tls, Logger: zap.NewNop(),
	})
	must(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// unchangedPutsKeepTheVersion updates seeded nodes without a change. The API server writes an object only if its
// bytes differ from the stored ones, so equal versions mean that the seeded bytes are those that it encodes.
func unchangedPutsKeepTheVersion(t *testing.T, w *workspace) {
	t.Helper()
	client := w.client(t, "seeded")
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, node := range nodes.Items {
		updated, err := client.CoreV1().Nodes().Update(t.Context(), &node, metav1.UpdateOptions{})
		must(t, err)
		if updated.ResourceVersion != node.ResourceVersion {
			t.Errorf("an unchanged PUT of %s changed its version from %s to %s", node.Name, node.ResourceVersion, updated.ResourceVersion)
		}
		status, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), updated, metav1.UpdateOptions{})
		must(t, err)
		if status.ResourceVersion != node.ResourceVersion {
			t.Errorf("an unchanged PUT of the status of %s changed its version from %s to %s", node.Name, node.ResourceVersion, status.ResourceVersion)
		}
	}
}

// seededNodesAreUnchanged checks that each seeded node is still in its first version.
func seededNodesAreUnchanged(t *testing.T, keys *clientv3.Client) {
	t.Helper()
	response, err := keys.Get(t.Context(), nodeKeys+"node-", clientv3.WithPrefix())
	must(t, err)
	if len(response.Kvs) != seededNodes {
		t.Errorf("the store has %d nodes, want %d", len(response.Kvs), seededNodes)
	}
	for _, kv := range response.Kvs {
		if kv.Version != 1 {
			t.Errorf("%s was changed %d times: %s", kv.Key, kv.Version-1, kv.Value)
		}
	}
}

// storedNodesAreEqual creates nodes through the API and compares them with seeded ones.
func storedNodesAreEqual(t *testing.T, w *workspace, keys *clientv3.Client) {
	t.Helper()
	w.succeed(t, "nodes", "create", "--name", "seeded", "--count", "3", "--prefix", "api-")
	for i := range 3 {
		seeded := normalNode(t, first(t, keys, nodeKeys+fmt.Sprintf("node-%06d", i)))
		eventually(t, patience, "a node of the API equals a seeded one", func() error {
			created := normalNode(t, current(t, keys, nodeKeys+fmt.Sprintf("api-%06d", i)))
			if !bytes.Equal(created, seeded) {
				return fmt.Errorf("stored by the API server: %q\nseeded: %q", created, seeded)
			}
			return nil
		})
	}
	w.succeed(t, "nodes", "delete", "--name", "seeded", "--count", "3", "--prefix", "api-")
}

// storedLeasesAreEqual compares the seeded version of a Lease with one that kwok has written and that k1m has
// released, as it does before kwok is started.
func storedLeasesAreEqual(t *testing.T, w *workspace, keys *clientv3.Client) {
	t.Helper()
	w.succeed(t, "nodes", "create", "--name", "seeded", "--count", "1", "--prefix", "lease-")
	seeded := normalLease(t, first(t, keys, leaseKeys+"node-000000"))
	leases := w.client(t, "seeded").CoordinationV1().Leases(corev1.NamespaceNodeLease)
	release := []byte(`{"spec":{"holderIdentity":null}}`)
	// kwok takes the Lease again at its next renewal, which may be before the read.
	eventually(t, patience, "a released Lease equals a seeded one", func() error {
		_, err := leases.Patch(t.Context(), "lease-000000", types.MergePatchType, release, metav1.PatchOptions{FieldManager: "k1m"})
		must(t, err)
		released := normalLease(t, current(t, keys, leaseKeys+"lease-000000"))
		if !bytes.Equal(released, seeded) {
			return fmt.Errorf("stored by the API server: %q\nseeded: %q", released, seeded)
		}
		return nil
	})
	w.succeed(t, "nodes", "delete", "--name", "seeded", "--count", "1", "--prefix", "lease-")
}

// nodeSimObjectsAreEqual compares the seeded versions of a Lease and of a CSINode with those that node-sim has written.
// CSINodes are never changed, and of Leases only the time of the renewal, so their seeded versions are those that a renewal
// leaves.
func nodeSimObjectsAreEqual(t *testing.T, w *workspace, keys *clientv3.Client) {
	t.Helper()
	w.succeed(t, "nodes", "create", "--name", "seeded", "--count", "1", "--prefix", "owned-")
	seeded := first(t, keys, leaseKeys+"node-000000")
	for what, stored := range map[string][]byte{
		"created": first(t, keys, leaseKeys+"owned-000000"), "renewed": current(t, keys, leaseKeys+"node-000000"),
	} {
		if got, want := normalLease(t, stored), normalLease(t, seeded); !bytes.Equal(got, want) {
			t.Errorf("Lease that node-sim has %s: %q\nseeded: %q", what, got, want)
		}
	}
	created, csiNode := normalCSINode(t, current(t, keys, csiNodeKeys+"owned-000000")), normalCSINode(t, current(t, keys, csiNodeKeys+"node-000000"))
	if !bytes.Equal(created, csiNode) {
		t.Errorf("CSINode that node-sim has created: %q\nseeded: %q", created, csiNode)
	}
	w.succeed(t, "nodes", "delete", "--name", "seeded", "--count", "1", "--prefix", "owned-")
}

// TestSeededLeasesAreServed checks that kube-gateway serves the renewals of seeded nodes of node-sim from the store: from the
// first one on they change nothing but the time.
func TestSeededLeasesAreServed(t *testing.T) {
	const nodes = 60
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", "served") })
	config := filepath.Join(t.TempDir(), "gateway.yaml")
	must(t, os.WriteFile(config, []byte("nodePath: {leases: {mode: on, comparisons: 20}}\n"), 0o600))
	w.succeed(t, "up", "--name", "served", "--nodes", fmt.Sprint(nodes), "--seed-store", "--node-simulator", "node-sim",
		"--node-sim-arg", "lease-interval=2s", "--node-sim-arg", rareReports, "--gateway", "--gateway-config", config)
	renewals := func() (served, forwarded int, page string) {
		for name, value := range w.metricsAt(t, "served", w.gatewayMetrics(t, "served", "kube-gateway"), "kube_gateway_node_path_lease_renewals_total") {
			switch {
			case strings.Contains(name, `result="served"`):
				served += int(value)
			case strings.Contains(name, `reason="object"`), strings.Contains(name, `reason="content"`), strings.Contains(name, `reason="manager"`):
				forwarded += int(value)
			}
			page += fmt.Sprintln(name, value)
		}
		return served, forwarded, page
	}
	eventually(t, 90*time.Second, "renewals are served from the store", func() error {
		if served, _, page := renewals(); served < 5*nodes {
			return fmt.Errorf("%d are:\n%s", served, page)
		}
		return nil
	})
	if _, forwarded, page := renewals(); forwarded > 0 {
		t.Errorf("%d renewals of seeded Leases are not of kubelet's form:\n%s", forwarded, page)
	}
	if s := w.status(t, "served"); s.Nodes.Ready != nodes {
		t.Errorf("the nodes are %+v, want %d ready", s.Nodes, nodes)
	}
	sim := w.metrics(t, "served", "node-sim", "node_sim_requests_total")
	for name, value := range sim {
		if !strings.Contains(name, `verb="update"`) && value > 0 {
			t.Errorf("node-sim sent requests other than renewals for nodes that exist: %s %v", name, value)
		}
	}
}

// first returns the first version of a key.
func first(t *testing.T, keys *clientv3.Client, key string) []byte {
	t.Helper()
	response, err := keys.Get(t.Context(), key)
	must(t, err)
	return get(t, keys, key, clientv3.WithRev(response.Kvs[0].CreateRevision))
}

// current returns the current value of a key.
func current(t *testing.T, keys *clientv3.Client, key string) []byte { return get(t, keys, key) }

func get(t *testing.T, keys *clientv3.Client, key string, options ...clientv3.OpOption) []byte {
	t.Helper()
	response, err := keys.Get(t.Context(), key, options...)
	must(t, err)
	if len(response.Kvs) != 1 {
		t.Fatalf("%s does not exist", key)
	}
	return response.Kvs[0].Value
}

// normalNode replaces name, UID and times in a stored node.
func normalNode(t *testing.T, stored []byte) []byte {
	t.Helper()
	node := decodeStored(t, stored).(*corev1.Node)
	normalMeta(&node.ObjectMeta)
	name := node.Labels[corev1.LabelHostname]
	node.Labels[corev1.LabelHostname] = node.Name
	// node-sim reports the name of the node in several fields.
	for i := range node.Status.Addresses {
		node.Status.Addresses[i].Address = strings.ReplaceAll(node.Status.Addresses[i].Address, name, node.Name)
	}
	info := &node.Status.NodeInfo
	for _, field := range []*string{&info.MachineID, &info.SystemUUID, &info.BootID} {
		*field = strings.ReplaceAll(*field, name, node.Name)
	}
	for i := range node.Status.Conditions {
		node.Status.Conditions[i].LastHeartbeatTime, node.Status.Conditions[i].LastTransitionTime = metav1.Time{}, metav1.Time{}
	}
	return encodeStored(t, node)
}

// normalLease replaces name, UIDs and times in a stored Lease.
func normalLease(t *testing.T, stored []byte) []byte {
	t.Helper()
	lease := decodeStored(t, stored).(*coordinationv1.Lease)
	if lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == lease.Name {
		lease.Spec.HolderIdentity = new("name")
	}
	normalOwned(&lease.ObjectMeta)
	lease.Spec.RenewTime = nil
	return encodeStored(t, lease)
}

// normalCSINode replaces name, UIDs and times in a stored CSINode.
func normalCSINode(t *testing.T, stored []byte) []byte {
	t.Helper()
	csiNode := decodeStored(t, stored).(*storagev1.CSINode)
	normalOwned(&csiNode.ObjectMeta)
	return encodeStored(t, csiNode)
}

// normalOwned replaces name, UIDs and times of an object that a node owns.
func normalOwned(meta *metav1.ObjectMeta) {
	normalMeta(meta)
	owner := &meta.OwnerReferences[0]
	for i := range meta.ManagedFields {
		fields := meta.ManagedFields[i].FieldsV1
		fields.SetRawString(strings.ReplaceAll(fields.GetRawString(), string(owner.UID), "uid"))
	}
	owner.Name, owner.UID = meta.Name, "uid"
}

func normalMeta(meta *metav1.ObjectMeta) {
	meta.Name, meta.UID, meta.CreationTimestamp = "name", "uid", metav1.Time{}
	for i := range meta.ManagedFields {
		meta.ManagedFields[i].Time = nil
	}
	// The API server sorts by time, then by manager.
	slices.SortFunc(meta.ManagedFields, func(a, b metav1.ManagedFieldsEntry) int { return strings.Compare(a.Manager, b.Manager) })
}

// decodeStored decodes the value of a key. Encoding the object must yield the same bytes.
func decodeStored(t *testing.T, stored []byte) runtime.Object {
	t.Helper()
	object, _, err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Decode(stored, nil, nil)
	must(t, err)
	if again := encodeStored(t, object); !bytes.Equal(again, stored) {
		t.Fatalf("%q is encoded as %q", stored, again)
	}
	return object
}

func encodeStored(t *testing.T, object runtime.Object) []byte {
	t.Helper()
	gvks, _, err := scheme.Scheme.ObjectKinds(object)
	must(t, err)
	object.GetObjectKind().SetGroupVersionKind(gvks[0])
	var encoded bytes.Buffer
	must(t, protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, &encoded))
	return encoded.Bytes()
}

// seedIsOnlyForEmptyStores also checks that the flag is not saved.
func seedIsOnlyForEmptyStores(t *testing.T, w *workspace, up []string) {
	t.Helper()
	remedy := "; omit the flag to create missing nodes through the API, or remove the cluster with `k1m down --name seeded`\n"
	refused := w.k1m(t, append(up, "--seed-store")...)
	if want := `k1m: cluster "seeded": --seed-store needs an empty store, but the cluster is running` + remedy; refused.code != 1 || refused.stderr != want {
		t.Errorf("up --seed-store of a running cluster: exit code %d, %q, want %q", refused.code, refused.stderr, want)
	}
	w.succeed(t, up...)
	w.succeed(t, "down", "--name", "seeded", "--keep-data")
	refused = w.k1m(t, append(up, "--seed-store")...)
	if refused.code != 1 || !strings.Contains(refused.stderr, "but the store is not empty: it has ") || !strings.HasSuffix(refused.stderr, remedy) {
		t.Errorf("up --seed-store of a cluster with data: exit code %d, %q", refused.code, refused.stderr)
	}
	w.assertNothingRuns(t)
	w.succeed(t, "up", "--name", "seeded")
}

// TestInterruptedSeedLeavesNothing interrupts `k1m up --seed-store` while it writes. A new cluster is removed, so
// the command can be repeated.
func TestInterruptedSeedLeavesNothing(t *testing.T) {
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down") })
	up := w.command(t.Context(), "up", "--store", storeKind(), "--nodes", "5000000", "--seed-store")
	started := time.Now()
	r := finishAfter(t, up, syscall.SIGINT, "the store writes nodes", func() bool {
		return len(w.clusters(t)) > 0 && time.Since(started) > 4*time.Second
	})
	if want := "k1m: interrupted before the cluster was complete; repeat the command\n"; r.code != 1 || r.stderr != want {
		t.Errorf("interrupted up: exit code %d, %q, want %q", r.code, r.stderr, want)
	}
	w.assertNothingRuns(t)
	if left := w.clusters(t); len(left) > 0 {
		t.Errorf("the interrupted command left %q", left)
	}
	if up := w.succeed(t, "up", "--store", storeKind(), "--nodes", "10", "--seed-store").stdout; !strings.Contains(up, "with 10 nodes") {
		t.Errorf("the repeated command printed %q", up)
	}
}
