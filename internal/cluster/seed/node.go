package seed

import (
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/kwok/kustomize/stage/node/fast"
	"sigs.k8s.io/kwok/pkg/utils/gotpl"
	"sigs.k8s.io/yaml"
)

// Names of the writers, as the API server records them in managedFields: the first part of their user agents.
const (
	k1mManager               = "k1m"
	kwokManager              = "kwok"
	nodeSimManager           = "node-sim"
	controllerManagerManager = "kube-controller-manager"
)

// Labels that kube-controller-manager adds to nodes, as copies of the labels without "beta.".
const (
	betaOSLabel   = "beta.kubernetes.io/os"
	betaArchLabel = "beta.kubernetes.io/arch"
)

var (
	nodeKind   = corev1.SchemeGroupVersion.WithKind("Node")
	nodeWrites = endpoint{kind: nodeKind, reset: "status"}
	nodeStatus = endpoint{kind: nodeKind, subresource: "status", reset: "spec"}
)

// settledNode returns what the API server stores for a new node when it is Ready and no component changes it
// any more. created is the time of all writes.
func settledNode(node *corev1.Node, uid types.UID, ttlSeconds int, created metav1.Time, simulator Simulator) (*corev1.Node, error) {
	node.SetGroupVersionKind(nodeKind)
	node, err := write(nodeWrites, &corev1.Node{}, node, k1mManager)
	if err != nil {
		return nil, err
	}
	// The API server sets these fields.
	node.UID, node.CreationTimestamp = uid, created
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})

	ready, err := simulator.readyNode(node, created)
	if err != nil {
		return nil, err
	}
	if node, err = write(nodeStatus, node, ready, simulator.manager()); err != nil {
		return nil, err
	}
	settled := node.DeepCopy()
	settled.Labels[betaOSLabel] = node.Labels[corev1.LabelOSStable]
	settled.Labels[betaArchLabel] = node.Labels[corev1.LabelArchStable]
	settled.Annotations[corev1.ObjectTTLAnnotationKey] = strconv.Itoa(ttlSeconds)
	settled.Spec.Taints = nil
	if node, err = write(nodeWrites, node, settled, controllerManagerManager); err != nil {
		return nil, err
	}
	for i := range node.Status.Conditions {
		node.Status.Conditions[i].LastHeartbeatTime = created
	}
	setTimes(node, created)
	return node, nil
}

// playedNode returns a copy of a node after kwok has played its first stage, which component/kwok.go configures.
func playedNode(node *corev1.Node, ip string) (*corev1.Node, error) {
	var stage struct {
		Spec struct {
			Next struct{ StatusTemplate string }
		}
	}
	if err := yaml.Unmarshal([]byte(fast.DefaultNodeInit), &stage); err != nil {
		return nil, fmt.Errorf("reading kwok's stage for new nodes: %w", err)
	}
	renderer := gotpl.NewRenderer(gotpl.FuncMap{
		"NodeIP":   func() string { return ip },
		"NodeName": func() string { return "" },
		"NodePort": func() int { return 0 },
	})
	status, err := renderer.ToJSON(stage.Spec.Next.StatusTemplate, node)
	if err != nil {
		return nil, fmt.Errorf("rendering kwok's stage for new nodes: %w", err)
	}
	before, err := json.Marshal(node)
	if err != nil {
		return nil, err
	}
	after, err := strategicpatch.StrategicMergePatch(before, fmt.Appendf(nil, `{"status":%s}`, status), corev1.Node{})
	if err != nil {
		return nil, fmt.Errorf("applying kwok's stage for new nodes: %w", err)
	}
	ready := &corev1.Node{}
	return ready, json.Unmarshal(after, ready)
}

// ttlSeconds returns the value that the TTL controller of kube-controller-manager sets as annotation of the
// nodes of a cluster with so many nodes (pkg/controller/ttl). With another value it would change every node.
func ttlSeconds(nodes int) int {
	for _, limit := range []struct{ nodes, seconds int }{{100, 0}, {500, 15}, {1000, 30}, {2000, 60}} {
		if nodes <= limit.nodes {
			return limit.seconds
		}
	}
	return 300
}
