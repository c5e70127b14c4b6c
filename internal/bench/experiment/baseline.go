package experiment

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// DefaultTolerance is the fraction by which a ratio may be worse than the stored ratio.
const DefaultTolerance = 0.5

// checkedUnits are the units of CPU time and memory. Only ratios of figures with these units can fail a
// run.
var checkedUnits = []string{"µs", "CPU s", "MiB", "KiB"}

// Baseline maps the names of experiments to ratios of an earlier run.
type Baseline map[string][]Ratio

// ReadBaseline reads a baseline file.
func ReadBaseline(path string) (Baseline, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist; create it with --record %s", path, path)
	}
	if err != nil {
		return nil, err
	}
	baseline := Baseline{}
	if err := json.Unmarshal(data, &baseline); err != nil {
		return nil, fmt.Errorf("%s does not contain ratios: %w; create it again with --record", path, err)
	}
	return baseline, nil
}

// Write writes the baseline to a file.
func (b Baseline) Write(path string) error {
	data, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// Change is the comparison of a ratio of this run with the stored ratio.
type Change struct {
	Experiment string  `json:"experiment"`
	Ratio      Ratio   `json:"ratio"`
	Stored     float64 `json:"stored"`
	// Factor is the factor by which the ratio is worse than the stored ratio. A factor below 1 means that
	// it is better.
	Factor float64 `json:"factor"`
	// Checked is true for ratios of CPU time and memory. Ratios of rates and latencies are only shown,
	// because other load on the machine changes them too much during a short run.
	Checked bool `json:"checked"`
	// Worse is true if the ratio is checked, and is worse than the stored ratio by more than the band.
	// The run then fails.
	Worse bool `json:"worse"`
	// Repeated is true if the ratio was worse in the first run, and the other fields are those of a
	// second run.
	Repeated bool `json:"repeated,omitempty"`
}

// Changes compares the ratios of an experiment with those in the baseline. It omits ratios that the
// baseline does not contain.
func (b Baseline) Changes(experiment string, ratios []Ratio, band float64) (changes []Change) {
	for _, now := range ratios {
		i := slices.IndexFunc(b[experiment], func(s Ratio) bool {
			return s.Name == now.Name && s.Ours == now.Ours && s.Peer == now.Peer
		})
		if i < 0 {
			continue
		}
		stored := b[experiment][i].Ratio
		factor := now.Ratio / stored
		if now.MoreIsBetter {
			factor = 1 / factor
		}
		checked := slices.Contains(checkedUnits, now.Unit)
		changes = append(changes, Change{
			Experiment: experiment, Ratio: now, Stored: stored, Factor: factor, Checked: checked, Worse: checked && factor > 1+band,
		})
	}
	return changes
}

// Worse returns the number of ratios that are worse.
func Worse(changes []Change) (count int) {
	for _, c := range changes {
		if c.Worse {
			count++
		}
	}
	return count
}

// Confirm returns the changes of the first run, in which each worse ratio is replaced by the same ratio of a
// second run. A ratio that the second run does not have stays worse.
func Confirm(first, second []Change) []Change {
	for i, c := range first {
		again := slices.IndexFunc(second, func(s Change) bool {
			return s.Ratio.Name == c.Ratio.Name && s.Ratio.Ours == c.Ratio.Ours && s.Ratio.Peer == c.Ratio.Peer
		})
		if c.Worse && again >= 0 {
			first[i] = second[again]
			first[i].Repeated = true
		}
	}
	return first
}

// PrintChanges writes the changes as a table.
func PrintChanges(w io.Writer, changes []Change) {
	table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "experiment\tfigure\tours ÷ peer\tstored\tnow\tverdict")
	for _, c := range changes {
		verdict := "ok"
		switch {
		case c.Worse:
			verdict = fmt.Sprintf("WORSE by %.0f %%", 100*(c.Factor-1))
		case !c.Checked:
			verdict = "not checked"
		case c.Repeated:
			verdict = "ok when repeated"
		}
		fmt.Fprintf(table, "%s\t%s\t%s ÷ %s\t%s\t%s\t%s\n", c.Experiment, c.Ratio.Name, c.Ratio.Ours, c.Ratio.Peer,
			number.Text(c.Stored), number.Text(c.Ratio.Ratio), verdict)
	}
	// The error is ignored, because w is the terminal.
	_ = table.Flush()
}
