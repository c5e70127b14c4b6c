package e2e

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// suspension are the dimensions of [TestSuspendedLeader].
type suspension struct {
	nodes, pods int
	suspended   time.Duration // at least
}

// TestSuspendedLeader suspends a leader while hundreds of its binds wait for the rate limiter of its client. Another
// replica becomes the leader and fills all nodes, first with urgent pods. When the first one resumes, it must not bind further pods. With
// FAULTS set, the test uses 2,000 pods, and suspends the leader for 40 s.
func TestSuspendedLeader(t *testing.T) {
	// The binds take more than a minute, in which the other replicas start, also on a busy machine.
	const cluster, coresPerNode, slowQPS = "suspended", 32, 8
	s := suspension{20, 1400, 15 * time.Second}
	if os.Getenv("FAULTS") != "" {
		s = suspension{31, 2000, 40 * time.Second}
	}
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", cluster) })
	w.succeed(t, "up", "--name", cluster, "--nodes", fmt.Sprint(s.nodes), "--store", storeKind())
	client, rs := w.client(t, cluster), newReplicas(t, w, cluster)
	never := corev1.PreemptNever
	_, err := client.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: urgent}, Value: 10, PreemptionPolicy: &never,
	}, metav1.CreateOptions{})
	must(t, err)
	// The pods exist before the first replica starts, so it places all that fit at once.
	createCorePods(t, client, "first", s.pods/2, "")
	rs.qps = slowQPS
	first := rs.add(false)
	if rs.leader() != first {
		t.Fatal("the first replica does not lead")
	}
	rs.qps = 5000
	rs.add(false)
	rs.add(false)
	rs.logPendingPods(client)
	eventually(t, patience, "all replicas own nodes", func() error { return rs.allOwn(s.nodes) })
	first.signal(syscall.SIGSTOP)
	suspended := time.Now()
	before := bound(t, client)
	if left := s.nodes*coresPerNode - before; left < slowQPS {
		t.Fatalf("%d pods were to be bound when the leader was suspended, want at least %d", left, slowQPS)
	}
	// These pods take the room of pods that the first leader has placed and not bound.
	createCorePods(t, client, "second", s.pods/2, urgent)
	eventually(t, patience, "the next leader has filled the nodes", func() error { return boundAtLeast(client, s.nodes*coresPerNode) })
	t.Logf("the first leader bound %d of %d pods; the next leader filled %d nodes %v later", before, s.pods, s.nodes, time.Since(suspended).Round(time.Second))
	time.Sleep(time.Until(suspended.Add(s.suspended)))
	first.signal(syscall.SIGCONT)
	first.await()
	eventually(t, patience, "the first leader's binds are over", func() error { return boundAtLeast(client, s.nodes*coresPerNode) })
	if after := bound(t, client); after != s.nodes*coresPerNode {
		t.Errorf("%d pods are bound, want %d: the suspended leader bound pods after it resumed", after, s.nodes*coresPerNode)
	}
	w.succeed(t, "verify", "--name", cluster)
}

// allOwn returns an error unless each replica owns nodes, and all replicas together own the given number.
func (rs *replicas) allOwn(nodes int) error {
	sum := 0
	for _, r := range rs.all {
		counts, err := r.objectCounts()
		if err != nil {
			return err
		}
		if counts["nodes"] == 0 {
			return fmt.Errorf("%s owns no nodes", r.name)
		}
		sum += counts["nodes"]
	}
	if sum != nodes {
		return fmt.Errorf("the replicas own %d nodes instead of %d", sum, nodes)
	}
	return nil
}

// createCorePods creates pods of a priority class that request one core each.
func createCorePods(t *testing.T, client kubernetes.Interface, group string, count int, priority string) {
	t.Helper()
	const parallel = 20
	errs := make(chan error, parallel)
	var creating sync.WaitGroup
	for part := range parallel {
		creating.Go(func() {
			for i := part; i < count; i += parallel {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", group, i)}}
				pod.Spec.SchedulerName, pod.Spec.PriorityClassName = "dist-scheduler", priority
				pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "pause", Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
				}}}
				if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	creating.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
}

// boundAtLeast returns an error if fewer pods are bound.
func boundAtLeast(client kubernetes.Interface, want int) error {
	list, err := client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{FieldSelector: "spec.nodeName!="})
	if err == nil && len(list.Items) < want {
		err = fmt.Errorf("%d pods are bound, want %d", len(list.Items), want)
	}
	return err
}

// bound returns the number of bound pods.
func bound(t *testing.T, client kubernetes.Interface) int {
	t.Helper()
	list, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName!="})
	must(t, err)
	return len(list.Items)
}
