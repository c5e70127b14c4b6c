package seed

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
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

func testObjects(t testing.TB) *objects {
	t.Helper()
	template, err := newTemplate(testNodes(t), 10, created)
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
	o, nodes := testObjects(t), testNodes(t)
	for number, name := range map[int]string{1: "node-000001", 5: "node-000005", 1_000_000: "node-1000000", 0: "x"} {
		o.set(name, number, "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002")
		node, err := settledNode(nodes.Make(name, number), o.node.UID, ttlSeconds(10), created)
		if err != nil {
			t.Fatal(err)
		}
		lease, err := releasedLease(node, o.lease.UID, created)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := encoded(t, o, o.node), encoded(t, o, node); got != want {
			t.Errorf("derived node %s = %q, want %q", name, got, want)
		}
		if got, want := encoded(t, o, o.lease), encoded(t, o, lease); got != want {
			t.Errorf("derived Lease %s = %q, want %q", name, got, want)
		}
	}
}

// TestSeededNodeNeedsNoWrites checks what the controllers and kwok look for in a node, and who owns its fields.
func TestSeededNodeNeedsNoWrites(t *testing.T) {
	stored, _, err := testObjects(t).encode("node-000007", 7)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(stored, "k8s\x00") {
		t.Errorf("stored bytes = %q…, want the prefix of protobuf", stored[:10])
	}
	object, _, err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Decode([]byte(stored), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	node := object.(*corev1.Node)
	if !bulk.NodeReady(node) || len(node.Status.Conditions) != 5 || len(node.Spec.Taints) > 0 || node.Status.Phase != corev1.NodeRunning {
		t.Errorf("node = %+v, want a Ready node without taints", node)
	}
	wantLabels := map[string]string{
		corev1.LabelHostname: "node-000007", corev1.LabelTopologyZone: "zone-1", "type": "kwok",
		corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", betaOSLabel: "linux", betaArchLabel: "amd64",
	}
	for key, want := range wantLabels {
		if got := node.Labels[key]; got != want || len(node.Labels) != len(wantLabels) {
			t.Errorf("label %s = %q of %d labels, want %q of %d", key, got, len(node.Labels), want, len(wantLabels))
		}
	}
	if got := node.Annotations[corev1.ObjectTTLAnnotationKey]; got != "0" {
		t.Errorf("TTL annotation = %q, want 0", got)
	}
	var managers []string
	for _, entry := range node.ManagedFields {
		managers = append(managers, entry.Manager+"/"+entry.Subresource)
		if entry.Time.Unix() != created.Unix() {
			t.Errorf("time of the fields of %s = %v, want %v", entry.Manager, entry.Time, created)
		}
	}
	if want := []string{"k1m/", "kube-controller-manager/", "kwok/status"}; !slices.Equal(managers, want) {
		t.Errorf("managers = %q, want %q", managers, want)
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
	o := testObjects(b)
	for b.Loop() {
		if _, _, err := o.encode("node-000001", 1); err != nil {
			b.Fatal(err)
		}
	}
}
