package verify

import (
	"cmp"
	"fmt"
	"slices"
)

// Check applies all rules. It returns an error if a selector in a pod is invalid.
func (c *Cluster) Check() (*Report, error) {
	for i := range c.nodes {
		c.checkResources(&c.nodes[i])
		c.checkPorts(&c.nodes[i])
	}
	for _, class := range c.classList {
		if err := c.checkAffinityAndTaints(class); err != nil {
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

// reportViolation adds a violation of a rule on a node to the report. pod is nil if all pods of the node
// together violate the rule.
func (c *Cluster) reportViolation(rule string, n *node, pod *boundPod, format string, args ...any) {
	v := Violation{Rule: rule, Node: n.object.Name, Message: fmt.Sprintf(format, args...)}
	if pod != nil {
		v.Pod = pod.class.namespace + "/" + pod.name
	}
	c.report.Violations = append(c.report.Violations, v)
}
