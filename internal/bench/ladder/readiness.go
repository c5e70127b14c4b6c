package ladder

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// nodePage is the number of nodes in a page of a list.
	nodePage = 5000
	// countAttempts is how many times a list is begun that the store has compacted meanwhile.
	countAttempts = 3
)

// readiness is what the API says about the condition Ready of all nodes.
type readiness struct {
	nodes, ready int
	// changed is the number of nodes whose condition has changed after a time, also if it has changed back.
	changed int
}

// countReady lists all nodes in pages, and counts those that are Ready, and those whose readiness has changed after
// since.
func countReady(ctx context.Context, client kubernetes.Interface, since time.Time) (r readiness, err error) {
	for range countAttempts {
		if r, err = countOnce(ctx, client, since); !apierrors.IsResourceExpired(err) {
			break
		}
	}
	if err != nil {
		return r, fmt.Errorf("counting nodes that are Ready: %w", err)
	}
	return r, nil
}

func countOnce(ctx context.Context, client kubernetes.Interface, since time.Time) (r readiness, err error) {
	options := metav1.ListOptions{Limit: nodePage}
	for {
		page, err := client.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return r, err
		}
		for i := range page.Items {
			r.add(&page.Items[i], since)
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return r, nil
		}
	}
}

// add counts a node. Times of conditions have whole seconds, so a change in the same second as since does not count.
func (r *readiness) add(node *corev1.Node, since time.Time) {
	r.nodes++
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		if condition.Status == corev1.ConditionTrue {
			r.ready++
		}
		if condition.LastTransitionTime.After(since) {
			r.changed++
		}
	}
}
