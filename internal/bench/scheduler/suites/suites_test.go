package suites

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
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
		t.Errorf("the rows are %+v and the ratios %+v; want two rows of 20 pods and two ratios", rows, r.Ratios)
	}
}

func TestPerfReadsPartialResults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "result.json")
	const found = `{"rows": [
		{"package": "misc", "case": "Basic", "workload": "500Nodes", "stockPodsPerSecond": 100, "oursPodsPerSecond": 250, "ratio": 2.5,
			"threshold": 680, "stockSeconds": 9, "oursSeconds": 4, "runs": [{}, {}]},
		{"package": "affinity", "case": "Slow", "workload": "5Nodes", "stockPodsPerSecond": 0, "oursPodsPerSecond": 9, "runs": [{"error": "timed out"}, {}]}]}`
	if err := os.WriteFile(file, []byte(found), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &experiment.Result{Errors: experiment.NewTally(1)}
	if err := new(perfOptions).addRows(r, file); err != nil {
		t.Fatal(err)
	}
	if rows := r.Tables[0].Rows; len(rows) != 2 ||
		fmt.Sprint(rows[0]) != "[misc/Basic/500Nodes 100 250 2.5 680 9 4 ]" || fmt.Sprint(rows[1]) != "[affinity/Slow/5Nodes 0 9 0 0 0 0 timed out]" {
		t.Errorf("the table has the rows %v", rows)
	}
	if len(r.Ratios) != 1 || r.Ratios[0].Ratio != 2.5 || r.Errors.Rate() != 0.25 {
		t.Errorf("the ratios are %+v and the error rate %g; want one ratio of 2.5, and 0.25", r.Ratios, r.Errors.Rate())
	}
}

func TestKubeSchedulerRunsWithFewestNodesOnly(t *testing.T) {
	o, flags := scheduleKinds.New().(*kindsOptions), pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse([]string{"--nodes", "50,100", "--pods", "20", "--kinds", "plain,unique"}); err != nil {
		t.Fatal(err)
	}
	var runs []string
	for _, run := range o.runs() {
		runs = append(runs, fmt.Sprintf("%s %s %d %d", run.Scheduler, run.PodKind, run.Nodes, run.Pods))
	}
	want := []string{
		"dist-scheduler plain 50 20", "kube-scheduler plain 50 20", "dist-scheduler plain 100 20",
		"dist-scheduler unique 50 20", "kube-scheduler unique 50 20", "dist-scheduler unique 100 20",
	}
	if !slices.Equal(runs, want) {
		t.Errorf("the runs are %q, want %q", runs, want)
	}
}

func TestKindsWithLimitsAreJudged(t *testing.T) {
	o, run := &kindsOptions{Kinds: []string{"plain", "pvc", "claim"}, Pods: experiment.Fixed(1)}, &experiment.Run{Result: &experiment.Result{}}
	run.Scale.Factor = 1
	ours := []experiment.Figure{{Name: cpuFigure("plain"), Value: 10}, {Name: cpuFigure("pvc"), Value: 10}, {Name: cpuFigure("claim"), Value: 10}}
	peer := []experiment.Figure{{Name: cpuFigure("plain"), Value: 10}, {Name: cpuFigure("pvc"), Value: 100}, {Name: cpuFigure("claim"), Value: 40}}
	run.Result.Compare("a", "b", ours, peer)
	o.judge(run)
	var got []string
	for _, v := range run.Result.Verdicts {
		got = append(got, fmt.Sprintf("%s %g %t %t", v.Name, v.Measured, v.Must, v.Met))
	}
	want := []string{
		"pvc: CPU per pod, kube-scheduler ÷ dist-scheduler, must 10 true true", "pvc: CPU per pod, kube-scheduler ÷ dist-scheduler, aim 10 false false",
		"claim: CPU per pod, kube-scheduler ÷ dist-scheduler, must 4 true false", "claim: CPU per pod, kube-scheduler ÷ dist-scheduler, aim 4 false false",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the verdicts are %q, want %q", got, want)
	}
}

func TestInvalidKindsOptionsAreUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"--kinds plain,plain":      "twice",
		"--kinds x":                "no such kind",
		"--nodes 100,50":           "ascending numbers",
		"--nodes 50,50":            "ascending numbers",
		"--nodes 0":                "--nodes 0",
		"--schedulers x":           "no such scheduler",
		"--nodes 10 --pods 100000": "10 nodes have room for",
	} {
		o, flags := scheduleKinds.New(), pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(flags)
		if err := flags.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s, Validate returned %v, want an error with %q", args, err, want)
		}
	}
}
