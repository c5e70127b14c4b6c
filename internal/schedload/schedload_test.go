package schedload

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/experiment"
	"github.com/k8s-1m/k8s-1m/internal/progress"
)

func TestAffinity(t *testing.T) {
	o, flags := scheduleAffinity.New(), pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse([]string{"--nodes", "50", "--pods", "20"}); err != nil {
		t.Fatal(err)
	}
	q := experiment.DefaultRequest()
	q.Out = filepath.Join(t.TempDir(), "out")
	r, err := experiment.Execute(t.Context(), scheduleAffinity, o, flags, q, progress.New(new(strings.Builder)))
	if err != nil {
		t.Fatal(err)
	}
	if rows := r.Tables[0].Rows; len(rows) != 2 || rows[0][3] != 20 || len(r.Ratios) != 2 || r.Ratios[0].Ratio <= 0 {
		t.Errorf("%+v %+v", rows, r.Ratios)
	}
}

func TestPerfTakesWhatThereIs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "result.json")
	const found = `{"rows": [
		{"package": "misc", "case": "Basic", "workload": "500Nodes", "stockPodsPerSecond": 100, "oursPodsPerSecond": 250, "ratio": 2.5, "runs": [{}, {}]},
		{"package": "affinity", "case": "Slow", "workload": "5Nodes", "stockPodsPerSecond": 0, "oursPodsPerSecond": 9, "runs": [{"error": "timed out"}, {}]}]}`
	if err := os.WriteFile(file, []byte(found), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &experiment.Result{Errors: experiment.NewTally(1)}
	if err := new(perfOptions).take(r, file); err != nil {
		t.Fatal(err)
	}
	if rows := r.Tables[0].Rows; len(rows) != 2 || rows[0][0] != "misc/Basic/500Nodes" || rows[1][4] != "timed out" {
		t.Errorf("%v", rows)
	}
	if len(r.Ratios) != 1 || r.Ratios[0].Ratio != 2.5 || r.Errors.Rate() != 0.25 {
		t.Errorf("%+v, error rate %g", r.Ratios, r.Errors.Rate())
	}
}
