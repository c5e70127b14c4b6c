package storecluster

import (
	"context"
	"slices"
	"testing"
	"time"
)

// TestPartition cuts the leader off. The others must elect another leader and write, and the old one must not answer a
// linearizable read. It also shows that the paths of the network are really cut.
func TestPartition(t *testing.T) {
	cluster, network := start(t, readSettings(t))
	if network == nil {
		t.Skip("partitions need network namespaces, and so root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	leader, err := cluster.Leader(ctx)
	must(t, err)
	before, err := leader.Status(ctx)
	must(t, err)
	number := slices.Index(cluster.Members, leader)
	other := cluster.Members[(number+1)%len(cluster.Members)]
	must(t, network.Cut(network.Isolate(number)...))
	for {
		if status, err := other.Status(ctx); err == nil && status.Leader != 0 && status.Leader != before.ID {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("%s sees no other leader than %x, which is cut off", other.Name, before.ID)
		}
		time.Sleep(10 * time.Millisecond)
	}
	_, err = dial(t, other.ClientURL).Put(ctx, "key", "value")
	must(t, err)
	reading, stop := context.WithTimeout(ctx, 2*election)
	defer stop()
	if answer, err := dial(t, leader.ClientURL).Get(reading, "key"); err == nil {
		t.Fatalf("the leader that is cut off answered a linearizable read with %v", answer.Kvs)
	}
	must(t, network.Heal())
	must(t, cluster.AwaitHealthy(ctx))
	answer, err := dial(t, leader.ClientURL).Get(ctx, "key")
	must(t, err)
	if len(answer.Kvs) != 1 || string(answer.Kvs[0].Value) != "value" {
		t.Fatalf("after the path was restored, the key is %v at the member that was cut off", answer.Kvs)
	}
}
