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

// DefaultBand is how much worse a ratio may get, as a part of what is stored.
const DefaultBand = 0.5

// heldUnits are those of CPU time and memory.
var heldUnits = []string{"µs", "CPU s", "MiB"}

// Baseline has the ratios of earlier short runs, by experiment.
type Baseline map[string][]Ratio

// ReadBaseline reads a file of ratios.
func ReadBaseline(path string) (Baseline, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: there is none yet; make it with --record %s", path, path)
	}
	if err != nil {
		return nil, err
	}
	baseline := Baseline{}
	if err := json.Unmarshal(data, &baseline); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; make it again with --record", path, err)
	}
	return baseline, nil
}

// Write the file.
func (b Baseline) Write(path string) error {
	data, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// Change of a ratio since the baseline.
type Change struct {
	Experiment string  `json:"experiment"`
	Ratio      Ratio   `json:"ratio"`
	Stored     float64 `json:"stored"`
	// Times worse than stored; less than 1 is better.
	Times float64 `json:"times"`
	// Held: it fails a run that is worse by more than the band. So are CPU and memory.
	// Rates and latencies of a short run are shown, and not held against those of
	// another: what else the machine does changes them too much.
	Held  bool `json:"held"`
	Worse bool `json:"worse"`
}

// Changes of the ratios that the baseline has of an experiment as well.
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
		held := slices.Contains(heldUnits, now.Unit)
		changes = append(changes, Change{
			Experiment: experiment, Ratio: now, Stored: stored, Times: times, Held: held, Worse: held && times > 1+band,
		})
	}
	return changes
}

// PrintChanges writes them for people.
func PrintChanges(w io.Writer, changes []Change) {
	table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "experiment\tfigure\tours ÷ peer\tstored\tnow\tverdict")
	for _, c := range changes {
		verdict := "ok"
		switch {
		case c.Worse:
			verdict = fmt.Sprintf("WORSE by %.0f %%", 100*(c.Times-1))
		case !c.Held:
			verdict = "not held"
		}
		fmt.Fprintf(table, "%s\t%s\t%s ÷ %s\t%s\t%s\t%s\n", c.Experiment, c.Ratio.Name, c.Ratio.Ours, c.Ratio.Peer,
			number.Text(c.Stored), number.Text(c.Ratio.Ratio), verdict)
	}
	// It writes to memory until here; what w says is the terminal's business.
	_ = table.Flush()
}
