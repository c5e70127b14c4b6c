package status

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// Print writes the status as text. wide adds columns to the table of components.
func (s Status) Print(w io.Writer, wide bool) error {
	fmt.Fprintf(w, "Cluster %q is %s (%s, %s)\n", s.Name, s.State, s.Store, s.Scheduler)
	if s.Supervisor != nil {
		fmt.Fprintf(w, "Supervisor: pid %d, up %s, %s\n", s.Supervisor.PID, age(s.Supervisor.UptimeSeconds), s.Supervisor.Address)
	}
	s.printProfile(w, wide)
	if s.Nodes != nil {
		fmt.Fprintf(w, "Nodes:      %d ready, %d not ready\n", s.Nodes.Ready, s.Nodes.NotReady)
	}
	if s.Pods != nil {
		fmt.Fprintf(w, "Pods:       %d%s\n", s.Pods.Total, phases(s.Pods.ByPhase))
	}
	if s.Objects != nil {
		fmt.Fprintf(w, "Store:      %d objects, revision %d\n", s.Objects.Count, s.Objects.Revision)
		for _, own := range s.Objects.OwnStores {
			fmt.Fprintf(w, "            of them %d %s in their own store, revision %d\n", own.Count, own.Resource, own.Revision)
		}
	}
	if s.StoreLeader != "" {
		fmt.Fprintf(w, "Leader:     %s\n", s.StoreLeader)
	}
	for _, gateway := range s.Gateways {
		fmt.Fprintf(w, "Gateway:    %s\n", gateway)
	}
	for _, trace := range s.Traces {
		fmt.Fprintf(w, "Trace:      %s, %dKi\n", trace.File, trace.Bytes>>10)
	}
	for _, problem := range s.Problems {
		fmt.Fprintf(w, "Problem:    %s\n", problem)
	}
	if len(s.Components) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	if err := s.printComponents(w, wide); err != nil || !wide || len(s.Gateways) == 0 {
		return err
	}
	return s.printGateways(w)
}

// printProfile prints the profile of the cluster, if it has one; with wide also each setting.
func (s Status) printProfile(w io.Writer, wide bool) {
	if s.Profile == nil {
		return
	}
	if !wide {
		fmt.Fprintf(w, "Profile:    %s, %d settings (-o wide shows them)\n", s.Profile.Name, len(s.Profile.Changes))
		return
	}
	fmt.Fprintf(w, "Profile:    %s\n", s.Profile.Name)
	for _, change := range s.Profile.Changes {
		fmt.Fprintf(w, "            %s: %s\n", change, change.Reason)
	}
}

func (s Status) printComponents(w io.Writer, wide bool) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	header := "COMPONENT\tSTATE\tPID\tUPTIME\tRESTARTS\tCPU\tMEMORY\tADDRESS"
	if wide {
		header += "\tCPU TIME\tLAST EXIT\tBINARY\tLOG"
	}
	fmt.Fprintln(table, header)
	for _, c := range s.Components {
		row := fmt.Sprintf("%s\t%s\t%d\t%s\t%s\t%.0f%%\t%dMi\t%s",
			c.Name, c.State, c.PID, age(c.UptimeSeconds), restarts(c), c.CPUPercent, c.MemoryBytes>>20, c.Address)
		if wide {
			row += fmt.Sprintf("\t%.0fs\t%s\t%s\t%s", c.CPUSeconds, orDash(c.LastExit), c.Binary, c.Log)
		}
		fmt.Fprintln(table, row)
	}
	return table.Flush()
}

func restarts(c Component) string {
	if c.Restarts == 0 || c.LastExitAt.IsZero() {
		return fmt.Sprint(c.Restarts)
	}
	return fmt.Sprintf("%d (%s ago: %s)", c.Restarts, duration.HumanDuration(time.Since(c.LastExitAt)), c.LastExit)
}

func phases(counts map[string]int) string {
	var parts []string
	for _, phase := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[phase], phase))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func age(seconds float64) string {
	return duration.HumanDuration(time.Duration(seconds * float64(time.Second)))
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
