package controllermanager

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// tenure is the time from the first write of a process until the answer to its last one.
type tenure struct {
	name        string
	first, last write
}

func (t tenure) String() string {
	return fmt.Sprintf("%s from %s (%s %s) to %s (%s %s)", t.name, t.first.Received.Format(time.StampMicro), t.first.Verb, t.first.URI,
		t.last.Answered.Format(time.StampMicro), t.last.Verb, t.last.URI)
}

// tenures returns the tenures of all processes that have written, in order. Each process leads at most once, because it
// ends when it loses the lease.
func (c *cluster) tenures(t *testing.T) (all []tenure) {
	t.Helper()
	for name, writes := range c.writes(t) {
		own := tenure{name, writes[0], writes[0]}
		for _, w := range writes {
			if w.Received.Before(own.first.Received) {
				own.first = w
			}
			if w.Answered.After(own.last.Answered) {
				own.last = w
			}
		}
		all = append(all, own)
	}
	slices.SortFunc(all, func(a, b tenure) int { return a.first.Received.Compare(b.first.Received) })
	return all
}

// overlap returns two processes of which one wrote before the other had its last answer; empty if there are none.
func overlap(all []tenure) string {
	for i := range all {
		for _, later := range all[i+1:] {
			if !later.first.Received.After(all[i].last.Answered) {
				return all[i].String() + "\n" + later.String()
			}
		}
	}
	return ""
}

// suspend stops the leader with SIGSTOP under load, waits until the standby acts, lets the stopped process continue, and
// waits until it has ended.
func (c *cluster) suspend(t *testing.T, leader, standby *manager) {
	t.Helper()
	leader.signal(t, syscall.SIGSTOP)
	c.awaitWrites(t, standby)
	leader.signal(t, syscall.SIGCONT)
	if code := leader.awaitExit(t); code != 1 {
		t.Errorf("a leader that lost its lease ended with exit code %d, want 1", code)
	}
}

// awaitWrites waits until the controllers of a process have written.
func (c *cluster) awaitWrites(t *testing.T, m *manager) {
	t.Helper()
	testcluster.Eventually(t, patience, "controllers of "+m.name+" write", func() bool { return len(c.writes(t)[m.name]) > 0 })
}

// TestNeverTwo stops the leader in every way under load. The writes of two processes must never overlap.
func TestNeverTwo(t *testing.T) {
	c := newCluster(t)
	stop := c.load(t)
	leader, standby := awaitLeader(t, c.start(t, warm), c.start(t, warm))
	for _, how := range []syscall.Signal{syscall.SIGTERM, syscall.SIGSTOP, syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSTOP} {
		testcluster.Eventually(t, patience, standby.name+" is warm", standby.isWarm)
		c.awaitWrites(t, leader)
		switch how {
		case syscall.SIGSTOP:
			c.suspend(t, leader, standby)
		case syscall.SIGTERM:
			leader.signal(t, how)
			if code := leader.awaitExit(t); code != 0 {
				t.Errorf("exit code after SIGTERM: %d, want 0", code)
			}
			c.awaitWrites(t, standby)
		default:
			leader.signal(t, how)
			leader.awaitExit(t)
			c.awaitWrites(t, standby)
		}
		leader, standby = standby, c.start(t, warm)
	}
	stop()
	all := c.tenures(t)
	if len(all) != 6 {
		t.Errorf("%d processes have written, want 6: %v", len(all), all)
	}
	if both := overlap(all); both != "" {
		t.Errorf("two processes acted at the same time:\n%s", both)
	}
	if others := c.logged(t, "Informers were not synced"); others != "" {
		t.Errorf("a process had to read objects after it became the leader: %s", others)
	}
}

// TestUpstreamOverlaps shows that the check of TestNeverTwo notices two leaders: upstream's process continues to act after
// SIGCONT until its renew deadline. If it fails, upstream has changed; then see docs/adr/0025-warm-standby.md.
func TestUpstreamOverlaps(t *testing.T) {
	c := newCluster(t)
	stop := c.load(t)
	leader, standby := awaitLeader(t, c.start(t, cold), c.start(t, cold))
	c.awaitWrites(t, leader)
	c.suspend(t, leader, standby)
	stop()
	if all := c.tenures(t); overlap(all) == "" {
		t.Errorf("upstream's processes did not act at the same time: %v", all)
	}
}

// TestMixedWithUpstream lets upstream's program follow ours and the other way round: they share the lease.
func TestMixedWithUpstream(t *testing.T) {
	c := newCluster(t)
	stop := c.load(t)
	first := c.start(t, cold)
	c.awaitWrites(t, first)
	second := c.start(t, warm)
	testcluster.Eventually(t, patience, "the standby is warm", second.isWarm)
	first.signal(t, syscall.SIGTERM)
	first.awaitExit(t)
	c.awaitWrites(t, second)
	third := c.start(t, cold)
	testcluster.Eventually(t, patience, "upstream's standby serves its pages", func() bool { return third.page("/healthz") != "" })
	second.signal(t, syscall.SIGTERM)
	if code := second.awaitExit(t); code != 0 {
		t.Errorf("exit code after SIGTERM: %d, want 0", code)
	}
	c.awaitWrites(t, third)
	stop()
	if both := overlap(c.tenures(t)); both != "" {
		t.Errorf("two processes acted at the same time:\n%s", both)
	}
}

// TestStandbyWritesNothing checks that a standby only reads, and that its SIGTERM does not touch the lease.
func TestStandbyWritesNothing(t *testing.T) {
	c := newCluster(t)
	leader, standby := awaitLeader(t, c.start(t, warm), c.start(t, warm))
	testcluster.Eventually(t, patience, "the standby is warm", standby.isWarm)
	c.awaitWrites(t, leader)
	standby.signal(t, syscall.SIGTERM)
	if code := standby.awaitExit(t); code != 0 {
		t.Errorf("exit code of the standby after SIGTERM: %d, want 0", code)
	}
	if own := c.writes(t)[standby.name]; len(own) > 0 {
		t.Errorf("the standby has sent %d writes, such as %s %s", len(own), own[0].Verb, own[0].URI)
	}
	if !leader.leads() {
		t.Error("the leader lost its lease when the standby ended")
	}
}

// logged returns the lines of the logs of all processes that contain a text.
func (c *cluster) logged(t *testing.T, text string) string {
	t.Helper()
	var found strings.Builder
	for i := range c.started {
		for line := range strings.Lines(readFile(t, c.programs, fmt.Sprintf("manager-%d.log", i+1))) {
			if strings.Contains(line, text) {
				found.WriteString(line)
			}
		}
	}
	return found.String()
}
