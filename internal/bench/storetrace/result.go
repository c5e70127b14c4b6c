package storetrace

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
)

// ErrIncomplete says that not everything was recorded.
var ErrIncomplete = errors.New("records are missing")

// Result of one run.
type Result struct {
	Nodes    int    `json:"nodes"`
	Replicas int    `json:"replicas"`
	Objects  int    `json:"objects"`
	Store    string `json:"store"`
	Steps    []Step `json:"steps"`
	Page     string `json:"page"`
	// Summary is the part of the report that Print shows.
	Summary Summary `json:"-"`
}

// Step of a cluster's life.
type Step struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Summary is of etcd-proxy's report what is read here.
type Summary struct {
	Recording struct {
		Calls, Streams, MissingLines int64
	} `json:"recording"`
	Classes []struct {
		Class         string
		Count, Shapes int64
	} `json:"classes"`
	Shapes []Shape `json:"shapes"`
}

// Shape of requests.
type Shape struct {
	Shape, Class                string
	Count                       int64
	RequestBytes, ResponseBytes int64
	Kinds                       []string
}

// classOther is what is not one of the five, nor meant to be beside them.
const classOther = "other"

// Err returns an error of one line if the result violates an invariant.
func (r *Result) Err() error {
	switch {
	case r.Summary.Recording.MissingLines > 0:
		return fmt.Errorf("%d %w: the recorder could not keep up; run it on a machine that is less busy",
			r.Summary.Recording.MissingLines, ErrIncomplete)
	case r.Summary.Recording.Calls == 0:
		return fmt.Errorf("%w: nothing was recorded; look at the log of etcd-proxy", ErrIncomplete)
	}
	return nil
}

// Print writes the result as text.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "%d nodes, %d replicas, %d objects of a kind, on %s\n", r.Nodes, r.Replicas, r.Objects, r.Store)
	fmt.Fprintf(w, "%d calls and %d streams recorded, %d lines missing\n\n",
		r.Summary.Recording.Calls, r.Summary.Recording.Streams, r.Summary.Recording.MissingLines)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, step := range r.Steps {
		fmt.Fprintf(table, "%s\t%.1fs\n", step.Name, step.Seconds)
	}
	fmt.Fprintln(table, "\nCLASS\tREQUESTS\tSHAPES")
	for _, c := range r.Summary.Classes {
		fmt.Fprintf(table, "%s\t%d\t%d\n", c.Class, c.Count, c.Shapes)
	}
	fmt.Fprintln(table, "\nNOT ONE OF THE FIVE\tREQUESTS\tASKED\tANSWERED")
	for _, s := range r.Summary.Shapes {
		if s.Class == classOther {
			fmt.Fprintf(table, "%s\t%d\t%d B\t%d B\n", s.Shape, s.Count, s.RequestBytes, s.ResponseBytes)
		}
	}
	table.Flush()
	fmt.Fprintf(w, "\nAll of it: %s\n", r.Page)
}
