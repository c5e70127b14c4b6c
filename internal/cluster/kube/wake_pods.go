package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	wakeInterval = 2 * time.Second
	// wakeQuietRounds is the number of consecutive rounds in which WakePods changes no pod and after
	// which it returns. These rounds take 20 seconds. They must take more than ten seconds, because
	// kwok retries acquiring a Lease after ten seconds and can then skip pods again.
	wakeQuietRounds = 10
	// wakeMaxRounds is the maximum number of rounds. Without it, a pod that is Pending for another
	// reason would keep WakePods running.
	wakeMaxRounds = 60
	// wakeMaxPods is the maximum number of pods per round.
	wakeMaxPods = 1000

	// wakeAnnotation is the annotation that WakePods changes on a pod, so that kwok receives a watch
	// event for the pod.
	wakeAnnotation = "k1m/woken"
)

// WakePods changes an annotation of each pod that kwok skipped after kwok was started, so that kwok
// processes the pod.
//
// kwok 0.8.0 has a race (controllers/controller.go: Held and podsOnNodeSyncWorker). It skips a pod unless
// the Lease in its cache shows that it holds the Lease of the pod's node. After acquiring a Lease, kwok
// lists the pods of the node once. If its cache receives the Lease only after that list, these pods stay
// Pending forever. kwok processes a pod again when the pod changes.
//
// annotation is the key of the annotation that every node simulated by kwok has.
func WakePods(ctx context.Context, config *rest.Config, annotation string) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to the API server: %w", err)
	}
	return wakePods(ctx, client, annotation, wakeInterval)
}

// wakePods changes the pods that are waiting in two consecutive rounds.
func wakePods(ctx context.Context, client kubernetes.Interface, annotation string, interval time.Duration) error {
	previous, quiet := sets.New[types.UID](), 0
	for round := 0; round < wakeMaxRounds && quiet < wakeQuietRounds; round++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
		waiting, err := waitingPods(ctx, client, annotation)
		if err != nil {
			return err
		}
		quiet++
		current := sets.New[types.UID]()
		for i := range waiting {
			pod := &waiting[i]
			current.Insert(pod.UID)
			if !previous.Has(pod.UID) {
				continue
			}
			quiet = 0
			touch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, wakeAnnotation, round)
			_, err := client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, touch, metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("changing an annotation of a pod that kwok skipped: %w", err)
			}
		}
		previous = current
	}
	return nil
}

// waitingPods returns pods that are bound to a simulated node and Pending, at most wakeMaxPods.
func waitingPods(ctx context.Context, client kubernetes.Interface, annotation string) ([]corev1.Pod, error) {
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: "status.phase=Pending,spec.nodeName!=", Limit: wakeMaxPods,
	})
	if err != nil {
		return nil, fmt.Errorf("listing pending pods: %w", err)
	}
	simulated := map[string]bool{}
	var waiting []corev1.Pod
	for i := range pods.Items {
		name := pods.Items[i].Spec.NodeName
		if _, known := simulated[name]; !known {
			node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("reading node %s: %w", name, err)
			}
			simulated[name] = err == nil && node.Annotations[annotation] != ""
		}
		if simulated[name] {
			waiting = append(waiting, pods.Items[i])
		}
	}
	return waiting, nil
}
