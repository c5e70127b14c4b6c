package oracle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
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
	names   []string // of the nodes
	tally   *tally
}

// tally counts what happened in all worlds of one mode.
type tally struct{ decisions, placed, preempted, pending, wrong, refused int }

func newWorld(t *testing.T, c *cluster, o *observer, s settings, mode string, seed uint64, counts *tally) *world {
	return &world{t: t, ctx: t.Context(), cluster: c, client: c.client, observer: o, settings: s, mode: mode, seed: seed, tally: counts}
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
	w.crowded = w.chance(60)
	w.addNamespaces()
	w.addVolumes()
	w.addWorkloads()
	w.addBudgets()
	w.awaitClaims()
	nodes, perNode := 5+w.rand.IntN(26), 1
	if w.crowded {
		nodes, perNode = 5+w.rand.IntN(8), 5
	}
	for range nodes {
		w.addNode()
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
	if w.chance(70) {
		pod.Spec.PriorityClassName = "low"
	}
	if created := w.create(pod); created != nil {
		w.start(created.Namespace, created.Name)
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

// start sets the start time of a pod, as a kubelet does. Preemption compares these times, which differ here
// for all pods, so that only one set of victims is right.
func (w *world) start(namespace, name string) {
	started := time.Unix(int64(w.rand.IntN(1<<30)), 0).UTC().Format(time.RFC3339)
	patch := fmt.Appendf(nil, `{"status":{"phase":"Running","startTime":%q}}`, started)
	_, err := w.client.CoreV1().Pods(namespace).Patch(w.ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	w.must(err)
}

// change sometimes changes the world between two decisions.
func (w *world) change() {
	switch n := w.rand.IntN(100); {
	case n < 20:
		for range 1 + w.rand.IntN(3) {
			w.removeRunningPod()
		}
		return // decide waits long enough for pods
	case n < 23:
		w.addNode()
	case n < 25:
		w.removeNode()
	case n < 29:
		w.changeNode()
	case n < 31:
		w.changeNamespace()
	default:
		return
	}
	w.settle(settleWorld)
}

func (w *world) removeRunningPod() {
	if pods := w.observer.observe().assigned(); len(pods) > 0 {
		pod := pick(w, pods...)
		w.deletePod(pod.Namespace, pod.Name)
	}
}

// removeNode deletes a node, but not the pods on it.
func (w *world) removeNode() {
	if len(w.names) <= 3 {
		return
	}
	i := w.rand.IntN(len(w.names))
	w.must(w.client.CoreV1().Nodes().Delete(w.ctx, w.names[i], metav1.DeleteOptions{}))
	w.names = slices.Delete(w.names, i, i+1)
}

// Pauses in which the scheduler receives what the API server has: after a change of the world, and after
// a decision. Replicas send some messages to each other only every 250 ms.
const (
	settleWorld    = time.Second
	settleDecision = 60 * time.Millisecond
	settleReplicas = 300 * time.Millisecond
)

// settle waits until the scheduler has received all changes. The pause becomes longer if the informers of
// the test have to wait for the changes too, because the machine is busy then.
func (w *world) settle(pause time.Duration) {
	started := time.Now()
	w.observer.observe()
	if w.cluster.replicas > 1 {
		pause = max(pause, settleReplicas)
	}
	time.Sleep(max(pause, 2*time.Since(started)))
}

// deletePod deletes a pod at once, as the kubelet does after its containers have ended.
func (w *world) deletePod(namespace, name string) {
	err := w.client.CoreV1().Pods(namespace).Delete(w.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})
	if !gone(err) {
		w.must(err)
	}
}
