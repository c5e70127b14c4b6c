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

// counting is an experiment that needs no cluster.
type counting struct {
	Things Count
	run    func(ctx context.Context, r *Run) error
}

func (c *counting) AddFlags(fs *pflag.FlagSet) { fs.Var(&c.Things, "things", c.Things.Usage("things")) }
func (c *counting) Validate() error            { return nil }
func (c *counting) Run(ctx context.Context, r *Run) error {
	return c.run(ctx, r)
}

// execute runs the experiment at a tenth of the medium scale, and returns its result and the
// directory of its files.
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

// stored reads the result.json of a run.
func stored(t *testing.T, out string) (r struct {
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
		t.Errorf("Execute() = error %v, want one with %q", err, "interrupted")
	}
	r := stored(t, out)
	if !r.Partial || len(r.Tables) != 1 || len(r.Tables[0].Rows) != 1 {
		t.Errorf("stored result = %+v, want a partial result with one table of one row", r)
	}
	page, err := os.ReadFile(filepath.Join(out, "index.html"))
	if err != nil || !strings.Contains(string(page), "partial") {
		t.Errorf("the page does not contain %q (error %v)", "partial", err)
	}
}

func TestFailedRunKeepsPartialResult(t *testing.T) {
	_, out, err := execute(t, t.Context(), func(_ context.Context, r *Run) error {
		r.Result.Note("so far")
		return errors.New("no\nmore")
	})
	if r := stored(t, out); err == nil || !r.Partial || r.Error != "no more" {
		t.Errorf("Execute() = error %v, stored result %+v, want a partial result with error %q", err, r, "no more")
	}
}

func TestRunWithoutMeasurementStoresNoResult(t *testing.T) {
	result, out, err := execute(t, t.Context(), func(_ context.Context, r *Run) error {
		r.Result.Table("Things", "thing")
		return errors.New("no cluster")
	})
	if _, statErr := os.Stat(filepath.Join(out, "result.json")); result != nil || err == nil || !os.IsNotExist(statErr) {
		t.Errorf("Execute() = %v, %v and result.json: %v, want nil, an error and no file", result, err, statErr)
	}
}

func TestRunFailsBeyondErrorRate(t *testing.T) {
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
				t.Errorf("Run() = %d operations with %d latencies, want %d and %d", done, load.Latencies.Count(), 100-failures, 100-failures)
			}
			r.Result.Errors.Merge(load.Tally)
			return nil
		})
		if (err != nil) != fails {
			t.Errorf("Execute() with %d of 100 operations failed = %v, want an error: %v", failures, err, fails)
		}
		r := stored(t, out)
		if r.Errors.Operations != 100 || r.Errors.ByKind["broken"] != failures || r.Partial {
			t.Errorf("stored result = %+v, want a complete result with 100 operations and %d errors", r, failures)
		}
	}
}

