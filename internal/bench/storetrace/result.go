package storetrace

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
)

// ErrIncomplete means that the trace does not contain all requests.
var ErrIncomplete = errors.New("records are missing")

// Result is the result of one run.
type Result struct {
	Nodes    int    `json:"nodes"`
	Replicas int    `json:"replicas"`
	Objects  int    `json:"objects"`
	Store    string `json:"store"`
	Steps    []Step `json:"steps"`
	Page     string `json:"page"`
	// Summary is the part of the report of etcd-proxy that Print shows.
	Summary Summary `json:"-"`
}

// Step is the start of the cluster, or a group of operations.
type Step struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Summary is a part of the report of etcd-proxy.
type Summary struct {
	Totals struct {
		Calls, Streams, MissingRecords int64
	} `json:"totals"`
	Classes []struct {
		Class         string
		Count, Shapes int64
	} `json:"classes"`
	Shapes []Shape `json:"shapes"`
}

// Shape describes the requests that have the same request shape.
type Shape struct {
	Shape, Class                string
	Count                       int64
	RequestBytes, ResponseBytes int64
	Kinds                       []string
}

// classOther is the class of requests that have none of the five shapes that Kubernetes is documented to
// use.
const classOther = "other"

// Err returns an error if the trace is incomplete or empty.
func (r *Result) Err() error {
	switch {
	case r.Summary.Totals.MissingRecords > 0:
		return fmt.Errorf("%d %w: the recorder could not keep up; repeat the run on an idle machine",
			r.Summary.Totals.MissingRecords, ErrIncomplete)
	case r.Summary.Totals.Calls == 0:
		return fmt.Errorf("%w: the trace is empty; see the log of etcd-proxy", ErrIncomplete)
	}
	return nil
}

// Print writes the result as text.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "%d nodes, %d replicas, %d objects per kind, on %s\n", r.Nodes, r.Replicas, r.Objects, r.Store)
	fmt.Fprintf(w, "%d calls and %d streams recorded, %d records missing\n\n",
		r.Summary.Totals.Calls, r.Summary.Totals.Streams, r.Summary.Totals.MissingRecords)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, step := range r.Steps {
		fmt.Fprintf(table, "%s\t%.1fs\n", step.Name, step.Seconds)
	}
	fmt.Fprintln(table, "\nCLASS\tREQUESTS\tSHAPES")
	for _, c := range r.Summary.Classes {
		fmt.Fprintf(table, "%s\t%d\t%d\n", c.Class, c.Count, c.Shapes)
	}
	fmt.Fprintln(table, "\nOTHER REQUESTS\tREQUESTS\tREQUEST SIZE\tRESPONSE SIZE")
	for _, s := range r.Summary.Shapes {
		if s.Class == classOther {
			fmt.Fprintf(table, "%s\t%d\t%d B\t%d B\n", s.Shape, s.Count, s.RequestBytes, s.ResponseBytes)
		}
	}
	table.Flush()
	fmt.Fprintf(w, "\nFull report: %s\n", r.Page)
}
