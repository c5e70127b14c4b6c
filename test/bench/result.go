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

	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// result is the result of one run.
type result struct {
	Time    time.Time       `json:"time"`
	Seconds float64         `json:"seconds"`
	Machine machine.Machine `json:"machine"`
	// Versions maps programs to versions.
	Versions map[string]string `json:"versions"`
	// Disk is the file system of the rows that measure a disk.
	Disk   string `json:"disk"`
	Quick  bool   `json:"quick"`
	Repeat int    `json:"repeat"`
	// Complete means that all chosen rows were measured without an interruption.
	Complete bool      `json:"complete"`
	Rows     []outcome `json:"rows"`
}

// outcome is the result of one row.
type outcome struct {
	ID         string  `json:"id"`
	Title      string  `json:"title"`
	Unit       string  `json:"unit"`
	Ours       float64 `json:"ours"`
	Etcd       float64 `json:"etcd,omitempty"`
	Figure     float64 `json:"figure"`
	FigureName string  `json:"figureName"`
	Must       float64 `json:"must"`
	Aim        float64 `json:"aim"`
	AtLeast    bool    `json:"atLeast"`
	Verdict    verdict `json:"verdict"`
	// Error is the error that ended the measurement of the row. Samples contains the samples before it.
	Error   string   `json:"error,omitempty"`
	Samples []sample `json:"samples"`
}

// conclude computes the figure and the verdict of a row from its samples. err is the error that ended the
// measurement.
func conclude(r row, samples []sample, err error, judge func(figure float64) verdict) outcome {
	o := outcome{
		ID: r.ID, Title: r.Title, Unit: r.Unit, FigureName: r.FigureName,
		Must: r.Limits.Must, Aim: r.Limits.Aim, AtLeast: r.Limits.AtLeast,
		Verdict: failed, Samples: samples,
	}
	if err != nil {
		o.Error = err.Error()
	}
	medians := map[string]float64{}
	for _, store := range r.Stores {
		values := o.values(store)
		if len(values) == 0 {
			return o
		}
		medians[store] = median(values)
	}
	o.Ours, o.Etcd = medians[ours], medians[etcd]
	o.Figure = r.Figure(o.Ours, o.Etcd)
	if err == nil {
		o.Verdict = judge(o.Figure)
	}
	return o
}

// values returns the samples of a store, in order.
func (o outcome) values(store string) (values []float64) {
	for _, s := range o.Samples {
		if s.Store == store {
			values = append(values, s.Value)
		}
	}
	return values
}

// limit formats the required limit or the aim for the table.
func (o outcome) limit(value float64) string {
	if o.AtLeast {
		return "≥ " + number.Text(value)
	}
	return "≤ " + number.Text(value)
}

// limits returns the limits of the row.
func (o outcome) limits() limits { return limits{o.Must, o.Aim, o.AtLeast} }

// commands returns the commands of all samples without duplicates.
func (o outcome) commands() (commands []string) {
	for _, s := range o.Samples {
		for _, command := range s.Commands {
			if !slices.Contains(commands, command) {
				commands = append(commands, command)
			}
		}
	}
	return commands
}

// passed reports whether no row missed its limit or failed.
func (r result) passed() bool {
	return !slices.ContainsFunc(r.Rows, func(o outcome) bool {
		return o.Verdict == missed || o.Verdict == failed
	})
}

// save writes result.json and index.html.
func (r result) save(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "result.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return writePage(filepath.Join(folder, "index.html"), r)
}

// print writes the table.
func (r result) print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "row\tmem_etcd\tetcd\tunit\tfigure\t\trequired\taim\tverdict")
	for _, o := range r.Rows {
		if o.Figure == 0 && o.Error != "" {
			fmt.Fprintf(table, "%s\t–\t–\t%s\t–\t%s\t%s\t%s\t%s: %s\n", o.ID, o.Unit, o.FigureName,
				o.limit(o.Must), o.limit(o.Aim), o.Verdict, firstLine(o.Error))
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", o.ID, number.Text(o.Ours), orNone(o.Etcd), o.Unit,
			number.Text(o.Figure), o.FigureName, o.limit(o.Must), o.limit(o.Aim), o.Verdict)
	}
	// The error of the underlying writer cannot be handled: it is the terminal.
	_ = table.Flush()
	for _, o := range r.Rows {
		for _, s := range o.Samples {
			if s.Note != "" {
				fmt.Fprintf(w, "%s, %s: %s\n", o.ID, s.Store, s.Note)
			}
		}
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func orNone(value float64) string {
	if value == 0 {
		return "–"
	}
	return number.Text(value)
}
