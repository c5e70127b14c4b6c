package network

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// row is a part of the experiment that can run alone.
type row struct {
	name, help string
	measure    func(*bench, context.Context) error
}

// rows returns the rows, in the order in which they run. Those of the IPv4 gateway are in gateway.go.
func rows() []row {
	return slices.Concat([]row{
		{"lab", "a lab of --nodes × --pods: pods that reach each other, and the time in which the CNI plugins add a pod", (*bench).lab},
		{"throughput", "TCP from a pod to a pod of another node, through namespaces with routes only, and through VXLAN", (*bench).throughput},
		{"answers", "neighbour solicitations answered by network-agent and by ndppd, for few and for many addresses", (*bench).answers},
		{"leave", "the time until nothing in the lab knows a node that was deleted", (*bench).leave},
	}, gatewayRows)
}

func rowNames() (names []string) {
	for _, r := range rows() {
		names = append(names, r.name)
	}
	return names
}

// rowsHelp describes the rows for the help.
func rowsHelp() string {
	var text strings.Builder
	text.WriteString("Rows (--only):\n")
	for _, r := range rows() {
		fmt.Fprintf(&text, "  %-14s %s\n", r.name, r.help)
	}
	return text.String()
}
