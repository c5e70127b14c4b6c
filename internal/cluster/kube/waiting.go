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
	// kwok tries again after ten seconds to take a lease that it could not take.
	wakeQuietRounds = 10
	// A pod may wait for what we do not know; it is not touched for ever.
	wakeMaxRounds = 60
	// Pods that are woken at a time; the others wait for the next round.
	wakeMaxPods = 1000

	wakeAnnotation = "k1m/woken"
)

// WakePods has a kwok that has just started look again at pods that it has passed over.
//
// kwok leaves a pod alone unless the lease in its cache says that it holds the node. When
// it has taken a lease it looks at the pods of the node, once: if the cache learns of the
// lease only after that, they wait for ever (kwok 0.8.0, controllers/controller.go: Held
// and podsOnNodeSyncWorker). It looks at a pod again when that changes.
func WakePods(ctx context.Context, config *rest.Config, simulated string) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to the API server: %w", err)
	}
	return wakePods(ctx, client, simulated, wakeInterval)
}

// wakePods touches pods that it finds waiting twice in a row, on nodes with an annotation.
func wakePods(ctx context.Context, client kubernetes.Interface, simulated string, interval time.Duration) error {
	before, quiet := sets.New[types.UID](), 0
	for round := 0; round < wakeMaxRounds && quiet < wakeQuietRounds; round++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
		waiting, err := waitingPods(ctx, client, simulated)
		if err != nil {
			return err
		}
		quiet++
		now := sets.New[types.UID]()
		for i := range waiting {
			pod := &waiting[i]
			now.Insert(pod.UID)
			if !before.Has(pod.UID) {
				continue
			}
			quiet = 0
			touch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, wakeAnnotation, round)
			_, err := client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, touch, metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("waking a pod: %w", err)
			}
		}
		before = now
	}
	return nil
}

// waitingPods have a node that kwok plays, and do not run.
func waitingPods(ctx context.Context, client kubernetes.Interface, simulated string) ([]corev1.Pod, error) {
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: "status.phase=Pending,spec.nodeName!=", Limit: wakeMaxPods,
	})
	if err != nil {
		return nil, fmt.Errorf("listing pods that wait: %w", err)
	}
	played := map[string]bool{}
	var waiting []corev1.Pod
	for i := range pods.Items {
		name := pods.Items[i].Spec.NodeName
		if _, asked := played[name]; !asked {
			node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("looking at a node: %w", err)
			}
			played[name] = err == nil && node.Annotations[simulated] != ""
		}
		if played[name] {
			waiting = append(waiting, pods.Items[i])
		}
	}
	return waiting, nil
}
