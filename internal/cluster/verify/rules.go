package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
)

// Check audits the cluster.
func (c *Cluster) Check() (*Report, error) {
	for i := range c.nodes {
		c.checkResources(&c.nodes[i])
		c.checkPorts(&c.nodes[i])
	}
	for _, class := range c.order {
		if err := c.checkNodes(class); err != nil {
			return nil, err
		}
	}
	if err := c.checkSpread(); err != nil {
		return nil, err
	}
	if err := c.checkAntiAffinity(); err != nil {
		return nil, err
	}
	slices.SortFunc(c.report.Violations, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pod, b.Pod))
	})
	return &c.report, nil
}

func (c *Cluster) broken(rule string, n *node, pod *placed, format string, args ...any) {
	v := Violation{Rule: rule, Node: n.object.Name, Message: fmt.Sprintf(format, args...)}
	if pod != nil {
		v.Pod = pod.class.namespace + "/" + pod.name
	}
	c.report.Violations = append(c.report.Violations, v)
}

// checkResources adds up what the pods of a node request.
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
		c.broken(Resources, n, nil, "pods request %s", strings.Join(over, ", "))
	}
}

// checkPorts looks for two pods of a node that want the same port of it.
func (c *Cluster) checkPorts(n *node) {
	type port struct {
		protocol v1.Protocol
		number   int32
	}
	type user struct {
		ip  string
		pod *placed
	}
	used := map[port][]user{}
	for i := range n.pods {
		pod := &n.pods[i]
		for _, container := range pod.class.spec.Containers {
			want := container.Ports[0]
			key := port{want.Protocol, want.HostPort}
			if key.protocol == "" {
				key.protocol = v1.ProtocolTCP
			}
			for _, other := range used[key] {
				if other.pod != pod && (other.ip == want.HostIP || anyAddress(other.ip) || anyAddress(want.HostIP)) {
					c.broken(Ports, n, pod, "port %d/%s is taken by %s/%s", key.number, key.protocol, other.pod.class.namespace, other.pod.name)
				}
			}
			used[key] = append(used[key], user{want.HostIP, pod})
		}
	}
}

func anyAddress(ip string) bool { return ip == "" || ip == "0.0.0.0" }

// checkNodes holds the pods of a class against the taints and labels of their nodes.
func (c *Cluster) checkNodes(class *class) error {
	for i := range class.pods {
		pod := &class.pods[i]
		n := &c.nodes[pod.node]
		match, err := class.required.Match(n.object)
		if err != nil {
			return fmt.Errorf("the node affinity of pod %s/%s: %w", class.namespace, pod.name, err)
		}
		if !match {
			c.broken(NodeAffinity, n, pod, "the node is not one that the pod selects")
		}
		passing := false
		for _, taint := range untolerated(class, n.object, keepsAway) {
			if strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
				passing = true
			} else {
				c.broken(Taints, n, pod, "the pod does not tolerate %s", taint.ToString())
			}
		}
		if passing {
			c.report.PassingTaints++
		}
	}
	return nil
}

// keepsAway says whether a taint keeps new pods from a node.
func keepsAway(taint *v1.Taint) bool {
	return taint.Effect == v1.TaintEffectNoSchedule || taint.Effect == v1.TaintEffectNoExecute
}

// untolerated are the taints of a node that pods of a class do not tolerate.
func untolerated(class *class, node *v1.Node, counts func(*v1.Taint) bool) []v1.Taint {
	var found []v1.Taint
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if counts(taint) && !corev1helpers.TolerationsTolerateTaint(klog.Background(), class.spec.Tolerations, taint, true) {
			found = append(found, *taint)
		}
	}
	return found
}
