package leader

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// Feeds are the informers for pods and nodes of a scheduler that is a replica. Other replicas send
// their events; the replica's own watches cover only its hash slots.
type Feeds struct{ pods, nodes *eventInformer }

// NewFactory makes an informer factory whose informers for nodes and pods are feeds.
func NewFactory(client kubernetes.Interface) (informers.SharedInformerFactory, Feeds) {
	f := Feeds{pods: newEventInformer(), nodes: newEventInformer()}
	factory := informers.NewSharedInformerFactory(client, 0)
	factory.InformerFor(&v1.Pod{}, f.pods.make)
	factory.InformerFor(&v1.Node{}, f.nodes.make)
	return factory, f
}
