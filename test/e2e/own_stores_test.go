package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	ownStoreNodes = 20
	ownStorePods  = 10
	ownStoresFlag = "pods,events,leases=own"
)

// ownStoreOf has the component name of the store of each prefix of keys.
var ownStoreOf = map[string]string{
	"/registry/pods/": "store-pods", "/registry/events/": "store-events", "/registry/leases/": "store-leases",
	nodeKeys: "store", csiNodeKeys: "store", "/registry/namespaces/": "store", "/registry/serviceaccounts/": "store",
}

// TestOwnStores runs a cluster whose pods, events and Leases have stores of their own: seeded, with gateways that renew
// Leases in their store, with a store that is killed, stopped and started again, saved and restored.
func TestOwnStores(t *testing.T) {
	w := newWorkspace(t)
	t.Cleanup(func() {
		for _, name := range []string{"own", "copy"} {
			w.k1m(t, "down", "--name", name)
		}
	})
	startWithOwnStores(t, w)
	w.succeed(t, "pods", "create", "--name", "own", "--count", fmt.Sprint(ownStorePods))
	keysAreInTheirStores(t, w, "own")
	statusShowsOwnStores(t, w, "own")

	w.kill(t, "own", "store-pods")
	w.succeed(t, "pods", "create", "--name", "own", "--count", "5", "--prefix", "after-")
	keysAreInTheirStores(t, w, "own")

	w.succeed(t, "down", "--name", "own", "--keep-data")
	w.assertNothingRuns(t)
	otherOwnStoresAreRefused(t, w)
	file := filepath.Join(t.TempDir(), "own.k1m")
	t.Log(w.succeed(t, "snapshot", "save", "own", file).stdout)
	inspectOwnStores(t, w, file)
	w.succeed(t, "up", "--name", "own")
	if s := w.status(t, "own"); s.Pods.Total != ownStorePods+5 {
		t.Errorf("after a restart of the cluster there are %+v, want %d pods", s.Pods, ownStorePods+5)
	}
	w.succeed(t, "down", "--name", "own")

	w.succeed(t, "snapshot", "restore", "copy", file)
	w.succeed(t, "up", "--name", "copy")
	keysAreInTheirStores(t, w, "copy")
	s := w.status(t, "copy")
	for _, own := range s.Objects.OwnStores {
		if own.Revision < restoredBump {
			t.Errorf("the restored store of %s has revision %d, want a raised one", own.Resource, own.Revision)
		}
	}
	if s.Pods.Total != ownStorePods+5 || s.Nodes.Ready != ownStoreNodes {
		t.Errorf("the restored cluster has %+v and %+v", s.Pods, s.Nodes)
	}
	renewalsAreServed(t, w, "copy")
}

// startWithOwnStores starts a cluster with seeded nodes of node-sim, and with a gateway that renews Leases.
func startWithOwnStores(t *testing.T, w *workspace) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "gateway.yaml")
	must(t, os.WriteFile(config, []byte("nodePath: {leases: {mode: on, comparisons: 20}}\n"), 0o600))
	t.Log(w.succeed(t, "up", "--name", "own", "--store", storeKind(), "--store-for", ownStoresFlag, "--nodes", fmt.Sprint(ownStoreNodes), "--seed-store",
		"--node-simulator", "node-sim", "--node-sim-arg", "lease-interval=2s", "--node-sim-arg", rareReports, "--gateway", "--gateway-config", config).stdout)
}

// keysAreInTheirStores checks that each store has the keys of its resources, and no others.
func keysAreInTheirStores(t *testing.T, w *workspace, cluster string) {
	t.Helper()
	for _, store := range []string{"store", "store-pods", "store-events", "store-leases"} {
		client := clientOfStore(t, w, cluster, store)
		for prefix, owner := range ownStoreOf {
			// Events are written some time after their pods.
			eventually(t, patience, store+" has the keys of its resources", func() error {
				response, err := client.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
				must(t, err)
				if (response.Count > 0) != (store == owner) {
					return fmt.Errorf("%d keys with prefix %s, which belong to %s", response.Count, prefix, owner)
				}
				return nil
			})
		}
	}
}

func statusShowsOwnStores(t *testing.T, w *workspace, cluster string) {
	t.Helper()
	s := w.status(t, cluster)
	counts := map[string]int64{}
	for _, own := range s.Objects.OwnStores {
		counts[own.Resource] = own.Count
	}
	if counts["pods"] != ownStorePods || counts["leases"] < ownStoreNodes || counts["events"] == 0 || s.Objects.Count <= counts["pods"]+counts["leases"]+counts["events"] {
		t.Errorf("the status has %+v, want %d pods and the Leases of %d nodes", s.Objects, ownStorePods, ownStoreNodes)
	}
	text := w.succeed(t, "status", "--name", cluster).stdout
	for _, want := range []string{"own stores for events, leases, pods", fmt.Sprintf("of them %d pods in their own store", ownStorePods), "store-leases "} {
		if !strings.Contains(text, want) {
			t.Errorf("k1m status printed\n%s\nwant %q in it", text, want)
		}
	}
	if page := w.succeed(t, "metrics", "prometheus", "--name", cluster).stdout; !strings.Contains(page, "instance: store-pods") {
		t.Errorf("the Prometheus configuration has no store-pods:\n%s", page)
	}
}

// renewalsAreServed checks that the gateway accepts the own store of Leases, and writes renewals into it.
func renewalsAreServed(t *testing.T, w *workspace, cluster string) {
	t.Helper()
	eventually(t, patience, "the gateway renews Leases in their store", func() error {
		page := ""
		for name, value := range w.metricsAt(t, cluster, w.gatewayMetrics(t, cluster, "kube-gateway"), "kube_gateway_node_path") {
			page += fmt.Sprintln(name, value)
			if strings.HasPrefix(name, "_lease_renewals_total") && strings.Contains(name, `result="served"`) && value > 2*ownStoreNodes {
				return nil
			}
		}
		return fmt.Errorf("it does not:\n%s", page)
	})
}

// otherOwnStoresAreRefused starts a stopped cluster with other own stores, in which objects would be missing.
func otherOwnStoresAreRefused(t *testing.T, w *workspace) {
	t.Helper()
	r := w.k1m(t, "up", "--name", "own", "--store-for", "pods=own")
	want := "has own stores for events, leases, pods, and the settings have own stores for pods: k1m does not move objects between stores"
	if r.code != 1 || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("up with other own stores: exit code %d, %q, want one line with %q", r.code, r.stderr, want)
	}
	w.assertNothingRuns(t)
}

func inspectOwnStores(t *testing.T, w *workspace, file string) {
	t.Helper()
	text := w.succeed(t, "snapshot", "inspect", file).stdout
	for _, want := range []string{"Format:      2\n", fmt.Sprintf("of them %d pods in their own store", ownStorePods+5), fmt.Sprintf("Pods:        %d\n", ownStorePods+5)} {
		if !strings.Contains(text, want) {
			t.Errorf("snapshot inspect printed\n%s\nwant %q in it", text, want)
		}
	}
}
