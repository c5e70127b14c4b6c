package storecluster

import (
	"context"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
)

// TestMajorityLost kills more members than may fail. The store must not acknowledge a write then. Members with a disk serve
// again after they were started, with everything that was acknowledged; members without a disk never do, because nobody
// knows whether the survivors have everything.
func TestMajorityLost(t *testing.T) {
	s := readSettings(t)
	cluster, _ := start(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	store := dial(t, cluster.Endpoints()...)
	_, err := store.Put(ctx, "key", "before")
	must(t, err)
	lost := cluster.Members[:cluster.Tolerated()+1]
	for _, m := range lost {
		m.Kill()
	}
	mustNotWrite(t, cluster)
	for _, m := range lost {
		must(t, m.Start())
	}
	if cluster.Diskless() {
		mustNotWrite(t, cluster)
		return
	}
	must(t, cluster.AwaitHealthy(ctx))
	answer, err := store.Get(ctx, "key")
	must(t, err)
	if len(answer.Kvs) != 1 || string(answer.Kvs[0].Value) != "before" {
		t.Fatalf("the key is %v after the members were started again, want the value that was acknowledged", answer.Kvs)
	}
	_, err = store.Put(ctx, "key", "after")
	must(t, err)
}

// mustNotWrite checks that no member acknowledges a write for some election timeouts.
func mustNotWrite(t *testing.T, cluster *storemembers.Cluster) {
	t.Helper()
	for _, m := range cluster.Members {
		ctx, cancel := context.WithTimeout(t.Context(), 2*election)
		_, err := dial(t, m.ClientURL).Put(ctx, "key", "during")
		cancel()
		if err == nil {
			t.Fatalf("%s acknowledged a write although a majority is lost", m.Name)
		}
	}
	time.Sleep(election)
}
