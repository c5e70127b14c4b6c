package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/seed"
)

// TestSeedErrorsHaveARemedyThatWorks checks that users are sent to `k1m down` only if it empties the store.
func TestSeedErrorsHaveARemedyThatWorks(t *testing.T) {
	const down, otherDir, deleteKeys = "remove the cluster with `k1m down --name test`", "name an empty directory with --data-dir",
		"delete the keys of the store with `etcdctl del --prefix /registry/`"
	notEmpty := fmt.Errorf("%w: it has 7 keys", seed.ErrNotEmpty)
	incomplete := fmt.Errorf("%w; %w: no space left", context.Canceled, seed.ErrIncomplete)
	failed := errors.New("no space left")
	inDir, external := func(s *clusterdir.Settings) { s.DataDir = "/big" }, func(s *clusterdir.Settings) { s.StoreAddress = "http://127.0.0.1:2379" }
	cases := []struct {
		name        string
		change      func(*clusterdir.Settings)
		err         error
		interrupted bool
		want        string // end of the error
	}{
		{"not empty", func(*clusterdir.Settings) {}, notEmpty, false, "it has 7 keys; omit the flag to create missing nodes through the API, or " + down},
		{"not empty, --data-dir", inDir, notEmpty, false, "through the API, or " + otherDir},
		{"not empty, --store-address", external, notEmpty, false, "through the API, or " + deleteKeys},
		{"not removed", func(*clusterdir.Settings) {}, incomplete, false, "no space left; before you repeat the command, " + down},
		{"not removed, --data-dir", inDir, incomplete, true, "the store keeps a part of the nodes: no space left; before you repeat the command, " + otherDir},
		{"not removed, --store-address", external, incomplete, true, "before you repeat the command, " + deleteKeys},
		{"removed", inDir, context.Canceled, true, "interrupted before the cluster was complete; repeat the command"},
		{"failed", external, failed, false, "no space left"},
	}
	for _, c := range cases {
		config := clusterdir.NewConfig("test", clusterdir.DefaultSettings())
		c.change(&config.Settings)
		got := seedError(config, c.err, c.interrupted)
		if !strings.HasSuffix(got.Error(), c.want) || errors.Is(got, ErrInterrupted) != c.interrupted {
			t.Errorf("%s: seedError() = %q, want it to end with %q and to be an interruption: %v", c.name, got, c.want, c.interrupted)
		}
	}
}
