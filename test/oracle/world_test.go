package oracle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// world is a set of random objects in a cluster, about which the scheduler decides pod by pod. The test is
// the only other writer. Because choices between equal nodes are random, a seed repeats the nodes and the
// pending pods, but not always the pods that are already on the nodes.
type world struct {
	t        *testing.T
	ctx      context.Context
	cluster  *cluster
	client   kubernetes.Interface
	observer *observer
	settings settings
	mode     string
	seed     uint64
	// rand is the generator of the next decision or change. Each has its own, so that it does not depend
	// on what happened before.
	rand *rand.Rand
	// number is the number of the current decision. lastNumber is that of the newest node or pod.
	number, lastNumber int
	// crowded worlds have small nodes and many pods, so that preemption is frequent.
	crowded bool
	// names are those of the nodes, and removedNames those of the nodes that were deleted.
	names, removedNames []string
	// lastRoom is the last change that was made so that a pending pod fits; "" if none was found.
	lastRoom string
	// withPorts are the nodes on which a pod with host ports was put without a scheduler.
	withPorts map[string]bool
	// provisioned are the claims for which actAsProvisioner has created a volume.
	provisioned map[string]bool
	tally       *tally
}

// tally counts what happened in all worlds of one mode.
type tally struct{ decisions, placed, preempted, pending, wrong, refused, batches, retried, beside int }

func newWorld(t *testing.T, c *cluster, o *observer, s settings, mode string, seed uint64, counts *tally) *world {
	return &world{t: t, ctx: t.Context(), cluster: c, client: c.client, observer: o, settings: s, mode: mode, seed: seed, tally: counts, provisioned: map[string]bool{}, withPorts: map[string]bool{}}
}

// run creates the objects, lets the scheduler decide, and removes all objects.
func (w *world) run() {
	w.rand = rand.New(rand.NewPCG(w.seed, 0))
	started := time.Now()
	defer func() {
		w.clear()
		w.t.Logf("%s after %.0f s: %+v", w.describe(), time.Since(started).Seconds(), *w.tally)
	}()
	w.populate()
	for w.number = 1; w.number <= w.settings.decisions; w.number++ {
		w.rand = rand.New(rand.NewPCG(w.seed, uint64(w.number)))
		w.change()
		w.step()
	}
}

// step makes one decision: about a new pod, several equal ones, or one that a gate has held back.
func (w *world) step() {
	gated := w.gatedPods()
	switch n := w.rand.IntN(100); {
	case n < 8:
		w.decideBatch()
	case n < 14:
		w.addGatedPod()
		w.decide()
	case n < 22 && len(gated) > 0:
		w.ungate(pick(w, gated...))
	default:
		w.decide()
	}
}

// describe returns the decision that is under way, for messages.
func (w *world) describe() string {
	return fmt.Sprintf("%s, seed %d, decision %d", w.mode, w.seed, w.number)
}

// chance returns true with a probability in percent.
func (w *world) chance(percent int) bool { return w.rand.IntN(100) < percent }

// pick returns a random element.
func pick[T any](w *world, from ...T) T { return from[w.rand.IntN(len(from))] }

func (w *world) must(err error) { w.t.Helper(); must(w.t, err) }

// populate creates nodes and everything else, and waits until the scheduler has it.
func (w *world) populate() {
	w.crowded = w.seed%3 != 1
	w.addNamespaces()
	w.addVolumes()
	w.addWorkloads()
	w.addBudgets()
	for _, namespace := range namespaces {
		w.createResourceClaim(namespace, sharedClaim)
	}
	w.awaitClaims()
	nodes, perNode := 5+w.rand.IntN(26), 1
	if w.crowded {
		nodes, perNode = 5+w.rand.IntN(8), 8
	}
	for range nodes {
		w.addNode()
	}
	if w.chance(50) {
		w.addZoneDevices()
	}
	pods := nodes * perNode
	for range pods {
		w.addRunningPod(pick(w, w.names...))
	}
	running := len(w.observer.observe().pods)
	w.settle(settleWorld)
	w.cluster.awaitReplicas(w.t, len(w.names), running)
}

// addRunningPod creates a pod that is on a node without the help of a scheduler.
func (w *world) addRunningPod(node string) {
	pod := w.randomPod()
	pod.Spec.NodeName = node
	if w.withPorts[node] {
		// Two pods with one host port are never on one node, and kube-scheduler forgets the port as soon as one
		// of them is gone.
		pod.Spec.Containers[0].Ports = nil
	}
	w.withPorts[node] = w.withPorts[node] || len(pod.Spec.Containers[0].Ports) > 0
	if w.chance(70) {
		pod.Spec.PriorityClassName = "low"
	}
	if created := w.create(pod); created != nil {
		w.start(created)
	}
}

// create creates a pod. It returns nil if the API server refuses the pod as invalid.
func (w *world) create(pod *v1.Pod, dryRun ...string) *v1.Pod {
	created, err := w.client.CoreV1().Pods(pod.Namespace).Create(w.ctx, pod, metav1.CreateOptions{DryRun: dryRun})
	if err != nil && invalid(err) {
		w.tally.refused++
		w.t.Logf("%s: the API server refuses the pod: %v", w.describe(), err)
		return nil
	}
	w.must(err)
	return created
}

// sprintf formats the body of a request.
func sprintf(format string, args ...any) []byte { return fmt.Appendf(nil, format, args...) }
