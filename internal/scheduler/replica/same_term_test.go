package replica

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// startWithoutElection starts replicas without leader election. Each that starts to lead reads the same clock.
func startWithoutElection(t *testing.T, replicas int) *group {
	t.Helper()
	return startWithoutElectionWith(t, func(*Options) {}, replicas)
}

// startWithoutElectionWith is [startWithoutElection] with changed options.
func startWithoutElectionWith(t *testing.T, change func(*Options), replicas int) *group {
	t.Helper()
	g := startReplicasWith(t, func(o *Options) {
		o.Elected, o.Election = false, membership.ClockElection{}
		change(o)
	}, make([]bool, replicas), schedtest.PlainNode("node", "8"))
	g.election.clock = time.Now().Unix()
	return g
}

// awaitOneLeader waits until all given replicas follow the same leader, and returns it when it leads.
func (g *group) awaitOneLeader(replicas []*testReplica) *testReplica {
	g.T.Helper()
	var leader *testReplica
	g.Eventually("all replicas follow one leader", func() error {
		var first *wire.Assignment
		for _, r := range replicas {
			a := r.member.Assignment()
			switch {
			case a == nil:
				return fmt.Errorf("%s follows no leader", r.member.Self())
			case first == nil:
				first = a
			case a.Leader.Name != first.Leader.Name || a.Term != first.Term:
				return fmt.Errorf("%s for term %d and %s for term %d lead", first.Leader.Name, first.Term, a.Leader.Name, a.Term)
			}
			if r.member.Self() == a.Leader.Name {
				leader = r
			}
		}
		if leader == nil {
			return fmt.Errorf("%s leads", first.Leader.Name)
		}
		select {
		case <-leader.Leads():
			return nil
		default:
			return fmt.Errorf("%s is not ready", leader.member.Self())
		}
	})
	return leader
}

// TestReplicasThatStartInTheSameSecondAgree has several replicas without leader election start to lead for the same
// term. All of them follow one leader in the end, which schedules pods.
func TestReplicasThatStartInTheSameSecondAgree(t *testing.T) {
	for _, replicas := range []int{2, 5} {
		g := startWithoutElection(t, replicas)
		for _, r := range g.replicas {
			r.schedule()
		}
		leader := g.awaitOneLeader(g.replicas)
		g.in, g.Sched = leader.in, leader.sched
		g.API.Put(schedtest.PlainPod("pod", "1"))
		g.AwaitBound("pod")
		if again := g.awaitOneLeader(g.replicas); again != leader {
			t.Errorf("%s leads after %s without a reason", again.member.Self(), leader.member.Self())
		}
	}
}

// TestLeaderIsNotStoppedByLeaderThatIsGone has a replica without leader election start to lead while another replica
// follows a leader that is gone: one that started in the same second, or an earlier process with the name of the new
// leader, for whose last term the clock was ahead.
func TestLeaderIsNotStoppedByLeaderThatIsGone(t *testing.T) {
	for name, gone := range map[string]struct {
		leader string
		ahead  int64
	}{"same second": {"gone", 0}, "earlier process": {"replica-0", 5}} {
		g := startWithoutElection(t, 2)
		leader, follower := g.replicas[0], g.replicas[1]
		a := &wire.Assignment{
			Term: g.election.clock + gone.ahead, Number: 3, Leader: membership.Member{Name: gone.leader, Address: "127.0.0.1:1"},
			Known: leader.options.Discovery.Members(),
		}
		if gone.leader == leader.member.Self() {
			a.Leader = leader.options.Self
		}
		a.SetTable(membership.Assign(nil, []string{gone.leader}))
		g.Must(follower.Receive(gone.leader, &wire.Batch{Assignments: []*wire.Assignment{a}}))
		if got := follower.member.Assignment(); got != a {
			t.Fatalf("%s: the follower does not follow the first leader", name)
		}
		leader.schedule()
		if got := g.awaitOneLeader(g.replicas); got != leader || leader.leader.Term() <= a.Term {
			t.Errorf("%s: %s leads for term %d, want %s after term %d", name, got.member.Self(), got.leader.Term(), leader.member.Self(), a.Term)
		}
	}
}

// lateListener accepts connections only after a time.
type lateListener struct {
	net.Listener
	from time.Time
}

// Accept waits for a connection.
func (l lateListener) Accept() (net.Conn, error) {
	time.Sleep(time.Until(l.from))
	return l.Listener.Accept()
}

// TestLeaderLearnsOfLaterTermOnNextConnection has a replica without leader election start to lead for an earlier term
// than the one that the other replica follows. When that one receives the assignment, it has no connection yet on which
// it could send the later assignment.
func TestLeaderLearnsOfLaterTermOnNextConnection(t *testing.T) {
	g := startWithoutElectionWith(t, func(o *Options) {
		if o.Self.Name == "replica-0" {
			o.Listener = lateListener{o.Listener, time.Now().Add(2 * time.Second)}
		}
	}, 2)
	leader, follower := g.replicas[0], g.replicas[1]
	a := &wire.Assignment{Term: g.election.clock + 5, Number: 3, Leader: leader.options.Self, Known: leader.options.Discovery.Members()}
	a.SetTable(membership.Assign(nil, []string{a.Leader.Name}))
	g.Must(follower.Receive(a.Leader.Name, &wire.Batch{Assignments: []*wire.Assignment{a}}))
	leader.schedule()
	if got := g.awaitOneLeader(g.replicas); got != leader || leader.leader.Term() <= a.Term {
		t.Errorf("%s leads for term %d, want %s after term %d", got.member.Self(), got.leader.Term(), leader.member.Self(), a.Term)
	}
}

// TestReservationsOfReplicaThatDoesNotLeadCount has a replica send a reservation while the receiver follows another
// leader. The receiver refuses it. It must count it nevertheless, because the sender counts it too: if that one leads
// later, its queries would otherwise wait for a reservation that has already arrived.
func TestReservationsOfReplicaThatDoesNotLeadCount(t *testing.T) {
	g := newGroup(t, 2, schedtest.PlainNode("node", "4"))
	owner, pod := g.replicas[1], schedtest.PlainPod("pod", "1")
	pod.Spec.NodeName = "node"
	g.Must(owner.Receive("former", &wire.Batch{Reservations: []wire.Reservation{core.NewReservation(pod, wire.TermKeys{})}}))
	if n := owner.holder.Counts().Reservations; n != 0 {
		t.Errorf("the owner has %d reservations, want none of a replica that does not lead", n)
	}
	ctx, cancel := context.WithTimeout(g.Ctx, schedtest.Patience)
	defer cancel()
	query := &wire.Request{
		Query:        &wire.Query{Pod: wire.MarshalObject(schedtest.PlainPod("other", "1")), Profile: v1.DefaultSchedulerName, Offers: 1, Steps: 1},
		Reservations: map[string]uint64{owner.member.Self(): 1},
	}
	if _, err := owner.holder.Answer(ctx, "former", query, owner.member.Self()); err != nil {
		t.Errorf("Answer() = error %v, want none after the reservation has arrived", err)
	}
}
