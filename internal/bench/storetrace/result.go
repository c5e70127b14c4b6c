package storetrace

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
)

// ErrIncomplete is returned if the trace does not contain all requests.
var ErrIncomplete = errors.New("records are missing")

// Result is the result of one run.
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

// Step is one step of the run.
type Step struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Summary is the part of the report of etcd-proxy that Result contains.
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

// Shape is a group of requests with the same form.
type Shape struct {
	Shape, Class                string
	Count                       int64
	RequestBytes, ResponseBytes int64
	Kinds                       []string
}

// classOther is the class of requests outside the five request types of Kubernetes.
const classOther = "other"

// Err returns an error of one line if the result violates an invariant.
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
