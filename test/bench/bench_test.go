package main

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/util/machine"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		first := c.values[0]
		if got := median(c.values); got != c.want {
			t.Errorf("median(%v) = %v, not %v", c.values, got, c.want)
		}
		if c.values[0] != first {
			t.Error("the values were sorted in place")
		}
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		limits limits
		figure float64
		want   verdict
	}{
		{atLeast(5, 8), 8, aimMet},
		{atLeast(5, 8), 7.9, requiredMet},
		{atLeast(5, 8), 5, requiredMet},
		{atLeast(5, 8), 4.9, missed},
		{atMost(16, 8), 8, aimMet},
		{atMost(16, 8), 16, requiredMet},
		{atMost(16, 8), 16.1, missed},
		{atMost(10, 2), 0, aimMet},
		{atMost(10, 2), math.NaN(), failed},
		{atLeast(5, 8), math.Inf(1), failed},
	} {
		if got := c.limits.judge(c.figure); got != c.want {
			t.Errorf("%v judges %v as %q, not %q", c.limits, c.figure, got, c.want)
		}
	}
}

func TestShortRunsMayMissLimitsByHalf(t *testing.T) {
	for figure, want := range map[float64]verdict{8: aimMet, 5: requiredMet, 4.9: near, 3.4: near, 3.3: missed} {
		if got := atLeast(5, 8).judgeShort(figure); got != want {
			t.Errorf("%g: %q, not %q", figure, got, want)
		}
	}
	if got := atMost(16, 8).judgeShort(23); got != near {
		t.Errorf("judgeShort(23) with a limit of at most 16 = %q, not %q", got, near)
	}
	if got := atMost(16, 8).judgeShort(math.NaN()); got != failed {
		t.Errorf("judgeShort(NaN) = %q, not %q", got, failed)
	}
}

func TestConclusion(t *testing.T) {
	r := row{ID: "put-client", Stores: []string{ours, etcd}, Figure: etcdOverOurs, Limits: atLeast(5, 8)}
	samples := []sample{
		{Store: ours, Value: 10}, {Store: etcd, Value: 90},
		{Store: ours, Value: 30}, {Store: etcd, Value: 80},
		{Store: ours, Value: 12}, {Store: etcd, Value: 84},
	}
	whole := conclude(r, samples, nil, r.Limits.judge)
	if whole.Ours != 12 || whole.Etcd != 84 || whole.Figure != 7 || whole.Verdict != requiredMet {
		t.Errorf("conclude returned %+v; want medians of 12 and 84, the figure 7 and %q", whole, requiredMet)
	}
	if short := conclude(r, samples, nil, func(float64) verdict { return notJudged }); short.Verdict != notJudged || short.Figure != 7 {
		t.Errorf("conclude of a row that is not judged returned %+v; want the figure 7 and %q", short, notJudged)
	}
	broken := conclude(r, samples[:4], errors.New("it broke"), r.Limits.judge)
	if broken.Verdict != failed || broken.Figure == 0 || len(broken.Samples) != 4 {
		t.Errorf("conclude with an error after 4 samples returned %+v; want %q, a figure and 4 samples", broken, failed)
	}
	nothing := conclude(r, samples[:1], errors.New("it broke"), r.Limits.judge)
	if nothing.Verdict != failed || nothing.Figure != 0 {
		t.Errorf("conclude without samples of etcd returned %+v; want %q without a figure", nothing, failed)
	}
}

func TestPassed(t *testing.T) {
	for verdicts, want := range map[[2]verdict]bool{
		{aimMet, requiredMet}: true,
		{aimMet, notJudged}:   true,
		{aimMet, near}:        true,
		{aimMet, missed}:      false,
		{failed, notJudged}:   false,
	} {
		r := result{Rows: []outcome{{Verdict: verdicts[0]}, {Verdict: verdicts[1]}}}
		if r.passed() != want {
			t.Errorf("with the verdicts %v, passed() = %v, not %v", verdicts, r.passed(), want)
		}
	}
}

func TestChoose(t *testing.T) {
	l := &lab{}
	all := rows(l)
	if chosen, err := choose(all, ""); err != nil || len(chosen) != len(all) {
		t.Errorf("choosing all rows returned %d rows, error %v; want %d rows", len(chosen), err, len(all))
	}
	if chosen, err := choose(all, "watch,put"); err != nil || len(chosen) != 2 || chosen[0].ID != "put" {
		t.Errorf("choosing watch and put returned %v, error %v; want put and watch", chosen, err)
	}
	if _, err := choose(all, "put,nothing"); !errors.Is(err, errUsage) {
		t.Errorf("choosing an unknown row returned the error %v; want a usage error", err)
	}
}

func TestPageOfPartialResult(t *testing.T) {
	l := &lab{diskName: "ext4"}
	r := result{Machine: machine.This(), Disk: "ext4", Repeat: 3}
	for i, row := range rows(l) {
		samples := []sample{{Store: ours, Value: 2, Commands: []string{"mem_etcd <flags>"}}, {Store: etcd, Value: 20}}
		r.Rows = append(r.Rows, conclude(row, samples[:i%3], nil, row.Limits.judge))
	}
	if err := r.save(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	r.print(&text)
	if lines := strings.Count(text.String(), "\n"); lines != len(r.Rows)+1 {
		t.Errorf("the table has %d lines; want %d:\n%s", lines, len(r.Rows)+1, text.String())
	}
}
