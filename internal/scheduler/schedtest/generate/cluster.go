// Package generate generates random nodes, pods and other objects for tests that compare decisions with those of
// kube-scheduler.
package generate

import (
	"maps"
	"math/rand/v2"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Cluster generates random nodes and pods. The test adds to Nodes and Pods what it uses of them.
type Cluster struct {
	Rand *rand.Rand
	// Nodes are the nodes by name, and Pods the bound pods.
	Nodes map[string]*v1.Node
	Pods  map[types.UID]*v1.Pod
	// LastNumber is the number in the name of the newest node or pod.
	LastNumber int
	// OnlyBoundClaims is true if no pod uses a claim whose volume is created after the pod got a node.
	OnlyBoundClaims bool
}

// NewCluster returns a cluster without nodes.
func NewCluster(seed uint64) *Cluster {
	return &Cluster{Rand: rand.New(rand.NewPCG(seed, 0)), Nodes: map[string]*v1.Node{}, Pods: map[types.UID]*v1.Pod{}}
}

var (
	zones = []string{"a", "b", "c"}
	// Apps are the values of the label "app" of pods. There is a ReplicaSet for each.
	Apps = []string{"web", "db", "cache", "job"}
	// Namespaces are the namespaces of pods.
	Namespaces = []string{"default", "team-a", "team-b"}
)

// Chance returns true with a probability in percent.
func (c *Cluster) Chance(percent int) bool { return c.Rand.IntN(100) < percent }

// Pick returns a random element.
func Pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// RandomPod returns one of the bound pods; nil if there is none.
func (c *Cluster) RandomPod() *v1.Pod {
	if len(c.Pods) == 0 {
		return nil
	}
	return c.Pods[Pick(c.Rand, slices.Sorted(maps.Keys(c.Pods)))]
}
