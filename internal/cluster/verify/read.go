package verify

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// pageSize is the number of objects in a page of a list. All pages of a list have the same resource
// version.
const pageSize = 5000

// Read reads a cluster. After each page it calls onNodes or onPods with the number of nodes or pods that
// were read so far.
func Read(ctx context.Context, client kubernetes.Interface, onNodes, onPods func(done int)) (*Cluster, error) {
	c := New()
	namespaces, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading namespaces: %w", err)
	}
	for i := range namespaces.Items {
		c.AddNamespace(&namespaces.Items[i])
	}
	err = listPages(func(options metav1.ListOptions) (metav1.ListInterface, error) {
		list, err := client.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("reading nodes: %w", err)
		}
		for i := range list.Items {
			c.AddNode(&list.Items[i])
		}
		onNodes(len(c.nodes))
		return list, nil
	})
	if err != nil {
		return nil, err
	}
	return c, listPages(func(options metav1.ListOptions) (metav1.ListInterface, error) {
		list, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("reading pods: %w", err)
		}
		for i := range list.Items {
			if err := c.AddPod(&list.Items[i]); err != nil {
				return nil, err
			}
		}
		onPods(c.report.Pods)
		return list, nil
	})
}

// listPages calls read for each page of a list.
func listPages(read func(metav1.ListOptions) (metav1.ListInterface, error)) error {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := read(options)
		if err != nil {
			return err
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return nil
		}
	}
}
