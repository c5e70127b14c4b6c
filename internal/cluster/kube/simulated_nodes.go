package kube

// kwok simulates the nodes that have this annotation with this value.
const (
	SimulatedNodeAnnotation = "kwok.x-k8s.io/node"
	SimulatedNodeValue      = "fake"
)
