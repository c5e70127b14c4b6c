package storecluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func TestInvalidOptionsAreUsageErrors(t *testing.T) {
	for _, c := range []struct{ flags, want string }{
		{"--parts put", `--parts "put": choose one of puts, kill`},
		{"--parts=", "--parts: the list is empty"},
		{"--stores zookeeper", `--stores "zookeeper"`},
		{"--members 2", "choose 3, 5 or 7"},
		{"--members 9", "choose 3, 5 or 7"},
		{"--clients 0", "choose 1 or more"},
		{"--timeout 0s", "must be more than 0"},
	} {
		o := defaultOptions()
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(flags)
		if err := flags.Parse(strings.Fields(c.flags)); err != nil {
			t.Fatal(err)
		}
		if err := o.Validate(); !errors.Is(err, usage.Err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Validate() with %s = %v, want a usage error with %q", c.flags, err, c.want)
		}
	}
	if err := defaultOptions().Validate(); err != nil {
		t.Errorf("Validate() of the defaults = %v", err)
	}
}

// newBench returns a run at medium scale.
func newBench() *bench {
	return &bench{Run: &experiment.Run{Result: &experiment.Result{}, Scale: experiment.Scale{Factor: 1}}, options: defaultOptions()}
}

// TestWhatIsNotMeasuredIsNotMet checks that a verdict without a measurement has the reason, and fails the run.
func TestWhatIsNotMeasuredIsNotMet(t *testing.T) {
	const reason = "--stores has only [etcd]"
	b := newBench()
	b.options.Stores = []string{storemembers.Etcd}
	b.judgeRatio(limitKill, storemembers.MemEtcd, storemembers.Etcd, map[string]float64{storemembers.Etcd: 1800}, 30)
	must, aim := b.Result.Verdicts[0], b.Result.Verdicts[1]
	if must.Met || !must.Must || must.Reason != reason || must.Operations != 0 || aim.Met || aim.Must {
		t.Errorf("the verdicts are %+v and %+v", must, aim)
	}
	if text := must.String(); !strings.HasSuffix(text, "not measured: "+reason) {
		t.Errorf("the verdict is %q", text)
	}
}

func TestRatiosAreJudged(t *testing.T) {
	for _, c := range []struct {
		ours      float64
		must, aim bool
	}{{1000, true, true}, {2000, true, false}, {2200, false, false}} {
		b := newBench()
		b.judgeRatio(limitKill, storemembers.MemEtcd, storemembers.Etcd, map[string]float64{storemembers.MemEtcd: c.ours, storemembers.Etcd: 1800}, 30)
		if v := b.Result.Verdicts; v[0].Met != c.must || v[1].Met != c.aim || v[0].Reason != "" {
			t.Errorf("with %.0f ms against 1800 ms the verdicts are %+v", c.ours, v)
		}
	}
}

func TestProberKeepsTheLongestPause(t *testing.T) {
	p := &prober{}
	p.begin()
	start := p.last
	for _, ack := range []struct{ sent, at time.Duration }{{1, 5}, {-50, 8}, {20, 1008}, {1009, 1012}} {
		p.acknowledged(start.Add(ack.sent*time.Millisecond), start.Add(ack.at*time.Millisecond))
	}
	if p.pause() != time.Second {
		t.Errorf("the longest pause is %v, want %v", p.pause(), time.Second)
	}
	if p.acks != 3 {
		t.Errorf("%d acknowledged puts were sent after the mark, want 3", p.acks)
	}
	p.begin()
	if p.pause() != 0 || p.acks != 0 {
		t.Errorf("after begin() the pause is %v with %d puts", p.pause(), p.acks)
	}
}
