package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// counting is the options of an experiment that needs no cluster.
type counting struct {
	Things Count
	run    func(ctx context.Context, r *Run) error
}

func (c *counting) AddFlags(fs *pflag.FlagSet) { fs.Var(&c.Things, "things", c.Things.Usage("things")) }
func (c *counting) Validate() error            { return nil }
func (c *counting) Run(ctx context.Context, r *Run) error {
	return c.run(ctx, r)
}

// execute executes an experiment at a tenth of medium scale. It returns the result, and the directory to
// which the result was written.
func execute(t *testing.T, ctx context.Context, run func(context.Context, *Run) error) (*Result, string, error) {
	t.Helper()
	o := &counting{Things: ByScale(100, 2), run: run}
	flags := pflag.NewFlagSet("counting", pflag.ContinueOnError)
	o.AddFlags(flags)
	q := DefaultRequest()
	q.Scale, q.Out, q.Dir = "0.1", filepath.Join(t.TempDir(), "out"), clusterdir.Dir{}
	e := Experiment{Name: "counting", Short: "Count things"}
	result, err := Execute(ctx, e, o, flags, q, progress.New(new(strings.Builder)))
	return result, q.Out, err
}

// readStored reads the result.json of a run.
func readStored(t *testing.T, out string) (r struct {
	Name       string
	Parameters map[string]string
	Tables     []struct{ Rows [][]any }
	Errors     struct {
		Operations int
		ByKind     map[string]int
	}
	Partial bool
	Error   string
}) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(out, "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestInterruptedRunKeepsPartialResult(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	_, out, err := execute(t, ctx, func(ctx context.Context, r *Run) error {
		r.Result.Table("Things", "thing", "took, ms").Add("first", 1.5)
		interrupt()
		<-ctx.Done()
		return ctx.Err()
	})
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("the error of an interrupted run is %v", err)
	}
	r := readStored(t, out)
	if !r.Partial || len(r.Tables) != 1 || len(r.Tables[0].Rows) != 1 {
		t.Errorf("the stored result is %+v; want a partial result with the row that was measured", r)
	}
	page, err := os.ReadFile(filepath.Join(out, "index.html"))
	if err != nil || !strings.Contains(string(page), "partial") {
		t.Errorf("the page is not marked as partial: %v", err)
	}
}

func TestFailedRunKeepsPartialResult(t *testing.T) {
	_, out, err := execute(t, t.Context(), func(_ context.Context, r *Run) error {
		r.Result.Note("so far")
		return errors.New("no\nmore")
	})
	if r := readStored(t, out); err == nil || !r.Partial || r.Error != "no more" {
		t.Errorf("the run returned %v and stored %+v; want an error, and a partial result with that error", err, r)
	}
}

func TestRunWithoutMeasurementWritesNothing(t *testing.T) {
	result, out, err := execute(t, t.Context(), func(_ context.Context, r *Run) error {
		r.Result.Table("Things", "thing")
		return errors.New("no cluster")
	})
	if _, stat := os.Stat(filepath.Join(out, "result.json")); result != nil || err == nil || !os.IsNotExist(stat) {
		t.Errorf("the run returned %v, %v, and os.Stat of result.json %v; want an error, no result and no file",
			result, err, stat)
	}
}

func TestRunFailsAboveMaxErrorRate(t *testing.T) {
	for failures, fails := range map[int]bool{0: false, 1: false, 2: true} {
		_, out, err := execute(t, t.Context(), func(ctx context.Context, r *Run) error {
			load := Load{
				Workers: 4, Count: 100, Latencies: NewLatencies(), Tally: NewTally(1), Kind: func(error) string { return "broken" },
				Do: func(_ context.Context, number, _ int) error {
					if number < failures {
						return errors.New("broken thing")
					}
					return nil
				},
			}
			if done := load.Run(ctx); done != 100-failures || load.Latencies.Count() != int64(done) {
				t.Errorf("with %d failures, %d operations succeeded and %d latencies were recorded",
					failures, done, load.Latencies.Count())
			}
			r.Result.Errors.Merge(load.Tally)
			return nil
		})
		if (err != nil) != fails {
			t.Errorf("%d of 100 operations failed, and the run returned %v", failures, err)
		}
		r := readStored(t, out)
		if r.Errors.Operations != 100 || r.Errors.ByKind["broken"] != failures || r.Partial {
			t.Errorf("with %d failures of 100 operations, the stored result is %+v", failures, r)
		}
	}
}

