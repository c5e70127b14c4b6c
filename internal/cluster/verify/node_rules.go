package verify

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
)

// checkResources compares the sum of the requests of a node's pods with its allocatable resources.
func (c *Cluster) checkResources(n *node) {
	requested := v1.ResourceList{v1.ResourcePods: *resource.NewQuantity(int64(len(n.pods)), resource.DecimalSI)}
	for _, pod := range n.pods {
		for name, amount := range pod.class.requests {
			sum := requested[name]
			sum.Add(amount)
			requested[name] = sum
		}
	}
	var over []string
	for name, sum := range requested {
		if allocatable := n.object.Status.Allocatable[name]; sum.Cmp(allocatable) > 0 {
			over = append(over, fmt.Sprintf("%s of %s %s", sum.String(), allocatable.String(), name))
		}
	}
	if len(over) > 0 {
		slices.Sort(over)
		c.reportViolation(Resources, n, nil, "pods request %s", strings.Join(over, ", "))
	}
}

// checkPorts reports pods of a node that use the same host port.
func (c *Cluster) checkPorts(n *node) {
	type port struct {
		protocol v1.Protocol
		number   int32
	}
	type user struct {
		ip  string
		pod *boundPod
	}
	used := map[port][]user{}
	for i := range n.pods {
		pod := &n.pods[i]
		for _, container := range pod.class.spec.Containers {
			want := container.Ports[0] // keptSpec keeps one port for each container
			key := port{want.Protocol, want.HostPort}
			if key.protocol == "" {
				key.protocol = v1.ProtocolTCP
			}
			for _, other := range used[key] {
				if other.pod != pod && (other.ip == want.HostIP || anyAddress(other.ip) || anyAddress(want.HostIP)) {
					c.reportViolation(Ports, n, pod, "host port %d/%s is used by %s/%s", key.number, key.protocol, other.pod.class.namespace, other.pod.name)
				}
			}
			used[key] = append(used[key], user{want.HostIP, pod})
		}
	}
}

// anyAddress reports whether a host IP means all addresses of the node.
func anyAddress(ip string) bool { return ip == "" || ip == "0.0.0.0" }

// checkAffinityAndTaints checks the pods of a class against the labels and taints of their nodes.
func (c *Cluster) checkAffinityAndTaints(class *podClass) error {
	for i := range class.pods {
		pod := &class.pods[i]
		n := &c.nodes[pod.node]
		match, err := class.required.Match(n.object)
		if err != nil {
			return fmt.Errorf("node affinity of pod %s/%s: %w", class.namespace, pod.name, err)
		}
		if !match {
			c.reportViolation(NodeAffinity, n, pod, "the node does not match the pod's node selector or node affinity")
		}
		transient := false
		for _, taint := range untoleratedTaints(class, n.object) {
			if strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
				transient = true
			} else {
				c.reportViolation(Taints, n, pod, "the pod does not tolerate the taint %s", taint.ToString())
			}
		}
		if transient {
			c.report.TransientTaints++
		}
	}
	return nil
}

// forbidsScheduling reports whether the scheduler must not bind pods to a node with this taint unless
// they tolerate it.
func forbidsScheduling(taint *v1.Taint) bool {
	return taint.Effect == v1.TaintEffectNoSchedule || taint.Effect == v1.TaintEffectNoExecute
}

// untoleratedTaints returns the taints of a node that forbid scheduling the pods of a class.
func untoleratedTaints(class *podClass, node *v1.Node) []v1.Taint {
	var found []v1.Taint
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if forbidsScheduling(taint) && !corev1helpers.TolerationsTolerateTaint(klog.Background(), class.spec.Tolerations, taint, true) {
			found = append(found, *taint)
		}
	}
	return found
}
