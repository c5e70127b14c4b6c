// Package oracle compares the decisions of dist-scheduler processes, alone and as three replicas, with
// those of kube-scheduler's plugins. It sees the scheduler only from outside: it writes objects to a real API
// server, and reads there what the scheduler did.
//
//	K1M_BIN           directory of the binaries (default ../../bin)
//	ORACLE_WORLDS     number of random worlds for each mode (default 1)
//	ORACLE_DECISIONS  number of decisions in each world (default 12)
//	ORACLE_SEED       seed of the first world, or "random" (default 1)
//	ORACLE_REPORTS    directory for the objects of wrong decisions (default ../../target/oracle)
//	ORACLE_PATIENCE   time after which a pod that should be on a node counts as pending (default 1m)
//	ORACLE_UPSTREAM   true: test kube-scheduler instead, which must pass too
package oracle

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// settings are the length of a run and where it reports to.
type settings struct {
	worlds, decisions int
	seed              uint64
	reports           string
	patience          time.Duration
	// upstream is true if the decisions are those of kube-scheduler, to test the test.
	upstream bool
}

func readSettings(t *testing.T) settings {
	t.Helper()
	s := settings{
		worlds: 1, decisions: 12, seed: testcluster.Seed(t, "ORACLE_SEED"), reports: filepath.Join("..", "..", "target", "oracle"), patience: time.Minute,
	}
	var err error
	for name, read := range map[string]func(string){
		"ORACLE_WORLDS":    func(v string) { s.worlds, err = strconv.Atoi(v) },
		"ORACLE_DECISIONS": func(v string) { s.decisions, err = strconv.Atoi(v) },
		"ORACLE_REPORTS":   func(v string) { s.reports = v },
		"ORACLE_UPSTREAM":  func(v string) { s.upstream, err = strconv.ParseBool(v) },
		"ORACLE_PATIENCE":  func(v string) { s.patience, err = time.ParseDuration(v) },
	} {
		if value := os.Getenv(name); value != "" {
			if read(value); err != nil {
				t.Fatalf("%s=%s: %v", name, value, err)
			}
		}
	}
	s.reports, err = filepath.Abs(s.reports)
	must(t, err)
	return s
}

// mode is a kind of cluster.
type mode struct {
	name, scheduler string
	replicas        int
}

func (s settings) modes() []mode {
	if s.upstream {
		return []mode{{"upstream", "kube-scheduler", 1}}
	}
	return []mode{{"one process", "dist-scheduler", 1}, {"three replicas", "dist-scheduler", 3}}
}

// TestDecisions compares decisions in random worlds with those of upstream's plugins.
func TestDecisions(t *testing.T) {
	s := readSettings(t)
	t.Logf("to repeat this test: ORACLE_SEED=%d ORACLE_WORLDS=%d ORACLE_DECISIONS=%d", s.seed, s.worlds, s.decisions)
	for _, mode := range s.modes() {
		t.Run(mode.name, func(t *testing.T) {
			c := newCluster(t, mode.scheduler, mode.replicas)
			o := newObserver(t, c.client)
			counts := &tally{}
			for i := range s.worlds {
				w := newWorld(t, c, o, s, mode.name, s.seed+uint64(i), counts)
				if i == 0 {
					w.addClusterObjects()
				}
				w.run()
			}
			t.Logf("%d decisions, %d wrong; by upstream's plugins, %d pods fit, %d fit after evictions, %d do not fit; %d pods were refused by the API server",
				counts.decisions, counts.wrong, counts.placed, counts.preempted, counts.pending, counts.refused)
			counts.checkVariety(t)
		})
	}
}

// checkVariety fails the test if the worlds do not test every kind of decision. Short runs may be without
// one of them by chance.
func (c *tally) checkVariety(t *testing.T) {
	const enough = 200
	least := c.decisions / 50
	if c.decisions >= enough && (c.placed < least || c.preempted < least || c.pending < least || c.refused > c.decisions/4) {
		t.Errorf("the worlds are not varied: %+v; want at least %d decisions of each kind, and few pods that the API server refuses", *c, least)
	}
}
