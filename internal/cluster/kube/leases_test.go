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
		want  bool
	}{
		{"of a kwok that has just ended", lease("host_1234", 10*time.Second), true},
		{"that has expired", lease("host_1234", 41*time.Second), false},
		{"of a kubelet", lease("node-1", 10*time.Second), false},
		{"without holder", &coordinationv1.Lease{}, false},
	}
	for _, c := range cases {
		if got := heldByKwok(c.lease, now); got != c.want {
			t.Errorf("heldByKwok() of a Lease %s = %v, want %v", c.name, got, c.want)
		}
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
