package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// result is the stored result of a comparison.
type result struct {
	Time       time.Time `json:"time"`
	Kubernetes string    `json:"kubernetes"`
	Samples    int       `json:"samples"`
	Timeout    string    `json:"timeout"`
	Seconds    float64   `json:"seconds"`
	// Complete means that all selected workloads were measured.
	Complete bool  `json:"complete"`
	Rows     []row `json:"rows"`
}

// row contains the runs of a workload and their medians. A median is 0 if one of its runs has no result.
type row struct {
	workload
	Stock float64 `json:"stockPodsPerSecond"`
	Ours  float64 `json:"oursPodsPerSecond"`
	Ratio float64 `json:"ratio"`
	// StockSeconds and OursSeconds are the medians of the durations. Pods/s do not include the pods that are
	// scheduled after the last sample. If most pods are scheduled at the end, for example after many
	// preemptions, compare the durations instead.
	StockSeconds float64 `json:"stockSeconds"`
	OursSeconds  float64 `json:"oursSeconds"`
	Runs         []run   `json:"runs"`
}

// run is one run of a workload with one search.
type run struct {
	Search        string  `json:"search"`
	PodsPerSecond float64 `json:"podsPerSecond,omitempty"`
	// Seconds is the duration that scheduler_perf measured, which includes the creation of the pods.
	Seconds        float64 `json:"seconds,omitempty"`
	ElapsedSeconds float64 `json:"elapsedSeconds"`
	// Decisions is the number of decisions by the index and by upstream's full scan, with the reasons for full
	// scans.
	Decisions string `json:"decisions,omitempty"`
	// Error is the reason why the run has no result.
	Error string `json:"error,omitempty"`
}

// text returns the result of a run, or its error, for the progress lines.
func (one run) text() string {
	if one.Error != "" {
		return one.Error
	}
	return strings.TrimSpace(fmt.Sprintf("%.1f pods/s %s", one.PodsPerSecond, one.Decisions))
}

// failed reports whether a run of the workload failed. A run that was left out, timed out or was too short has not
// failed.
func (r row) failed() bool {
	return slices.ContainsFunc(r.Runs, func(one run) bool { return strings.HasPrefix(one.Error, "failed") })
}

// conclude computes the medians.
func (r *row) conclude() {
	throughput := func(one run) float64 { return one.PodsPerSecond }
	r.Stock, r.Ours = r.median(stock, throughput), r.median(ours, throughput)
	if r.Stock > 0 {
		r.Ratio = r.Ours / r.Stock
	}
	seconds := func(one run) float64 { return one.Seconds }
	r.StockSeconds, r.OursSeconds = r.median(stock, seconds), r.median(ours, seconds)
}

// median returns the median of a search's runs, or 0 if one of them has no result.
func (r *row) median(search string, figure func(run) float64) float64 {
	var all []float64
	for _, one := range r.Runs {
		if one.Search != search {
			continue
		}
		if one.Error != "" {
			return 0
		}
		all = append(all, figure(one))
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	half := len(all) / 2
	if len(all)%2 == 1 {
		return all[half]
	}
	return (all[half-1] + all[half]) / 2
}

// cell returns the table cell of a search: the result, or the reason why there is none.
func (r row) cell(search string, figure float64) string {
	for _, one := range r.Runs {
		if one.Search == search && one.Error != "" {
			return strings.SplitN(one.Error, ":", 2)[0]
		}
	}
	return fmt.Sprintf("%.1f", figure)
}

func (r result) save(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(content, '\n'), 0o644)
}

func (r result) print(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "workload\tstock pods/s\tours pods/s\tours ÷ stock\tstock s\tours s")
	for _, row := range r.Rows {
		ratio := "–"
		if row.Stock > 0 && row.Ours > 0 {
			ratio = fmt.Sprintf("%.2f", row.Ratio)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%.1f\t%.1f\n", row.name(), row.cell(stock, row.Stock), row.cell(ours, row.Ours), ratio, row.StockSeconds, row.OursSeconds)
	}
	table.Flush()
}
