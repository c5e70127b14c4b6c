package replica

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intake"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/leader"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// group has several replicas in one process, which communicate over loopback and share the nodes of
// an API server in memory. The embedded fixture has the scheduler of the leader.
type group struct {
	*schedtest.Fixture
	// in is the leader's intake. clock is the clock of all intakes.
	in       *intake.Intake
	clock    *testingclock.FakeClock
	replicas []*testReplica
	election *election
}

// election is the leader election. Its zero value has no leader.
type election struct {
	mu     sync.Mutex
	leader string
	term   int64
	// unreachable is the error if it cannot be read.
	unreachable error
	// clock is the term for which each replica leads without leader election; 0 with it.
	clock int64
}

// elect makes a replica the leader for the next term.
func (e *election) elect(replica string) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.clock > 0 {
		return e.clock
	}
	e.leader, e.term = replica, e.term+1
	return e.term
}

// Check returns whether a replica was elected last, for the given term.
func (e *election) Check(_ context.Context, leader string, term int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.unreachable != nil:
		return e.unreachable
	case term < e.term:
		return fmt.Errorf("%s for term %d: %w", leader, term, membership.ErrReplaced)
	case leader != e.leader || term != e.term:
		return fmt.Errorf("%s for term %d: %w", leader, term, membership.ErrNotElected)
	}
	return nil
}

// set replaces the state of the election.
func (e *election) set(leader string, term int64, unreachable error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leader, e.term, e.unreachable = leader, term, unreachable
}

// testReplica is one of the replicas. Each has an intake, because each may become leader.
type testReplica struct {
	*Replica
	in   *intake.Intake
	stop func()
	// informers are those of the replica's scheduler.
	informers informers.SharedInformerFactory
	// exits receives the error with which the replica would end its process. resigned is closed
	// when the replica resigns as leader.
	exits    chan error
	resigned chan struct{}
}

// newGroup starts replicas of which the first leads.
func newGroup(t *testing.T, replicas int, nodes ...*v1.Node) *group {
	t.Helper()
	g := startReplicas(t, make([]bool, replicas), nodes...)
	g.lead(0)
	return g
}

// startReplicas starts a replica for each element of relays, without a leader. A true element makes
// its replica a relay.
func startReplicas(t *testing.T, relays []bool, nodes ...*v1.Node) *group {
	t.Helper()
	return startReplicasWith(t, func(*Options) {}, relays, nodes...)
}

// startReplicasWith is [startReplicas] with changed options.
func startReplicasWith(t *testing.T, change func(*Options), relays []bool, nodes ...*v1.Node) *group {
	t.Helper()
	server := schedtest.NewAPI()
	for _, node := range nodes {
		server.Put(node)
	}
	return startReplicasOn(t, server, change, relays)
}

// startReplicasOn is [startReplicasWith] for an API server that has objects.
func startReplicasOn(t *testing.T, server *schedtest.API, change func(*Options), relays []bool) *group {
	t.Helper()
	g := &group{Fixture: &schedtest.Fixture{T: t, Ctx: t.Context(), API: server}, clock: testingclock.NewFakeClock(time.Now()), election: &election{}}
	var members membership.Addresses
	var listeners []net.Listener
	for i, relay := range relays {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		g.Must(err)
		listeners = append(listeners, listener)
		members = append(members, membership.Member{Name: fmt.Sprintf("replica-%d", i), Address: listener.Addr().String(), Relay: relay})
	}
	for i, listener := range listeners {
		g.replicas = append(g.replicas, g.startReplica(members, members[i], listener, change))
	}
	return g
}