func TestParametersFollowFromTheScale(t *testing.T) {
	result, _, err := execute(t, t.Context(), func(context.Context, *Run) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := result.Scale.of(100, 2)
	if got := result.Parameters["things"]; got != text(want) || want < 2 {
		t.Errorf("parameter things = %q, want %d", got, want)
	}
}

func TestScaleFollowsFactorAndMachine(t *testing.T) {
	small := machine.Machine{Cores: 1, MemoryBytes: 8 << 30}
	usual := machine.Machine{Cores: 2, MemoryBytes: 24 << 30}
	large := machine.Machine{Cores: 64, MemoryBytes: 48 << 30}
	for _, c := range []struct {
		scale   string
		machine machine.Machine
		want    int
	}{
		{"medium", usual, 1000},
		{"small", usual, 100},
		{"2.5", usual, 2500},
		{"medium", small, 350}, // limited by its memory
		{"medium", large, 2100},
		{"0.0001", usual, 7}, // not below the minimum
	} {
		scale, err := NewScale(c.scale, c.machine)
		if got := scale.of(1000, 7); err != nil || got != c.want {
			t.Errorf("scale %s on %v: of(1000, 7) = %d (error %v), want %d", c.scale, c.machine, got, err, c.want)
		}
	}
	for _, invalid := range []string{"", "huge", "-1", "0", "NaN", "1e9"} {
		if _, err := NewScale(invalid, usual); !errors.Is(err, usage.Err) {
			t.Errorf("NewScale(%q) = %v, want a usage error", invalid, err)
		}
	}
}

func TestSpanFollowsFromTheFactorAlone(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	given, scaled := SpanByScale(time.Minute, time.Second), SpanByScale(time.Minute, time.Second)
	fs.Var(&given, "given", "")
	fs.Var(&scaled, "scaled", "")
	if err := fs.Parse([]string{"--given", "3s"}); err != nil {
		t.Fatal(err)
	}
	Scale{Factor: 0.5, Machine: 10}.complete(fs)
	if given.D != 3*time.Second || scaled.D != 30*time.Second {
		t.Errorf("spans = %v given and %v scaled, want 3s and 30s", given.D, scaled.D)
	}
	for _, invalid := range []string{"0s", "-1s", "soon"} {
		if err := fs.Parse([]string{"--given", invalid}); err == nil {
			t.Errorf("Parse() of --given %s succeeded, want an error", invalid)
		}
	}
}

func TestJudgeCallsReportsWorstCallPerObjective(t *testing.T) {
	calls := []Call{
		{Verb: "POST", Resource: "pods", Scope: "resource", Count: 10, P99: 0.9},
		{Verb: "PATCH", Resource: "pods", Subresource: "status", Scope: "resource", Count: 5, P99: 1.1},
		{Verb: "GET", Resource: "nodes", Scope: "resource", Count: 3, P99: 0.99},
		{Verb: "LIST", Resource: "pods", Scope: "cluster", Count: 2, P99: 29},
		{Verb: "DELETE", Resource: "pods", Scope: "namespace", Count: 1, P99: 60}, // deletes a collection
	}
	verdicts := JudgeCalls(calls)
	for i, want := range []Verdict{
		{Measured: 1.1, Of: 15, Met: false, Worst: "PATCH pods/status"},
		{Measured: 0.99, Of: 3, Met: true, Worst: "GET nodes"},
		{Measured: 29, Of: 2, Met: true, Worst: "LIST pods (cluster)"},
	} {
		got := verdicts[i]
		if got.Measured != want.Measured || got.Of != want.Of || got.Met != want.Met || got.Worst != want.Worst {
			t.Errorf("JudgeCalls()[%d] = %+v, want %+v", i, got, want)
		}
	}
	if none := JudgeCalls(nil)[0]; none.Met || !strings.Contains(none.String(), "not measured") {
		t.Errorf("JudgeCalls(nil)[0] = %v, want it not measured and not met", none)
	}
}

func TestStartupObjectiveIsFiveSeconds(t *testing.T) {
	for took, met := range map[time.Duration]bool{4 * time.Second: true, 6 * time.Second: false} {
		l := NewLatencies()
		l.Record(took)
		if v := JudgeStartup(l); v.Met != met || v.Of != 1 {
			t.Errorf("JudgeStartup() of one pod after %v = %+v, want met: %v", took, v, met)
		}
	}
}

// TestRatiosAreComparedWithBaseline checks that a ratio of memory or cost is worse if it exceeds
// the band around the stored ratio. Latencies, like p99, are never worse.
func TestRatiosAreComparedWithBaseline(t *testing.T) {
	r := Result{}
	r.Compare("ours", "theirs", []Figure{{"room", "MiB", 50, true}, {"cost", "µs", 20, false}, {"p99", "ms", 90, false}, {"own", "", 1, true}},
		[]Figure{{"room", "MiB", 100, true}, {"cost", "µs", 10, false}, {"p99", "ms", 10, false}})
	if len(r.Ratios) != 3 || r.Ratios[0].Ratio != 0.5 || r.Ratios[1].Ratio != 2 {
		t.Fatalf("Compare() = ratios %+v, want 0.5, 2 and one of p99", r.Ratios)
	}
	baseline := func(room, cost float64) Baseline {
		return Baseline{"x": {
			{Name: "room", Ours: "ours", Peer: "theirs", Ratio: room},
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
			t.Errorf("Changes() = %+v, want %+v and p99 not worse", changes, c)
		}
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
		t.Errorf("merged latencies: P25 %v ms, count %d, maximum %v ms, want 50 ms, 200 and 600000 ms", got, a.Count(), a.Millis(100))
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
		t.Errorf("the maximum latency is %v ms, want at least 200 ms", slowest)
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
		Scale{Factor: factor, Machine: 10}.complete(fs)
		if given.Text != "mine" || scaled.Text != want {
			t.Errorf("choices with factor %g = %s given and %s scaled, want mine and %s", factor, given.Text, scaled.Text, want)
		}
	}
}
