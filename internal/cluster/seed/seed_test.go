package seed

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
)

var created = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.UTC))

func testNodes(t testing.TB) *bulk.Nodes {
	t.Helper()
	nodes, err := bulk.NewNodes(bulk.DefaultNodeShape())
	if err != nil {
		t.Fatal(err)
	}
	return nodes
}

// testSimulators are all simulators, by name.
var testSimulators = map[string]Simulator{"kwok": Kwok(), "node-sim": NodeSim(60, "192.0.2.7")}

func testObjects(t testing.TB, simulator Simulator) *objects {
	t.Helper()
	template, err := newTemplate(testNodes(t), simulator, 10, created)
	if err != nil {
		t.Fatal(err)
	}
	return template.objects()
}

// encoded returns the stored bytes of an object.
func encoded(t testing.TB, o *objects, object runtime.Object) string {
	t.Helper()
	text, err := o.bytes(object)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestDerivedObjectsEqualReplayedOnes compares objects that are derived from the template with those for which
// all writes are replayed.
func TestDerivedObjectsEqualReplayedOnes(t *testing.T) {
	for simulatorName, simulator := range testSimulators {
		o, nodes := testObjects(t, simulator), testNodes(t)
		for number, name := range map[int]string{1: "node-000001", 5: "node-000005", 1_000_000: "node-1000000", 0: "x"} {
			o.set(name, number, uuid.NewUUID)
			node, err := settledNode(nodes.Make(name, number), o.node.UID, ttlSeconds(10), created, simulator)
			if err != nil {
				t.Fatal(err)
			}
			lease, err := settledLease(node, o.lease.UID, created, simulator)
			if err != nil {
				t.Fatal(err)
			}
			pairs := map[object]object{o.node: node, o.lease: lease}
			if simulator.isNodeSim {
				if pairs[o.csiNode], err = createdCSINode(node, o.csiNode.UID, created); err != nil {
					t.Fatal(err)
				}
			}
			if len(pairs) != simulator.keysPerNode() {
				t.Errorf("a node of %s has %d objects, want %d", simulatorName, len(pairs), simulator.keysPerNode())
			}
			for derived, replayed := range pairs {
				if got, want := encoded(t, o, derived), encoded(t, o, replayed); got != want {
					t.Errorf("%s: derived object %s = %q, want %q", simulatorName, name, got, want)
				}
			}
		}
	}
}

// decoded returns the object of stored bytes.
func decoded(t *testing.T, stored string) runtime.Object {
	t.Helper()
	if !strings.HasPrefix(stored, "k8s\x00") {
		t.Errorf("stored bytes = %q…, want the prefix of protobuf", stored[:10])
	}
	object, _, err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Decode([]byte(stored), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// managers returns the writers in managedFields. Their times must be that of the creation.
func managers(t *testing.T, o metav1.Object) []string {
	t.Helper()
	var managers []string
	for _, entry := range o.GetManagedFields() {
		managers = append(managers, entry.Manager+"/"+entry.Subresource)
		if entry.Time.Unix() != created.Unix() {
			t.Errorf("time of the fields of %s = %v, want %v", entry.Manager, entry.Time, created)
		}
	}
	return managers
}

// TestSeededNodeNeedsNoWrites checks what the controllers and the simulator look for in a node, and who owns its fields.
func TestSeededNodeNeedsNoWrites(t *testing.T) {
	wantLabels := map[string]string{
		corev1.LabelHostname: "node-000007", corev1.LabelTopologyZone: "zone-1", "type": "kwok",
		corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", betaOSLabel: "linux", betaArchLabel: "amd64",
	}
	for name, simulator := range testSimulators {
		stored, err := testObjects(t, simulator).encode("node-000007", 7)
		if err != nil {
			t.Fatal(err)
		}
		node := decoded(t, stored.node).(*corev1.Node)
		if !bulk.NodeReady(node) || len(node.Spec.Taints) > 0 || len(node.Status.Addresses) == 0 {
			t.Errorf("%s: node = %+v, want a Ready node without taints", name, node)
		}
		if !maps.Equal(node.Labels, wantLabels) {
			t.Errorf("%s: labels = %q, want %q", name, node.Labels, wantLabels)
		}
		if got := node.Annotations[corev1.ObjectTTLAnnotationKey]; got != "0" {
			t.Errorf("%s: TTL annotation = %q, want 0", name, got)
		}
		if got, want := managers(t, node), []string{"k1m/", "kube-controller-manager/", name + "/status"}; !slices.Equal(got, want) {
			t.Errorf("%s: managers of the node = %q, want %q", name, got, want)
		}
	}
}

// TestNodeSimOwnsItsObjects checks that node-sim is the only writer of Leases and CSINodes: kube-gateway renews no Lease that has
// another one.
func TestNodeSimOwnsItsObjects(t *testing.T) {
	stored, err := testObjects(t, NodeSim(60, "192.0.2.7")).encode("node-000007", 7)
	if err != nil {
		t.Fatal(err)
	}
	node, lease := decoded(t, stored.node).(*corev1.Node), decoded(t, stored.lease).(*coordinationv1.Lease)
	if *lease.Spec.HolderIdentity != node.Name || *lease.Spec.LeaseDurationSeconds != 60 {
		t.Errorf("Lease = %+v, want that node-000007 holds it for 60 s", lease.Spec)
	}
	if ip, info := node.Status.Addresses[0].Address, node.Status.NodeInfo; ip != "192.0.2.7" || info.MachineID != "node-sim-node-000007" {
		t.Errorf("address and machine = %s, %s", ip, info.MachineID)
	}
	for _, object := range []metav1.Object{lease, decoded(t, stored.csiNode).(*storagev1.CSINode)} {
		if got := managers(t, object); !slices.Equal(got, []string{"node-sim/"}) {
			t.Errorf("managers of %T = %q, want only node-sim", object, got)
		}
		if owner := object.GetOwnerReferences()[0]; object.GetName() != node.Name || owner.Name != node.Name || owner.UID != node.UID {
			t.Errorf("owner of the %T %s = %+v, want the node %s", object, object.GetName(), owner, node.UID)
		}
	}
}

func TestTTLFollowsTheSizeOfTheCluster(t *testing.T) {
	for nodes, want := range map[int]int{1: 0, 100: 0, 101: 15, 500: 15, 501: 30, 1000: 30, 1001: 60, 2000: 60, 2001: 300, 1_000_000: 300} {
		if got := ttlSeconds(nodes); got != want {
			t.Errorf("ttlSeconds(%d) = %d, want %d", nodes, got, want)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	for name, simulator := range testSimulators {
		b.Run(name, func(b *testing.B) {
			o := testObjects(b, simulator)
			for b.Loop() {
				if _, err := o.encode("node-000001", 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
