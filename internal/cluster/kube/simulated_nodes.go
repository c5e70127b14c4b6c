package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/metadata"
)

// SimulatedNodeAnnotation and SimulatedNodeValue are the annotation, and its value, of the nodes that kwok or
// node-sim simulates.
const (
	SimulatedNodeAnnotation = "kwok.x-k8s.io/node"
	SimulatedNodeValue      = "fake"
)

const nodePage = 10_000

// simulatedNodes returns the names of the nodes with the annotation of simulated nodes. It requests only the
// metadata of the nodes.
func simulatedNodes(ctx context.Context, client metadata.Interface) (sets.Set[string], error) {
	nodes := client.Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	names := sets.New[string]()
	options := metav1.ListOptions{Limit: nodePage}
	for {
		page, err := nodes.List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("listing nodes: %w", err)
		}
		for i := range page.Items {
			if node := &page.Items[i]; node.Annotations[SimulatedNodeAnnotation] == SimulatedNodeValue {
				names.Insert(node.Name)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return names, nil
		}
	}
}
