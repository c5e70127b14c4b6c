package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
)

// TestIntakeWithReplicas kills the leader of three replicas with webhooks under load. Each pod must be bound
// once, to a node that is allowed, and the next leader must take over the webhook.
func TestIntakeWithReplicas(t *testing.T) {
	const cluster, nodes, pods, perNode = "intakes", 20, 300, 40
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", cluster) })
	w.succeed(t, "up", "--name", cluster, "--nodes", fmt.Sprint(nodes), "--store", storeKind(),
		"--scheduler", "dist-scheduler", "--scheduler-replicas", "3", "--scheduler-intake", "webhook")
	client := w.client(t, cluster)
	awaitWebhook(t, client, "dist-scheduler-intake")
	l := newLoad(t, client, corev1.DefaultSchedulerName, perNode)
	bound := l.watchBinds(t)

	l.createAll(t, "first", pods, func() {})
	l.awaitAll(t, pods)
	leader := w.leadingScheduler(t, cluster)
	if early := w.byWebhook(t, cluster, leader); early < pods/2 {
		t.Errorf("the webhook delivered %v of %d pods", early, pods)
	}
	w.succeed(t, "verify", "--name", cluster)

	var killed componentStatus
	l.createAll(t, "second", pods, func() { killed = w.killNow(t, cluster, leader) })
	created := time.Now()
	eventually(t, patience, "all pods are bound", func() error {
		if bound, all := l.count(t); bound != 2*pods || all != 2*pods {
			return fmt.Errorf("%d of %d pods are bound", bound, all)
		}
		return nil
	})
	w.awaitRestart(t, cluster, killed)
	next := w.leadingScheduler(t, cluster)
	eventually(t, patience, "the webhook delivers pods to the next leader", func() error {
		l.create(t.Context(), fmt.Sprintf("third-%d", time.Now().UnixNano()))
		if w.byWebhook(t, cluster, next) == 0 {
			return fmt.Errorf("%s received no pod by its webhook", next)
		}
		return nil
	})
	t.Logf("%s became the leader after %s, and all pods were bound %v after the last was created", next, leader, time.Since(created).Round(time.Millisecond))
	_, all := l.count(t)
	l.awaitAll(t, all)
	w.succeed(t, "verify", "--name", cluster)
	eventually(t, patience, "the watch has delivered every bind", func() error {
		if seen := bound(); seen != all {
			return fmt.Errorf("the watch has delivered %d of %d binds", seen, all)
		}
		return nil
	})
	w.noReservationsRemain(t, cluster)
}

// createAll creates pods, four at a time. It calls halfway when about half of the pods exist.
func (l *load) createAll(t *testing.T, prefix string, pods int, halfway func()) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	var creating sync.WaitGroup
	reached := make(chan struct{})
	for worker := range 4 {
		creating.Go(func() {
			for i := worker; i < pods; i += 4 {
				if i == pods/2 {
					close(reached)
				}
				l.create(ctx, fmt.Sprintf("%s-%d", prefix, i))
			}
		})
	}
	<-reached
	halfway()
	creating.Wait()
}

// watchBinds counts the pods that a watch reports as bound, and fails the test if a pod is bound to a
// second node.
func (l *load) watchBinds(t *testing.T) (bound func() int) {
	t.Helper()
	pods := l.client.CoreV1().Pods(metav1.NamespaceDefault)
	now, err := pods.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	// A busy API server closes slow watches. The retry watcher then starts another watch where the closed
	// watch ended.
	events, err := toolswatch.NewRetryWatcherWithContext(t.Context(), now.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: pods.Watch,
	})
	must(t, err)
	t.Cleanup(events.Stop)
	var mu sync.Mutex
	nodes := map[types.UID]string{}
	go func() {
		for event := range events.ResultChan() {
			pod, is := event.Object.(*corev1.Pod)
			if !is || pod.Spec.NodeName == "" {
				continue
			}
			mu.Lock()
			if before := nodes[pod.UID]; before != "" && before != pod.Spec.NodeName {
				t.Errorf("%s was bound to %s, and then to %s", pod.Name, before, pod.Spec.NodeName)
			}
			nodes[pod.UID] = pod.Spec.NodeName
			mu.Unlock()
		}
	}()
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(nodes)
	}
}

// schedulersOf are the component names of the cluster's schedulers.
var schedulersOf = []string{"dist-scheduler", "dist-scheduler-1", "dist-scheduler-2"}

// leadingScheduler waits until one of the cluster's schedulers is the leader and returns its name.
func (w *workspace) leadingScheduler(t *testing.T, cluster string) (leader string) {
	t.Helper()
	eventually(t, patience, "a scheduler is the leader", func() error {
		for _, name := range schedulersOf {
			if w.status(t, cluster).component(t, name).State != "ready" {
				continue
			}
			if w.metrics(t, cluster, name, "scheduler_replica_")["members"] > 0 {
				leader = name
				return nil
			}
		}
		return fmt.Errorf("there is no leader")
	})
	return leader
}

// byWebhook returns the number of pods that a scheduler received by its webhook.
func (w *workspace) byWebhook(t *testing.T, cluster, scheduler string) float64 {
	t.Helper()
	return w.metrics(t, cluster, scheduler, "scheduler_intake_")[`pods_total{source="webhook"}`]
}

// noReservationsRemain waits until no replica has reservations, assumed pods or early pods.
func (w *workspace) noReservationsRemain(t *testing.T, cluster string) {
	t.Helper()
	eventually(t, patience, "no reservation remains", func() error {
		for _, name := range schedulersOf {
			holds := w.metrics(t, cluster, name, "scheduler_replica_objects")
			early := w.metrics(t, cluster, name, "scheduler_intake_")["early_pods"]
			if reserved, assumed := holds[`{kind="reservations"}`], holds[`{kind="assumed"}`]; reserved+assumed+early > 0 {
				return fmt.Errorf("%s has %v reserved, %v assumed, %v early", name, reserved, assumed, early)
			}
		}
		return nil
	})
}
