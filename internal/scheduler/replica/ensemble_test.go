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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intake"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/leader"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// ensemble is a group of replicas in one process that talk over loopback and share the nodes of an
// API server in memory. The first one leads.
type ensemble struct {
	*schedtest.Live
	in    *intake.Intake
	clock *testingclock.FakeClock
	all   []*soloist
}

// soloist is one of the replicas. All have an intake, because each may become leader.
type soloist struct {
	*Replica
	in   *intake.Intake
	stop func()
	// ended receives why a replica wants its process to exit. resigned is closed when it resigns.
	ended    chan error
	resigned chan struct{}
}

func newEnsemble(t *testing.T, replicas int, nodes ...*v1.Node) *ensemble {
	t.Helper()
	e := gather(t, make([]bool, replicas), nodes...)
	e.lead(0)
	return e
}

// gather starts replicas without a leader; some are relays.
func gather(t *testing.T, relays []bool, nodes ...*v1.Node) *ensemble {
	t.Helper()
	server := schedtest.NewAPI()
	for _, node := range nodes {
		server.Put(node)
	}
	e := &ensemble{Live: &schedtest.Live{T: t, Ctx: t.Context(), API: server}, clock: testingclock.NewFakeClock(time.Now())}
	var known membership.Addresses
	var listeners []net.Listener
	for i, relay := range relays {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		e.Must(err)
		listeners = append(listeners, listener)
		known = append(known, membership.Member{Name: fmt.Sprintf("replica-%d", i), Address: listener.Addr().String(), Relay: relay})
	}
	for i, listener := range listeners {
		e.all = append(e.all, e.join(known, known[i], listener))
	}
	return e
}

// join starts a replica that does not lead.
func (e *ensemble) join(known membership.Addresses, self membership.Member, listener net.Listener) *soloist {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	client := e.API.Client()
	profile := schedtest.DefaultProfile(e.T).DeepCopy()
	profile.Plugins.Bind = config.PluginSet{Enabled: []config.Plugin{{Name: "Binder"}}, Disabled: []config.Plugin{{Name: pluginnames.DefaultBinder}}}
	registry := frameworkruntime.Registry{"Binder": func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
		return schedtest.Binder{API: e.API}, nil
	}}
	factory, feeds := leader.NewFactory(client)
	sched, err := kubescheduler.New(ctx, client, factory, nil, func(string) events.EventRecorderLogger { return &events.FakeRecorder{} },
		kubescheduler.WithProfiles(*profile), kubescheduler.WithFrameworkOutOfTreeRegistry(registry),
		kubescheduler.WithPodInitialBackoffSeconds(0), kubescheduler.WithPodMaxBackoffSeconds(0))
	e.Must(err)
	terms := func(context.Context) (int64, error) { return 1, nil }
	resigned := make(chan struct{})
	replica, err := Attach(ctx, sched, []config.KubeSchedulerProfile{*profile}, client, client, feeds, member.Options{
		Self: self, Listener: listener, Discovery: known, Fanout: 10, Patience: wire.Patience{Deadline: 2 * time.Second, Quorum: 100},
		Elected: true, Resign: sync.OnceFunc(func() { close(resigned) }),
	}, terms)
	e.Must(err)
	s := &soloist{Replica: replica, in: intake.Attach(sched, []config.KubeSchedulerProfile{*profile}, factory, client), ended: make(chan error, 1), resigned: resigned}
	replica.exit = func(err error, _ string) {
		select {
		case s.ended <- err:
		default:
		}
	}
	s.in.SetClock(e.clock)
	factory.Start(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() { _ = replica.Run(ctx) })
	s.stop = sync.OnceFunc(func() {
		cancel()
		sched.SchedulingQueue.Close()
		running.Wait()
	})
	e.T.Cleanup(s.stop)
	return s
}

// lead makes a replica lead.
func (e *ensemble) lead(number int) {
	e.T.Helper()
	s := e.all[number]
	e.in, e.Sched = s.in, s.sched
	s.sched.SchedulingQueue.Run(klog.Logger{})
	go wait.UntilWithContext(s.ctx, s.sched.ScheduleOne, 0)
	select {
	case <-s.Leads():
	case <-time.After(schedtest.Patience):
		e.T.Fatalf("replica %d does not come to lead", number)
	}
}