// startReplica starts a replica that does not lead.
func (g *group) startReplica(members membership.Addresses, self membership.Member, listener net.Listener, change func(*Options)) *testReplica {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	client := g.API.Client()
	profile := schedtest.DefaultProfile(g.T).DeepCopy()
	profile.Plugins.Bind = config.PluginSet{Enabled: []config.Plugin{{Name: "Binder"}}, Disabled: []config.Plugin{{Name: pluginnames.DefaultBinder}}}
	registry := frameworkruntime.Registry{"Binder": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
		return schedtest.Binder{API: g.API}, nil
	}}
	factory, feeds := leader.NewFactory(client)
	sched, err := kubescheduler.New(ctx, client, factory, nil, func(string) events.EventRecorderLogger { return &events.FakeRecorder{} },
		kubescheduler.WithProfiles(*profile), kubescheduler.WithFrameworkOutOfTreeRegistry(registry),
		kubescheduler.WithPodInitialBackoffSeconds(0), kubescheduler.WithPodMaxBackoffSeconds(0))
	g.Must(err)
	term := func(context.Context) (int64, error) { return g.election.elect(self.Name), nil }
	resigned := make(chan struct{})
	options := Options{
		Self: self, Listener: listener, Discovery: members, Election: g.election, Fanout: 10, Patience: wire.Patience{Deadline: 2 * time.Second, Quorum: 100},
		Elected: true, Resign: sync.OnceFunc(func() { close(resigned) }),
	}
	change(&options)
	replica, err := Attach(ctx, sched, []config.KubeSchedulerProfile{*profile}, client, client, feeds, options, term)
	g.Must(err)
	r := &testReplica{Replica: replica, in: intake.Attach(sched, []config.KubeSchedulerProfile{*profile}, factory, client), exits: make(chan error, 1), resigned: resigned, informers: factory}
	replica.exit = func(err error, _ string) {
		select {
		case r.exits <- err:
		default:
		}
	}
	r.in.SetClock(g.clock)
	factory.Start(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() { _ = replica.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		sched.SchedulingQueue.Close()
		running.Wait()
	})
	g.T.Cleanup(r.stop)
	return r
}

// lead makes a replica lead, and waits until the other replicas are ready.
func (g *group) lead(number int) {
	g.T.Helper()
	r := g.replicas[number]
	g.in, g.Sched = r.in, r.sched
	r.schedule()
	select {
	case <-r.Leads():
	case <-time.After(schedtest.Patience):
		g.T.Fatalf("timed out after %v waiting until replica-%d leads", schedtest.Patience, number)
	}
}

// onAttempt calls a function after each attempt of a replica to schedule a pod. It must be called before the replica leads.
func (r *testReplica) onAttempt(call func(pod *v1.Pod, err error)) {
	schedule := r.sched.SchedulePod
	r.sched.SchedulePod = func(ctx context.Context, fw framework.Framework, state fwk.CycleState, pod *framework.QueuedPodInfo) (kubescheduler.ScheduleResult, error) {
		result, err := schedule(ctx, fw, state, pod)
		call(pod.Pod, err)
		return result, err
	}
}

// schedule runs the scheduler of a replica, which then starts to lead.
func (r *testReplica) schedule() {
	r.sched.SchedulingQueue.Run(klog.Logger{})
	go wait.UntilWithContext(r.ctx, r.sched.ScheduleOne, 0)
}

// awaitExit waits until a replica would end its process, and checks the error.
func (g *group) awaitExit(r *testReplica, want string) {
	g.T.Helper()
	select {
	case err := <-r.exits:
		if !strings.Contains(err.Error(), want) {
			g.T.Errorf("%s exits with error %q, want it to contain %q", r.options.Self.Name, err, want)
		}
	case <-time.After(schedtest.Patience):
		g.T.Fatalf("timed out after %v waiting until %s exits with %q", schedtest.Patience, r.options.Self.Name, want)
	}
}

// awaitReservations waits until the leader assumes this many pods and the owners have this many
// reservations.
func (g *group) awaitReservations(wantAssumed, wantReserved int) {
	g.T.Helper()
	g.Eventually(fmt.Sprintf("%d pods are assumed and %d reservations exist", wantAssumed, wantReserved), func() error {
		assumed, _ := g.Sched.Cache.PodCount()
		reserved := 0
		for _, r := range g.replicas {
			if r.present.Err() == nil {
				reserved += r.holder.Counts().Reservations
			}
		}
		if assumed != wantAssumed || reserved != wantReserved {
			return fmt.Errorf("%d pods are assumed and %d reservations exist", assumed, reserved)
		}
		return nil
	})
}

// awaitConsistent waits until the owners of nodes have each bound pod once and no other pod, and
// until no pod is assumed, reserved, or waits to be stored.
func (g *group) awaitConsistent() {
	g.T.Helper()
	g.awaitReservations(0, 0)
	g.Eventually("the owners of nodes have exactly the bound pods", func() error {
		wantPods, wantMilliCPU := 0, int64(0)
		for _, pod := range g.API.Pods() {
			if pod.Spec.NodeName != "" {
				wantPods++
				wantMilliCPU += pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
			}
		}
		pods, milliCPU := 0, int64(0)
		for _, r := range g.replicas {
			if r.present.Err() != nil {
				continue
			}
			pods += r.holder.Counts().Pods
			for _, node := range g.API.Nodes() {
				if info, err := r.holder.NodeInfo(node.Name); err == nil && info.Node() != nil {
					milliCPU += info.Requested.MilliCPU
				}
			}
		}
		if pods != wantPods || milliCPU != wantMilliCPU {
			return fmt.Errorf("they have %d pods that request %d millicores, want %d pods and %d millicores", pods, milliCPU, wantPods, wantMilliCPU)
		}
		return nil
	})
	g.Eventually("all early pods are settled", func() error {
		if _, unsettled := g.in.Remembered(); unsettled > 0 {
			return fmt.Errorf("%d early pods are not settled", unsettled)
		}
		return nil
	})
}

