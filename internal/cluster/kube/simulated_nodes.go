package kube

// SimulatedNodeAnnotation and SimulatedNodeValue are the annotation, and its value, of the nodes that kwok
// simulates.
const (
	SimulatedNodeAnnotation = "kwok.x-k8s.io/node"
	SimulatedNodeValue      = "fake"
)
