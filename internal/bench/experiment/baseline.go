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

// DefaultBand is the fraction by which a ratio may exceed the stored ratio.
const DefaultBand = 0.5

// checkedUnits are the units of CPU time and memory, whose ratios can fail a run.
var checkedUnits = []string{"µs", "CPU s", "MiB"}

// Baseline maps experiments to the ratios of an earlier run at small scale.
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
		return nil, fmt.Errorf("%s is damaged: %w; create it again with --record", path, err)
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

// Change compares a ratio of this run with the stored ratio.
type Change struct {
	Experiment string  `json:"experiment"`
	Ratio      Ratio   `json:"ratio"`
	Stored     float64 `json:"stored"`
	// Times is the factor by which the ratio is worse than the stored ratio; less than 1 is better.
	Times float64 `json:"times"`
	// Checked reports that the run fails if the ratio is worse by more than the band. This applies
	// to CPU and memory. Rates and latencies of a short run are only shown, because other load on
	// the machine changes them too much.
	Checked bool `json:"held"`
	Worse   bool `json:"worse"`
}

// Changes returns the changes of the ratios that the baseline also contains for the experiment.
func (b Baseline) Changes(experiment string, ratios []Ratio, band float64) (changes []Change) {
	for _, now := range ratios {
		i := slices.IndexFunc(b[experiment], func(stored Ratio) bool {
			return stored.Name == now.Name && stored.Ours == now.Ours && stored.Peer == now.Peer
		})
		if i < 0 {
			continue
		}
		stored := b[experiment][i].Ratio
		times := now.Ratio / stored
		if now.MoreIsBetter {
			times = 1 / times
		}
		checked := slices.Contains(checkedUnits, now.Unit)
		changes = append(changes, Change{
			Experiment: experiment, Ratio: now, Stored: stored, Times: times, Checked: checked, Worse: checked && times > 1+band,
		})
	}
	return changes
}

// PrintChanges writes the changes as a table.
func PrintChanges(w io.Writer, changes []Change) {
	table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "experiment\tfigure\tours ÷ peer\tstored\tnow\tverdict")
	for _, c := range changes {
		verdict := "ok"
		switch {
		case c.Worse:
			verdict = fmt.Sprintf("WORSE by %.0f %%", 100*(c.Times-1))
		case !c.Checked:
			verdict = "not checked"
		}
		fmt.Fprintf(table, "%s\t%s\t%s ÷ %s\t%s\t%s\t%s\n", c.Experiment, c.Ratio.Name, c.Ratio.Ours, c.Ratio.Peer,
			number.Text(c.Stored), number.Text(c.Ratio.Ratio), verdict)
	}
	// The error of the underlying writer cannot be handled: it is the terminal.
	_ = table.Flush()
}