// TestFormerLeaderExits has another replica become leader although the first one still holds the
// lease, as after a pause of its process. The first exits, because no replica follows it.
func TestFormerLeaderExits(t *testing.T) {
	g := newGroup(t, 3, schedtest.PlainNode("node", "4"))
	former := g.replicas[0]
	g.lead(1)
	g.awaitExit(former, "and replica-1 leads for term 2")
	select {
	case err := <-g.replicas[1].exits:
		t.Errorf("the current leader exits with error %v, want it running", err)
	default:
	}
	pod := schedtest.PlainPod("pod", "1")
	g.API.Put(pod)
	g.AwaitBound("pod")
}

// spreadPod returns a pod of a group that must be spread over zones with a maximum skew of 1.
func spreadPod(name string) *v1.Pod {
	pod := schedtest.PlainPod(name, "1")
	pod.Labels = map[string]string{"group": "spread"}
	pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
	}}
	return pod
}

func zoneNode(name, cpu, zone string) *v1.Node {
	node := schedtest.PlainNode(name, cpu)
	node.Labels[v1.LabelTopologyZone] = zone
	return node
}

// ownerOf returns the replica that owns a node.
func (g *group) ownerOf(node string) *testReplica {
	g.T.Helper()
	for _, r := range g.replicas {
		if r.options.Self.Name == g.replicas[0].member.NodeOwner(node) {
			return r
		}
	}
	g.T.Fatalf("no replica owns node %s", node)
	return nil
}

// TestReservationOfEarlierLeaderIsReleased has a leader reserve capacity for a pod and lose the lease
// before it binds the pod. The next leader must not count that reservation when it places the pod:
// otherwise two pods of a group with a maximum skew of 1 get into one zone.
func TestReservationOfEarlierLeaderIsReleased(t *testing.T) {
	// All pods prefer the large node, unless the constraint forbids it.
	g := newGroup(t, 3, zoneNode("small", "4", "a"), zoneNode("large", "64", "b"))
	first, second := spreadPod("first"), spreadPod("second")
	reserved := second.DeepCopy()
	reserved.Spec.NodeName = "small"
	owner := g.ownerOf("small")
	g.Must(owner.Receive("replica-0", &wire.Batch{Reservations: []wire.Reservation{core.NewReservation(reserved, wire.TermKeys{})}}))
	if got := owner.holder.Counts().Reservations; got != 1 {
		t.Fatalf("the owner has %d reservations, want 1", got)
	}
	g.replicas[0].stop()
	g.lead(1)
	g.API.Put(first)
	g.AwaitBound("first")
	if node := g.API.Pod("default/first").Spec.NodeName; node != "large" {
		t.Fatalf("pod first is bound to node %q, want large", node)
	}
	g.API.Put(second)
	g.AwaitBound("second")
	if node := g.API.Pod("default/second").Spec.NodeName; node != "small" {
		t.Errorf("pod second is bound to node %q, want small", node)
	}
	g.awaitConsistent()
}

// TestPlacementOfEarlierLeaderIsCompleted has a leader reserve capacity for a pod and lose the lease before its bind
// arrives. The next leader places the pod on the same node, although the pod prefers another one: otherwise the
// late bind could use capacity that a third pod has got.
func TestPlacementOfEarlierLeaderIsCompleted(t *testing.T) {
	g := newGroup(t, 3, schedtest.PlainNode("small", "4"), schedtest.PlainNode("large", "64"))
	reserved := map[string]string{"pod": "small", "named": "small", "unfit": "small"}
	pods := map[string]*v1.Pod{}
	for name, node := range reserved {
		pod := schedtest.PlainPod(name, "1")
		switch name {
		case "named":
			// The owners evaluate each node for this pod.
			pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
				NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{node}}}}},
			}}}
		case "unfit":
			pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: "large"}
		}
		pods[name] = pod
		placed := pod.DeepCopy()
		placed.Spec.NodeName = node
		reservation := core.NewReservation(placed, wire.TermKeys{})
		// The node has changed since, so "unfit" does not fit any more.
		reservation.Granted = true
		g.Must(g.ownerOf(node).Receive("replica-0", &wire.Batch{Reservations: []wire.Reservation{reservation}}))
	}
	g.replicas[0].stop()
	g.lead(1)
	for name, want := range map[string]string{"pod": "small", "named": "small", "unfit": "large"} {
		g.API.Put(pods[name])
		if node := g.AwaitBound(name); node != want {
			t.Errorf("pod %s is bound to node %s, want %s", name, node, want)
		}
	}
	g.awaitConsistent()
}

