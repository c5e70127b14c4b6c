package core

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

var update = flag.Bool("update", false, "write the outputs to the files in testdata")

// TestGoldenTraces runs the scripts in testdata. A line that starts with "> " is a call; the lines after it are its output.
func TestGoldenTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(script))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(script) {
				t.Errorf("the outputs differ; got:\n%s", got)
			}
		})
	}
}

// traced are the state machines of a script: a leader and a ledger, at a time. The owner of a node is the part of its name
// before the dot.
type traced struct {
	leader *Leader
	ledger *Ledger
	now    time.Time
	noView
}

func (*traced) NodeOwner(node string) string {
	owner, _, _ := strings.Cut(node, ".")
	return owner
}

func (m *traced) Assignment() *wire.Assignment {
	if m.leader.number == 0 {
		return nil
	}
	return m.leader.assignment()
}

// runScript returns a script with the outputs of its calls.
func runScript(t *testing.T, script string) string {
	m := &traced{now: time.Unix(1_000_000, 0), ledger: NewLedger(noNodes{})}
	m.leader = NewLeader(LeaderConfig{Self: membership.Member{Name: "a"}})
	var out strings.Builder
	for line := range strings.Lines(script) {
		switch call, is := strings.CutPrefix(line, "> "); {
		case is:
			out.WriteString(line)
			for _, printed := range m.call(t, strings.Fields(call)) {
				out.WriteString("  " + printed + "\n")
			}
		case strings.HasPrefix(line, "#"), strings.TrimSpace(line) == "":
			out.WriteString(line)
		}
	}
	return out.String()
}

// call makes a call, and returns its output.
func (m *traced) call(t *testing.T, words []string) []string {
	t.Helper()
	argument := func(i int) string {
		if i >= len(words) {
			t.Fatalf("%v: argument %d is missing", words, i)
		}
		return words[i]
	}
	number := func(i int) int64 {
		n, err := strconv.ParseInt(argument(i), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	switch name := argument(0); name {
	case "wait":
		d, err := time.ParseDuration(argument(1))
		if err != nil {
			t.Fatal(err)
		}
		m.now = m.now.Add(d)
	case "begin":
		m.leader.Begin(number(1), m.now, nil)
	case "tick":
		var known []membership.Member
		for _, replica := range words[1:] {
			known = append(known, membership.Member{Name: replica})
		}
		return printOutput(m.leader.Tick(m.now, known, nil, m))
	case "ready":
		return printOutput(m.leader.Status(m.now, argument(1), &wire.Status{Term: m.leader.term, Number: m.leader.number, Earlier: earlierOf(words[2:])}, m))
	case "busy":
		return printOutput(m.leader.Status(m.now, argument(1), &wire.Status{}, m))
	case "unreachable":
		return printOutput(m.leader.Status(m.now, argument(1), &wire.Status{Unreachable: words[2:]}, m))
	case "adopted":
		return printOutput(m.leader.Adopted(m.now, m))
	case "assume":
		pod := schedtest.PlainPod(argument(1), "1")
		pod.Spec.NodeName = argument(2)
		out, err := m.leader.Assume(m.now, pod, wire.TermKeys{}, m)
		if err != nil {
			return []string{"error: " + err.Error()}
		}
		return printOutput(out)
	case "ack":
		ack := wire.Ack{UID: types.UID(argument(2)), Attempt: uint64(number(3)), Refused: strings.Join(words[4:], " ")}
		return printOutput(m.leader.Ack(m.now, argument(1), ack, m))
	case "valid":
		placed, _ := m.leader.Placement(types.UID(argument(1)))
		return []string{fmt.Sprint(m.leader.Valid(m.now, types.UID(argument(1)), placed.Attempt, nil, m))}
	case "unanswered":
		m.leader.BindFailed(types.UID(argument(1)), func(bool) bool { return true })
	case "forget":
		return printOutput(m.leader.Forget(m.now, types.UID(argument(1))))
	case "bound":
		pod := schedtest.PlainPod(argument(1), "1")
		pod.Spec.NodeName = argument(2)
		return printOutput(m.leader.Bound(pod))
	case "renew":
		return printOutput(m.leader.Renew())
	case "connected":
		_, out := m.leader.Greeting(m.now, argument(1), m)
		return printOutput(out)
	default:
		return m.callLedger(t, words, number)
	}
	return nil
}

// callLedger makes a call of the ledger.
func (m *traced) callLedger(t *testing.T, words []string, number func(int) int64) []string {
	t.Helper()
	switch words[0] {
	case "reserve":
		pod := schedtest.PlainPod(words[1], "1")
		pod.Spec.NodeName = words[2]
		r := NewReservation(pod, wire.TermKeys{})
		return []string{fmt.Sprintf("refused: %q", m.ledger.Reserve(m.now, "leader", number(3), true, &r))}
	case "release":
		m.ledger.Reserve(m.now, "leader", number(3), true, &wire.Reservation{UID: types.UID(words[1]), Node: words[2]})
	case "term":
		m.ledger.ShortenOld(number(1), m.now)
	case "overdue":
		var names []string
		for _, pod := range m.ledger.Overdue(m.now) {
			names = append(names, pod.Name)
		}
		return []string{"overdue: " + strings.Join(names, " ")}
	case "expire":
		state := map[string]PodState{"gone": PodGone, "pending": PodPending, "bound": PodBound}[words[2]]
		m.ledger.Expire(types.UID(words[1]), m.now, state)
	case "counts":
		counts := m.ledger.Counts()
		return []string{fmt.Sprintf("%d reservations, %d expired", counts.Reservations, counts.Expired)}
	default:
		t.Fatalf("unknown call %v", words)
	}
	return nil
}

func earlierOf(words []string) (earlier []wire.EarlierReservation) {
	for i := 0; i+1 < len(words); i += 2 {
		earlier = append(earlier, wire.EarlierReservation{UID: types.UID(words[i]), Node: words[i+1]})
	}
	return earlier
}

// printOutput prints the output of a leader, in the order of its fields.
func printOutput(out Output) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if a := out.Assignment; a != nil {
		add("assign %d/%d after %d/%d to %v", a.Term, a.Number, a.AfterTerm, a.AfterNumber, a.Owners)
	}
	for i := range out.Reservations {
		switch r := &out.Reservations[i]; {
		case len(r.Pod) == 0:
			add("release %s on %s", r.UID, r.Node)
		default:
			add("request %s on %s, attempt %d, granted %t", r.UID, r.Node, r.Attempt, r.Granted)
		}
	}
	for _, r := range out.Renewals {
		add("renew %s on %s", r.Renewal.UID, r.Node)
	}
	for _, attempt := range out.Answered {
		add("answered: attempt %d", attempt)
	}
	if out.Invalidate {
		add("answers are outdated")
	}
	if len(out.First)+len(out.NotFirst) > 0 {
		add("first in the queue: %v, not any more: %v", out.First, out.NotFirst)
	}
	if out.RetryAll {
		add("retry all")
	}
	if out.Resign {
		add("resign")
	}
	for _, note := range out.Notes {
		add("log: %s %v", note.Message, note.KeysAndValues)
	}
	return lines
}
