package leader

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// Feeds are the pod informer and the node informer of a scheduler replica. They get their events from all
// replicas, because a replica itself watches only its own hash slots.
type Feeds struct{ pods, nodes *eventInformer }

// NewFactory returns an informer factory whose informers for nodes and pods are the returned feeds.
func NewFactory(client kubernetes.Interface) (informers.SharedInformerFactory, Feeds) {
	f := Feeds{pods: newEventInformer(), nodes: newEventInformer()}
	factory := informers.NewSharedInformerFactory(client, 0)
	factory.InformerFor(&v1.Pod{}, f.pods.self)
	factory.InformerFor(&v1.Node{}, f.nodes.self)
	return factory, f
}
