package replica

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestLeaderDoesNotWaitForOwnerThatCannotList starts two replicas of which one cannot list nodes. The leader moves
// its hash slots and schedules on all nodes.
func TestLeaderDoesNotWaitForOwnerThatCannotList(t *testing.T) {
	server, clients := schedtest.NewAPI(), 0
	for _, name := range []string{"a", "b", "c", "d"} {
		server.Put(schedtest.PlainNode(name, "1"))
	}
	server.OnClient = func(client *fake.Clientset) {
		if clients++; clients == 2 {
			client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("unreachable")
			})
		}
	}
	g := startReplicasOn(t, server, func(o *Options) { o.StallTimeout = 2 * time.Second }, make([]bool, 2))
	g.lead(0)
	for _, name := range []string{"first", "second", "third", "fourth"} {
		g.API.Put(schedtest.PlainPod(name, "1"))
		g.AwaitBound(name)
	}
	if owners := g.replicas[0].member.Table().Owners(); len(owners) != 1 || owners[0] != "replica-0" {
		t.Errorf("the owners of hash slots are %q, want only replica-0", owners)
	}
}