// doneHook is a context that calls a function when Done is called for the first time.
type doneHook struct {
	context.Context
	call func()
}

func (h doneHook) Done() <-chan struct{} {
	h.call()
	return h.Context.Done()
}

// TestAnswerOfLostNodesIsDiscarded has a replica lose nodes while it answers a query: after it has
// checked that it is ready for the assignment of the query, and before it reads the nodes.
func TestAnswerOfLostNodesIsDiscarded(t *testing.T) {
	g := newGroup(t, 2, schedtest.PlainNode("node", "4"))
	owner := g.ownerOf("node")
	now := owner.member.Assignment()
	query := &wire.Request{
		Query: &wire.Query{Pod: wire.MarshalObject(schedtest.PlainPod("pod", "1")), Profile: v1.DefaultSchedulerName, Offers: 1, Steps: 1},
		From:  now.Leader.Name, Term: now.Term, Number: now.Number,
	}
	if answer := owner.Answer(g.Ctx, query); len(answer.Absent) != 0 || answer.Summary.Nodes != 1 {
		t.Fatalf("Answer() = %+v, want one node", answer)
	}
	next := *now
	next.Number, next.AfterTerm, next.AfterNumber, next.AfterLeader = now.Number+1, now.Term, now.Number, now.Leader.Name
	ctx := doneHook{g.Ctx, sync.OnceFunc(func() { owner.member.Adopt(&next) })}
	if answer := owner.Answer(ctx, query); len(answer.Absent) != 1 {
		t.Errorf("Answer() = %+v, want the replica absent", answer)
	}
}

// TestLeaderExitsWhenItLearnsOfLaterTerm checks that a replica that knows a later term sends it to
// the leader of an earlier term, also if another replica leads for the later term.
func TestLeaderExitsWhenItLearnsOfLaterTerm(t *testing.T) {
	for next := range 2 {
		g := newGroup(t, 3, schedtest.PlainNode("node", "4"))
		leader, other := g.replicas[0], g.replicas[1]
		earlier := *other.member.Assignment()
		later := earlier
		later.Leader = g.replicas[1+next].options.Self
		later.Term = g.election.elect(later.Leader.Name)
		other.member.Adopt(&later)
		g.Must(other.Receive(leader.member.Self(), &wire.Batch{Assignments: []*wire.Assignment{&earlier}}))
		g.awaitExit(leader, "leads for term 2")
	}
}

// TestClaimedLeadershipIsIgnored has a replica claim to lead. Only a replica that was elected may assign
// hash slots, and only for its term. A claim must not stop scheduling, now or in the next term.
func TestClaimedLeadershipIsIgnored(t *testing.T) {
	const farBeyondTheLease = 1<<38 - 1
	g := newGroup(t, 3, schedtest.PlainNode("node", "8"))
	leader, victim, hostile := g.replicas[0], g.replicas[1], g.replicas[2]
	current := victim.member.Assignment()
	for name, change := range map[string]func(*wire.Assignment){
		"a term far beyond the Lease":                  func(a *wire.Assignment) { a.Term, a.Leader = farBeyondTheLease, hostile.options.Self },
		"the next term":                                func(a *wire.Assignment) { a.Term, a.Leader = current.Term+1, hostile.options.Self },
		"the term of the leader":                       func(a *wire.Assignment) { a.Number, a.Leader = 1<<24-1, hostile.options.Self },
		"the leader's name":                            func(a *wire.Assignment) { a.Number = 1<<24 - 1 },
		"the leader's name, a term beyond the Lease":   func(a *wire.Assignment) { a.Term = farBeyondTheLease },
		"the receiver's name, a term beyond the Lease": func(a *wire.Assignment) { a.Term, a.Leader = farBeyondTheLease, victim.options.Self },
	} {
		for _, receiver := range []*testReplica{leader, victim} {
			forged, before := *current, receiver.member.Assignment()
			change(&forged)
			g.Must(receiver.Receive("replica-2", &wire.Batch{Assignments: []*wire.Assignment{&forged}}))
			if got := receiver.member.Assignment(); got != before {
				t.Errorf("%s: %s follows term %d, number %d of %s", name, receiver.options.Self.Name, got.Term, got.Number, got.Leader.Name)
			}
		}
	}
	query := &wire.Request{
		Query: &wire.Query{Pod: wire.MarshalObject(schedtest.PlainPod("pod", "1")), Profile: v1.DefaultSchedulerName, Offers: 1, Steps: 1},
		From:  "replica-2", Term: current.Term, Number: current.Number,
	}
	if answer := victim.Answer(g.Ctx, query); len(answer.Absent) != 1 {
		t.Errorf("Answer() to a query of a replica that does not lead = %+v, want the replica absent", answer)
	}
	g.API.Put(schedtest.PlainPod("now", "1"))
	g.AwaitBound("now")
	g.lead(1)
	g.API.Put(schedtest.PlainPod("next", "1"))
	g.AwaitBound("next")
	if term := victim.member.Assignment().Term; term != current.Term+1 {
		t.Errorf("the next leader leads for term %d, want %d", term, current.Term+1)
	}
	g.awaitExit(leader, "leads for term 2")
}

