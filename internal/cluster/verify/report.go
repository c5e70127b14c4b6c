package verify

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Names of the rules.
const (
	Resources    = "resources"
	Ports        = "ports"
	Taints       = "taints"
	NodeAffinity = "node-affinity"
	Spread       = "spread"
	AntiAffinity = "anti-affinity"
)

// Rules lists all rules, in the order of the report.
var Rules = []string{Resources, Ports, Taints, NodeAffinity, Spread, AntiAffinity}

// Violation is a violation of a rule on a node.
type Violation struct {
	Rule string `json:"rule"`
	Node string `json:"node"`
	// Pod is the pod that violates the rule, as namespace/name. It is empty if all pods of the
	// node together violate it.
	Pod     string `json:"pod,omitempty"`
	Message string `json:"message"`
}

// Report is the result of [Cluster.Check].
type Report struct {
	Nodes int `json:"nodes"`
	Pods  int `json:"pods"`
	// Bound is the number of checked pods: those that are bound to an existing node and have not
	// terminated.
	Bound      int `json:"bound"`
	Pending    int `json:"pending"`
	Terminated int `json:"terminated"`
	// OnMissingNodes is the number of pods that are bound to a node that does not exist.
	OnMissingNodes int `json:"onMissingNodes"`
	// TransientTaints is the number of pods that do not tolerate a taint of Kubernetes on their node,
	// such as not-ready. This is not a violation, because the taint may have been added after the pod
	// was bound.
	TransientTaints int         `json:"transientTaints"`
	Violations      []Violation `json:"violations"`
}

// Err returns an error with the number of violations, or nil if there are none.
func (r *Report) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	return fmt.Errorf("%d violations", len(r.Violations))
}

// maxPrinted is the maximum number of violations of each rule that Print writes. The JSON form contains
// all violations.
const maxPrinted = 20

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "%d nodes; %d pods: %d bound, %d pending, %d terminated\n", r.Nodes, r.Pods, r.Bound, r.Pending, r.Terminated)
	if r.OnMissingNodes > 0 {
		fmt.Fprintf(w, "  not checked: %d pods on nodes that do not exist\n", r.OnMissingNodes)
	}
	if r.TransientTaints > 0 {
		fmt.Fprintf(w, "  taints not checked: %d pods do not tolerate a transient taint of their node, such as not-ready\n", r.TransientTaints)
	}
	for _, rule := range Rules {
		violations := slices.DeleteFunc(slices.Clone(r.Violations), func(v Violation) bool { return v.Rule != rule })
		fmt.Fprintf(w, "  %-14s %s\n", rule, verdict(len(violations)))
		for i, v := range violations {
			if i == maxPrinted {
				fmt.Fprintf(w, "    and %d more; use -o json to list all\n", len(violations)-i)
				break
			}
			fmt.Fprintf(w, "    %s\n", strings.TrimSpace(fmt.Sprintf("%s %s: %s", v.Node, v.Pod, v.Message)))
		}
	}
}

func verdict(violations int) string {
	if violations == 0 {
		return "ok"
	}
	return fmt.Sprintf("%d violations", violations)
}
