package kube

import (
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// testLease returns the Lease of a node, renewed at a time before now.
func testLease(node, holder string, age time.Duration) *coordinationv1.Lease {
	renewed := metav1.NewMicroTime(time.Now().Add(-age))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: corev1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed, LeaseDurationSeconds: new(int32(40))},
	}
}

// testNodes returns a metadata client that lists nodes on pages of one node each, and counts the lists. The
// tracker of the fake client does not support pages.
func testNodes(t *testing.T, lists *int, nodes ...metav1.PartialObjectMetadata) metadata.Interface {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client := metadatafake.NewSimpleMetadataClient(scheme)
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		page := &metav1.List{Items: []runtime.RawExtension{{Object: &nodes[*lists%len(nodes)]}}}
		if *lists++; *lists%len(nodes) > 0 {
			page.Continue = "next"
		}
		return true, page, nil
	})
	return client
}

func testNode(name string, annotations map[string]string) metav1.PartialObjectMetadata {
	return metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
	}
}

// TestOnlyUnexpiredLeasesOfSimulatorsAreReleased also checks that a released Lease keeps its renew time.
func TestOnlyUnexpiredLeasesOfSimulatorsAreReleased(t *testing.T) {
	client := fake.NewClientset(
		testLease("of-ended-kwok", "host_1234", 10*time.Second), testLease("expired", "host_1234", 41*time.Second),
		testLease("of-ended-node-sim", "of-ended-node-sim", 10*time.Second), testLease("second-of-node-sim", "second-of-node-sim", 10*time.Second),
		testLease("of-kubelet", "of-kubelet", 10*time.Second), testLease("other-annotation", "other-annotation", 10*time.Second),
		testLease("without-node", "without-node", 10*time.Second))
	simulated, lists := map[string]string{SimulatedNodeAnnotation: SimulatedNodeValue}, 0
	nodes := []metav1.PartialObjectMetadata{
		testNode("of-ended-node-sim", simulated), testNode("of-kubelet", nil),
		testNode("other-annotation", map[string]string{SimulatedNodeAnnotation: "real"}), testNode("second-of-node-sim", simulated),
	}
	if err := releaseNodeLeases(t.Context(), client, testNodes(t, &lists, nodes...)); err != nil {
		t.Fatal(err)
	}
	left, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var released []string
	for _, lease := range left.Items {
		if lease.Spec.HolderIdentity == nil && lease.Spec.RenewTime != nil {
			released = append(released, lease.Name)
		}
	}
	slices.Sort(released)
	if want := []string{"of-ended-kwok", "of-ended-node-sim", "second-of-node-sim"}; !slices.Equal(released, want) {
		t.Errorf("releaseNodeLeases() released %q, want %q", released, want)
	}
	if lists != len(nodes) {
		t.Errorf("the nodes were listed with %d requests, want one list of %d pages", lists, len(nodes))
	}
}

// TestNodesAreNotListedForLeasesOfKwok checks that a restart of kwok does not cost a list of all nodes.
func TestNodesAreNotListedForLeasesOfKwok(t *testing.T) {
	lists := 0
	client := fake.NewClientset(
		testLease("node-1", "host_1234", time.Second), testLease("node-2", "node-2", 41*time.Second),
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "without-holder", Namespace: corev1.NamespaceNodeLease}})
	if err := releaseNodeLeases(t.Context(), client, testNodes(t, &lists, testNode("node-1", nil))); err != nil || lists > 0 {
		t.Errorf("releaseNodeLeases() = %v with %d lists of nodes, want nil without a list", err, lists)
	}
}

func TestBootstrapManifestIsWellFormed(t *testing.T) {
	objects, err := decodeAll(bootstrapManifest)
	if err != nil || len(objects) != 18 {
		t.Fatalf("decodeAll() = %d objects, %v, want 18, nil", len(objects), err)
	}
	for _, object := range objects {
		if object.GetKind() == "" || object.GetName() == "" {
			t.Errorf("object %v lacks a kind or a name", object)
		}
	}
}