// TestReplicasStartAgainIfTheLeaseWasReplaced has a replica be elected for an earlier term than the
// current one, as after somebody has deleted the leader election Lease. The others could not follow it.
func TestReplicasStartAgainIfTheLeaseWasReplaced(t *testing.T) {
	g := newGroup(t, 2, schedtest.PlainNode("node", "4"))
	replaced := *g.replicas[1].member.Assignment()
	g.election.set("replica-0", 0, nil)
	replaced.Term = 0
	g.Must(g.replicas[1].Receive("replica-0", &wire.Batch{Assignments: []*wire.Assignment{&replaced}}))
	g.awaitExit(g.replicas[1], "the leader election Lease was replaced")
}

// TestLeaderIsFollowedWhileTheLeaseCannotBeRead checks that a replica follows a new leader also while it
// cannot read the Lease, if the term is near the last one that it has verified. It exits when the Lease
// proves that this leader was not elected.
func TestLeaderIsFollowedWhileTheLeaseCannotBeRead(t *testing.T) {
	for _, elected := range []bool{true, false} {
		g := newGroup(t, 2, schedtest.PlainNode("node", "4"))
		r, unreachable := g.replicas[1], errors.New("unreachable")
		next := *r.member.Assignment()
		g.election.set("replica-0", next.Term, unreachable)
		next.Term += core.MaxUnverifiedTerms + 1
		if err := r.Receive("replica-0", &wire.Batch{Assignments: []*wire.Assignment{&next}}); !errors.Is(err, unreachable) {
			t.Errorf("Receive() of a term that is not near = %v, want %v", err, unreachable)
		}
		next.Term--
		g.Must(r.Receive("replica-0", &wire.Batch{Assignments: []*wire.Assignment{&next}}))
		if term := r.member.Assignment().Term; term != next.Term {
			t.Errorf("the replica follows term %d, want %d", term, next.Term)
		}
		if !elected {
			g.election.set("replica-0", next.Term-1, nil)
			g.awaitExit(r, "not elected")
			continue
		}
		g.election.set("replica-0", next.Term, nil)
		g.Eventually("the term is verified", func() error {
			r.verifying.Lock()
			defer r.verifying.Unlock()
			if term := r.follower.VerifiedTerm(); term != next.Term {
				return fmt.Errorf("the last verified term is %d", term)
			}
			return nil
		})
	}
}

// TestRelayWithoutOwnersResigns checks that a leading relay resigns when it is cut off from the
// owners of nodes, and that another relay in this situation does not become leader.
func TestRelayWithoutOwnersResigns(t *testing.T) {
	g := startReplicas(t, []bool{true, false, true}, schedtest.PlainNode("node", "4"))
	relay, owner := g.replicas[0], g.replicas[1]
	g.Must(relay.MayLead(g.Ctx))
	g.lead(0)
	g.API.Put(schedtest.PlainPod("pod", "1"))
	g.AwaitBound("pod")
	select {
	case <-relay.resigned:
		t.Fatal("the relay resigned although it reaches the owner of all nodes")
	case <-time.After(2 * leader.ResignAfter):
	}
	owner.stop()
	select {
	case <-relay.resigned:
	case <-time.After(schedtest.Patience):
		t.Fatalf("the relay did not resign within %v after the owner stopped", schedtest.Patience)
	}
	if err := g.replicas[2].MayLead(g.Ctx); !errors.Is(err, leader.ErrIsolated) {
		t.Errorf("MayLead() of the other relay = %v, want %v", err, leader.ErrIsolated)
	}
}