// awaitEnd waits until a replica wants its process to exit, and checks the reason.
func (e *ensemble) awaitEnd(s *soloist, why string) {
	e.T.Helper()
	select {
	case err := <-s.ended:
		if !strings.Contains(err.Error(), why) {
			e.T.Errorf("%v", err)
		}
	case <-time.After(schedtest.Patience):
		e.T.Fatal("it does not end")
	}
}

// placed waits until so many pods are assumed by the leader and so many reservations are with the
// owners.
func (e *ensemble) placed(assumed, reserved int) {
	e.T.Helper()
	e.Eventually(fmt.Sprintf("%d pods are assumed, and %d places reserved", assumed, reserved), func() error {
		have, _ := e.Sched.Cache.PodCount()
		sum := 0
		for _, s := range e.all {
			if s.present.Err() == nil {
				sum += s.holder.Counts().Reservations
			}
		}
		if have != assumed || sum != reserved {
			return fmt.Errorf("%d and %d are", have, sum)
		}
		return nil
	})
}

// holds waits until the owners of nodes have exactly the bound pods, once, and nothing else is
// left.
func (e *ensemble) holds() {
	e.T.Helper()
	e.placed(0, 0)
	e.Eventually("the owners have what is bound", func() error {
		bound, milliCPU := 0, int64(0)
		for _, pod := range e.API.Pods() {
			if pod.Spec.NodeName != "" {
				bound++
				milliCPU += pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
			}
		}
		pods, requested := 0, int64(0)
		for _, s := range e.all {
			if s.present.Err() != nil {
				continue
			}
			pods += s.holder.Counts().Pods
			for _, node := range e.API.Nodes() {
				if info, err := s.holder.NodeInfo(node.Name); err == nil && info.Node() != nil {
					requested += info.Requested.MilliCPU
				}
			}
		}
		if pods != bound || requested != milliCPU {
			return fmt.Errorf("they have %d pods of %d, and %d millicores of %d", pods, bound, requested, milliCPU)
		}
		return nil
	})
	e.Eventually("nothing is left of early pods", func() error {
		if _, open := e.in.Remembered(); open > 0 {
			return fmt.Errorf("%d are not settled", open)
		}
		return nil
	})
}

// TestLeaderThatAnotherFollowed has another replica become leader while the first was stopped and
// still holds the lease: the first exits, because no replica follows it.
func TestLeaderThatAnotherFollowed(t *testing.T) {
	e := newEnsemble(t, 3, schedtest.PlainNode("node", "4"))
	first := e.all[0]
	e.lead(1)
	e.awaitEnd(first, "term 1, and replica-1 leads for term 2")
	select {
	case err := <-e.all[1].ended:
		t.Errorf("the one that leads ends: %v", err)
	default:
	}
	pod := schedtest.PlainPod("pod", "1")
	e.API.Put(pod)
	e.AwaitNode("pod")
}

// TestLeaderIsToldOfAnother checks that a replica that knows a later term sends it to the leader of
// an earlier term.
func TestLeaderIsToldOfAnother(t *testing.T) {
	e := newEnsemble(t, 2, schedtest.PlainNode("node", "4"))
	leader, other := e.all[0], e.all[1]
	earlier := *other.member.Assignment()
	later := earlier
	later.Term, later.Leader = 7, other.options.Self
	other.member.Adopt(&later)
	e.Must(other.Receive(leader.member.Self(), &wire.Batch{Assignments: []*wire.Assignment{&earlier}}))
	e.awaitEnd(leader, "leads for term 7")
}

// TestRelayThatReachesNobody checks that a relay resigns when it is cut off from the owners of
// nodes.
func TestRelayThatReachesNobody(t *testing.T) {
	e := gather(t, []bool{true, false, true}, schedtest.PlainNode("node", "4"))
	relay, owner := e.all[0], e.all[1]
	e.Must(relay.MayLead(e.Ctx))
	e.lead(0)
	e.API.Put(schedtest.PlainPod("pod", "1"))
	e.AwaitNode("pod")
	select {
	case <-relay.resigned:
		t.Fatal("it gives up the lead while it reaches the owner of all nodes")
	case <-time.After(2 * leader.ResignAfter):
	}
	owner.stop()
	select {
	case <-relay.resigned:
	case <-time.After(schedtest.Patience):
		t.Fatal("it does not give up the lead")
	}
	// The other relay does not reach them either.
	if err := e.all[2].MayLead(e.Ctx); !errors.Is(err, leader.ErrIsolated) {
		t.Errorf("the other may lead: %v", err)
	}
}
