package kube

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOnlyUnexpiredLeasesOfKwokAreReleased(t *testing.T) {
	now := time.Now()
	lease := func(holder string, age time.Duration) *coordinationv1.Lease {
		renewed := metav1.NewMicroTime(now.Add(-age))
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed, LeaseDurationSeconds: new(int32(40))},
		}
	}
	cases := []struct {
		name  string
		lease *coordinationv1.Lease
		held  bool
	}{
		{"of a kwok that exited 10 s ago", lease("host_1234", 10*time.Second), true},
		{"expired", lease("host_1234", 41*time.Second), false},
		{"of a kubelet", lease("node-1", 10*time.Second), false},
		{"without holder", &coordinationv1.Lease{}, false},
	}
	for _, c := range cases {
		if held := heldByKwok(c.lease, now); held != c.held {
			t.Errorf("heldByKwok of a Lease %s returned %v", c.name, held)
		}
	}
}

func TestBootstrapManifestIsWellFormed(t *testing.T) {
	objects, err := decodeAll(bootstrapManifest)
	if err != nil || len(objects) != 10 {
		t.Fatalf("bootstrap.yaml has %d objects, want 10; error %v", len(objects), err)
	}
	for _, object := range objects {
		if object.GetKind() == "" || object.GetName() == "" {
			t.Errorf("an object has no kind or no name: %v", object)
		}
	}
}