func TestParametersFollowFromTheScale(t *testing.T) {
	result, _, err := execute(t, t.Context(), func(context.Context, *Run) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := result.Scale.count(100, 2)
	if got := result.Parameters["things"]; got != text(want) || want < 2 {
		t.Errorf("the parameter things is %q, want %d", got, want)
	}
}

func TestScale(t *testing.T) {
	small := machine.Machine{Cores: 1, MemoryBytes: 8 << 30}
	reference := machine.Machine{Cores: 2, MemoryBytes: 24 << 30}
	large := machine.Machine{Cores: 64, MemoryBytes: 48 << 30}
	for _, c := range []struct {
		scale   string
		machine machine.Machine
		want    int
	}{
		{"medium", reference, 1000},
		{"small", reference, 100},
		{"2.5", reference, 2500},
		{"medium", small, 350}, // limited by memory
		{"medium", large, 2100},
		{"0.0001", reference, 7}, // not below the minimum
	} {
		scale, err := NewScale(c.scale, c.machine)
		if got := scale.count(1000, 7); err != nil || got != c.want {
			t.Errorf("scale %s on %v: the count is %d, want %d; error: %v", c.scale, c.machine, got, c.want, err)
		}
	}
	for _, bad := range []string{"", "huge", "-1", "0", "NaN", "1e9"} {
		if _, err := NewScale(bad, reference); !errors.Is(err, usage.Err) {
			t.Errorf("--scale %q returned %v, not a usage error", bad, err)
		}
	}
}

func TestCountAtLeast(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	given, raised := ByScale(100, 2), ByScale(100, 2)
	fs.Var(&given, "given", "")
	fs.Var(&raised, "raised", "")
	if err := fs.Parse([]string{"--given", "30"}); err != nil {
		t.Fatal(err)
	}
	given.AtLeast(500)
	raised.AtLeast(500)
	Scale{Factor: 1, Machine: 1}.setUnsetFlags(fs)
	if given.N != 30 || raised.N != 500 {
		t.Errorf("the counts are %d and %d; want 30 as given, and at least 500", given.N, raised.N)
	}
}

func TestSpanDoesNotDependOnTheMachine(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	given, scaled := SpanByScale(time.Minute, time.Second), SpanByScale(time.Minute, time.Second)
	fs.Var(&given, "given", "")
	fs.Var(&scaled, "scaled", "")
	if err := fs.Parse([]string{"--given", "3s"}); err != nil {
		t.Fatal(err)
	}
	Scale{Factor: 0.5, Machine: 10}.setUnsetFlags(fs)
	if given.D != 3*time.Second || scaled.D != 30*time.Second {
		t.Errorf("the durations are %v and %v; want 3s as given, and 30s by the scale", given.D, scaled.D)
	}
	for _, bad := range []string{"0s", "-1s", "soon"} {
		if err := fs.Parse([]string{"--given", bad}); err == nil {
			t.Errorf("--given %s was accepted", bad)
		}
	}
}

func TestJudgeCalls(t *testing.T) {
	calls := []Call{
		{Verb: "POST", Resource: "pods", Scope: "resource", Count: 10, P99: 0.9},
		{Verb: "PATCH", Resource: "pods", Subresource: "status", Scope: "resource", Count: 5, P99: 1.1},
		{Verb: "GET", Resource: "nodes", Scope: "resource", Count: 3, P99: 0.99},
		{Verb: "LIST", Resource: "pods", Scope: "cluster", Count: 2, P99: 29},
		{Verb: "DELETE", Resource: "pods", Scope: "namespace", Count: 1, P99: 60}, // deletes a collection
	}
	verdicts := JudgeCalls(calls)
	for i, want := range []Verdict{
		{Measured: 1.1, Operations: 15, Met: false, Worst: "PATCH pods/status"},
		{Measured: 0.99, Operations: 3, Met: true, Worst: "GET nodes"},
		{Measured: 29, Operations: 2, Met: true, Worst: "LIST pods (cluster)"},
	} {
		got := verdicts[i]
		if got.Measured != want.Measured || got.Operations != want.Operations || got.Met != want.Met || got.Worst != want.Worst {
			t.Errorf("verdict %d is %+v, want %+v", i, got, want)
		}
	}
	if none := JudgeCalls(nil)[0]; none.Met || !strings.Contains(none.String(), "not measured") {
		t.Errorf("the verdict without measurements is %v", none)
	}
}

func TestMissedObjective(t *testing.T) {
	met := Verdict{Name: "met", Measured: 2, Limit: 1, AtLeast: true, Operations: 1, Must: true}.Judged()
	aim := Verdict{Name: "aim", Measured: 2, Limit: 1, Operations: 1}.Judged()
	missed := Verdict{Name: "must", Measured: 0.5, Limit: 1, AtLeast: true, Operations: 1, Must: true}.Judged()
	r := &Result{Verdicts: []Verdict{met, aim}}
	if err := r.missed(); err != nil {
		t.Errorf("missed() without a missed objective that must be met = %v, want nil", err)
	}
	r.Verdicts = append(r.Verdicts, missed)
	if err := r.missed(); err == nil || !strings.Contains(err.Error(), "must: 0.5 ≥ 1") || strings.Contains(err.Error(), "aim") {
		t.Errorf("missed() = %v, want an error that names only the objective that must be met", err)
	}
}

func TestJudgeStartup(t *testing.T) {
	for took, met := range map[time.Duration]bool{4 * time.Second: true, 6 * time.Second: false} {
		l := NewLatencies()
		l.Record(took)
		if v := JudgeStartup(l); v.Met != met || v.Operations != 1 {
			t.Errorf("the verdict of a startup of %v is %+v, want met: %v", took, v, met)
		}
	}
}

func TestBaselineChanges(t *testing.T) {
	r := Result{}
	r.Compare("ours", "theirs",
		[]Figure{{"free memory", "MiB", 50, true}, {"cost", "µs", 20, false}, {"p99", "ms", 90, false}, {"only ours", "", 1, true}},
		[]Figure{{"free memory", "MiB", 100, true}, {"cost", "µs", 10, false}, {"p99", "ms", 10, false}})
	if len(r.Ratios) != 3 || r.Ratios[0].Ratio != 0.5 || r.Ratios[1].Ratio != 2 {
		t.Fatalf("Compare appended %+v; want 3 ratios, of which the first are 0.5 and 2", r.Ratios)
	}
	baseline := func(memory, cost float64) Baseline {
		return Baseline{"x": {
			{Name: "free memory", Ours: "ours", Peer: "theirs", Ratio: memory},
			{Name: "cost", Ours: "ours", Peer: "theirs", Ratio: cost},
			{Name: "p99", Ours: "ours", Peer: "theirs", Ratio: 1},
		}}
	}
	for _, c := range []struct {
		memory, cost           float64
		memoryWorse, costWorse bool
	}{{0.5, 2, false, false}, {0.7, 1.4, false, false}, {0.8, 1.2, true, true}, {0.1, 9, false, false}} {
		changes := baseline(c.memory, c.cost).Changes("x", r.Ratios, 0.5)
		if len(changes) != 3 || changes[0].Worse != c.memoryWorse || changes[1].Worse != c.costWorse || changes[2].Worse {
			t.Errorf("for %+v, Changes returned %+v", c, changes)
		}
	}
}

// TestOnlyRatiosThatAreWorseTwiceCount combines the ratios of two runs of an experiment.
func TestOnlyRatiosThatAreWorseTwiceCount(t *testing.T) {
	change := func(name string, worse bool) Change { return Change{Ratio: Ratio{Name: name}, Worse: worse} }
	first := []Change{change("stays worse", true), change("was noise", true), change("missing", true), change("fine", false)}
	second := []Change{change("fine", true), change("was noise", false), change("stays worse", true)}
	got := Confirm(first, second)
	if Worse(got) != 2 || !got[0].Worse || got[1].Worse || !got[1].Repeated || !got[2].Worse || got[3].Worse {
		t.Errorf("Confirm returned %+v, want that only the first and the third ratio are worse", got)
	}
}

func TestLatenciesMerge(t *testing.T) {
	a, b := NewLatencies(), NewLatencies()
	for i := range 100 {
		a.Record(time.Duration(i+1) * time.Millisecond)
		b.Record(time.Hour) // counts as ten minutes
	}
	a.Merge(b)
	if got := a.Millis(25); math.Abs(got-50) > 1 || a.Count() != 200 || math.Abs(a.Millis(100)-600_000) > 600 {
		t.Errorf("p25 is %v ms, want 50; the count is %d, want 200; the maximum is %v ms, want 600,000",
			got, a.Count(), a.Millis(100))
	}
}

func TestLatencyCountsFromScheduledStart(t *testing.T) {
	l := Load{
		Workers: 1, Rate: 100, Count: 5, Latencies: NewLatencies(), Tally: NewTally(1), Kind: func(error) string { return "" },
		Do: func(context.Context, int, int) error { time.Sleep(50 * time.Millisecond); return nil },
	}
	l.Run(t.Context())
	// The fifth operation was scheduled at 40 ms and ended at 250 ms.
	if slowest := l.Latencies.Millis(100); slowest < 200 {
		t.Errorf("the maximum latency is %v ms, want at least 200", slowest)
	}
}

func TestChoiceFollowsFromTheScale(t *testing.T) {
	for factor, want := range map[float64]string{0.1: "small", 1: "medium", 5: "medium"} {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		given, scaled := ChoiceByScale("medium", "small"), ChoiceByScale("medium", "small")
		fs.Var(&given, "given", "")
		fs.Var(&scaled, "scaled", "")
		if err := fs.Parse([]string{"--given", "mine"}); err != nil {
			t.Fatal(err)
		}
		Scale{Factor: factor, Machine: 10}.setUnsetFlags(fs)
		if given.Text != "mine" || scaled.Text != want {
			t.Errorf("with factor %g the texts are %q and %q; want %q as given, and %q by the scale",
				factor, given.Text, scaled.Text, "mine", want)
		}
	}
}
