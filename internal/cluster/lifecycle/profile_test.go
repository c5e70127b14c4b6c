package lifecycle

import (
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// A profile raises the timeout and seeds the store of a new cluster, unless the user has set these flags.
func TestUseProfile(t *testing.T) {
	const short, long = time.Minute, 10 * time.Minute
	cases := []struct {
		name    string
		args    []string
		change  func(*clusterdir.Settings)
		exists  bool
		timeout time.Duration
		seeds   bool
	}{
		{name: "new cluster", timeout: long, seeds: true},
		{name: "existing cluster", exists: true, timeout: long},
		{name: "--timeout", args: []string{"--timeout", "1m"}, timeout: short, seeds: true},
		{name: "--seed-store=false", args: []string{"--seed-store=false"}, timeout: long},
		{name: "external store", change: func(s *clusterdir.Settings) { s.StoreAddress = "http://127.0.0.1:1" }, timeout: long},
		{name: "data directory", change: func(s *clusterdir.Settings) { s.DataDir = "/data" }, timeout: long},
		{name: "no durable data", change: func(s *clusterdir.Settings) { s.WALMode = clusterdir.WALNone }, timeout: long},
		{name: "no profile", change: func(s *clusterdir.Settings) { s.Applied = clusterdir.AppliedProfile{} }, timeout: short},
	}
	for _, c := range cases {
		settings := clusterdir.DefaultSettings()
		settings.Nodes, settings.Applied = 100_000, clusterdir.AppliedProfile{Name: "50k"}
		settings.Complete()
		if c.change != nil {
			c.change(&settings)
		}
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		flags.Duration("timeout", short, "")
		flags.Bool("seed-store", false, "")
		if err := flags.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		announced := 0
		got := useProfile(UpOptions{Flags: flags, Timeout: short, AnnounceProfile: func(p clusterdir.AppliedProfile) { announced = len(p.Changes) }}, settings, !c.exists)
		if got.Timeout != c.timeout || got.SeedStore != c.seeds {
			t.Errorf("%s: timeout %s, seeds %v; want %s, %v", c.name, got.Timeout, got.SeedStore, c.timeout, c.seeds)
		}
		want := 0
		if c.timeout == long {
			want++
		}
		if c.seeds {
			want++
		}
		if announced != want || len(settings.Applied.Changes) != 0 {
			t.Errorf("%s: %d changes are announced, want %d; saved are %v", c.name, announced, want, settings.Applied.Changes)
		}
	}
}
