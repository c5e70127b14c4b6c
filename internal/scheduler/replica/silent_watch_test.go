package replica

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// cutConnection is a connection to the API server that can be cut: requests fail, and watches deliver nothing until it
// is joined again.
type cutConnection struct {
	mu sync.Mutex
	// joined is closed when the connection works again; nil while it is not cut.
	joined chan struct{}
}

func (c *cutConnection) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joined == nil {
		c.joined = make(chan struct{})
	}
}

func (c *cutConnection) join() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joined != nil {
		close(c.joined)
		c.joined = nil
	}
}

func (c *cutConnection) broken() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.joined
}

// attach makes the lists and watches of a client use the connection.
func (c *cutConnection) attach(client *fake.Clientset) {
	inner := client.WatchReactionChain
	client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		for _, reactor := range inner {
			if !reactor.Handles(action) {
				continue
			}
			if handled, w, err := reactor.React(action); handled {
				if err != nil {
					return true, nil, err
				}
				return true, watch.Filter(w, func(event watch.Event) (watch.Event, bool) {
					if joined := c.broken(); joined != nil {
						<-joined
					}
					return event, true
				}), nil
			}
		}
		return false, nil, nil
	})
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		if c.broken() != nil {
			return true, nil, errors.New("the connection is cut")
		}
		return false, nil, nil
	})
}

// TestListOfSilentWatchIsNotUsed cuts the connection between one replica and the API server before a pod is bound that
// this replica watches. Then the leader restarts, which owns the node of the pod, and another replica leads. The node must
// not be used before its owner knows the pod again: otherwise a second pod gets the same room.
func TestListOfSilentWatchIsNotUsed(t *testing.T) {
	server, connection, clients := schedtest.NewAPI(), &cutConnection{}, 0
	server.OnClient = func(client *fake.Clientset) {
		if clients++; clients == 3 {
			connection.attach(client)
		}
	}
	g := startReplicasOn(t, server, func(*Options) {}, make([]bool, 3))
	t.Cleanup(connection.join)
	server.OnBind = func(pod *v1.Pod, _ string) (bool, error) {
		if pod.Name == g.uidWatchedBy("replica-2", "first") {
			connection.cut()
		}
		return true, nil
	}
	g.lead(0)
	g.API.Put(schedtest.PlainNode(g.uidWatchedBy("replica-0", "node"), "4"))
	first, second := g.uidWatchedBy("replica-2", "first"), g.uidWatchedBy("replica-1", "second")
	g.API.Put(schedtest.PlainPod(first, "4"))
	g.AwaitBound(first)
	g.restart(0)
	g.replicas[1].schedule()
	g.API.Put(schedtest.PlainPod(second, "4"))
	// All owners are ready at once if they use the list.
	time.Sleep(4 * time.Second)
	if node := g.API.Pod("default/" + second).Spec.NodeName; node != "" {
		t.Fatalf("pod %s is bound to node %s, which has no room", second, node)
	}
	connection.join()
	g.Sched, g.in = g.replicas[1].sched, g.replicas[1].in
	g.Eventually("the second replica leads and counts the first pod", func() error {
		if pods := g.replicas[0].holder.Counts().Pods; pods != 1 {
			return fmt.Errorf("the owner of the node has %d pods", pods)
		}
		return nil
	})
	g.API.Remove(g.API.Pod("default/" + first))
	g.AwaitBound(second)
}

// restart replaces a replica by a new process with its name and address.
func (g *group) restart(number int) {
	g.T.Helper()
	old := g.replicas[number]
	old.stop()
	listener, err := net.Listen("tcp", old.options.Self.Address)
	g.Must(err)
	g.replicas[number] = g.startReplica(old.options.Discovery.(membership.Addresses), old.options.Self, listener, func(*Options) {})
}

// uidWatchedBy returns a name with a prefix, for an object that a replica watches. The first objects of a test have their
// name as UID.
func (g *group) uidWatchedBy(replica, prefix string) string {
	for i := 0; ; i++ {
		if name := fmt.Sprintf("%s-%d", prefix, i); g.watcherOf(name) == replica {
			return name
		}
	}
}
