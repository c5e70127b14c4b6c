package verify

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Rules, by what they look at.
const (
	Resources    = "resources"
	Ports        = "ports"
	Taints       = "taints"
	NodeAffinity = "node-affinity"
	Spread       = "spread"
	AntiAffinity = "anti-affinity"
)

// Rules are all of them, in the order in which they are checked.
var Rules = []string{Resources, Ports, Taints, NodeAffinity, Spread, AntiAffinity}

// Violation is a rule that is broken on a node.
type Violation struct {
	Rule string `json:"rule"`
	Node string `json:"node"`
	// Pod is one that may not be there, by namespace and name; empty if it is all of
	// them together that may not.
	Pod     string `json:"pod,omitempty"`
	Message string `json:"message"`
}

// Report is the result of an audit.
type Report struct {
	Nodes int `json:"nodes"`
	Pods  int `json:"pods"`
	// Bound pods are on a node that is there, and are what is audited.
	Bound   int `json:"bound"`
	Pending int `json:"pending"`
	Ended   int `json:"ended"`
	// OnMissingNodes are pods on nodes that are gone.
	OnMissingNodes int `json:"onMissingNodes"`
	// PassingTaints are pods on nodes with taints that they do not tolerate, but that
	// Kubernetes sets and takes away by itself, so that they may have come later.
	PassingTaints int         `json:"passingTaints"`
	Violations    []Violation `json:"violations"`
}

// Err says how many violations there are; nil if there are none.
func (r *Report) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	return fmt.Errorf("%d violations", len(r.Violations))
}

// Violations that are printed for each rule; JSON has them all.
const printed = 20

// Print writes the report for people.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "%d nodes; %d pods: %d bound, %d pending, %d ended\n", r.Nodes, r.Pods, r.Bound, r.Pending, r.Ended)
	if r.OnMissingNodes > 0 {
		fmt.Fprintf(w, "  not audited: %d pods on nodes that are gone\n", r.OnMissingNodes)
	}
	if r.PassingTaints > 0 {
		fmt.Fprintf(w, "  not judged: %d pods on nodes with a passing taint, such as not-ready\n", r.PassingTaints)
	}
	for _, rule := range Rules {
		broken := slices.DeleteFunc(slices.Clone(r.Violations), func(v Violation) bool { return v.Rule != rule })
		fmt.Fprintf(w, "  %-14s %s\n", rule, verdict(len(broken)))
		for i, v := range broken {
			if i == printed {
				fmt.Fprintf(w, "    and %d more; -o json has all\n", len(broken)-i)
				break
			}
			fmt.Fprintf(w, "    %s\n", strings.TrimSpace(fmt.Sprintf("%s %s: %s", v.Node, v.Pod, v.Message)))
		}
	}
}

func verdict(broken int) string {
	if broken == 0 {
		return "ok"
	}
	return fmt.Sprintf("%d violations", broken)
}
