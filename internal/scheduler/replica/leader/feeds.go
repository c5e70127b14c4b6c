package leader

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// Feeds are the informers of a scheduler that is a replica. Its own watches are others,
// of a share of the objects.
type Feeds struct{ pods, nodes *eventInformer }

// NewFactory makes a factory with such informers in the place of those of nodes and pods.
func NewFactory(client kubernetes.Interface) (informers.SharedInformerFactory, Feeds) {
	f := Feeds{pods: newEventInformer(), nodes: newEventInformer()}
	factory := informers.NewSharedInformerFactory(client, 0)
	factory.InformerFor(&v1.Pod{}, f.pods.make)
	factory.InformerFor(&v1.Node{}, f.nodes.make)
	return factory, f
}
