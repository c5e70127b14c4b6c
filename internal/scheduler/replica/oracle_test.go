package replica

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fxamacker/cbor/v2"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/reference"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest/generate"
)

var (
	oracleWorlds    = flag.Int("oracle.worlds", 6, "number of random clusters whose nodes several replicas share")
	oracleDecisions = flag.Int("oracle.decisions", 12, "number of decisions in each of these clusters")
)

// oracleReplicas are the numbers of replicas of consecutive worlds.
var oracleReplicas = []int{3, 1, 8, 2, 5, 4}

// TestOracle makes random changes in clusters whose nodes several replicas share, and compares each decision of the
// leader with the reference, which runs kube-scheduler's plugins on all nodes. Changes arrive through watches, and
// queries, reservations and nominations through the connections between the replicas.
func TestOracle(t *testing.T) {
	seed := schedtest.Seed()
	t.Logf("to repeat this test: -oracle.seed %d -oracle.worlds %d -oracle.decisions %d", seed, *oracleWorlds, *oracleDecisions)
	total := &tally{}
	wire.RegisterMetrics()
	refused := schedtest.CounterDelta(t, schedtest.CounterValue("scheduler_replica_refused_batches_total", ""))
	t.Run("worlds", func(t *testing.T) {
		for i := range *oracleWorlds {
			replicas := oracleReplicas[i%len(oracleReplicas)]
			t.Run(fmt.Sprintf("%d-%d", i, replicas), func(t *testing.T) {
				t.Parallel()
				w := newOracleWorld(t, seed+uint64(i), replicas)
				w.run(*oracleDecisions)
				total.add(w.tally)
			})
		}
	})
	t.Logf("seed %d: %+v", seed, total.counts)
	// A refused batch is sent again, with everything else, so decisions may be right all the same.
	if n := refused(); n != 0 {
		t.Errorf("seed %d: the replicas refused %d batches, want 0", seed, n)
	}
	if n := total.counts.decisions; n >= 1000 {
		total.checkVariety(t)
	}
}

// counts are numbers of decisions: on a node, on no node, and with evictions. retried attempts ended with an error
// that is not a decision, for example because not all replicas have answered. ended nominations were ended by a
// preemption. filling pods need the room of a withdrawn nomination. disturbed steps differed from what is expected while a
// connection between replicas ended.
type counts struct {
	decisions, placed, refused, preempted, withdrawn, nominated, retried, ended, filling, disturbed int
}

// tally sums the counts of several worlds.
type tally struct {
	mu     sync.Mutex
	counts counts
}

func (t *tally) add(c counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.counts
	s.decisions, s.placed, s.refused, s.preempted = s.decisions+c.decisions, s.placed+c.placed, s.refused+c.refused, s.preempted+c.preempted
	s.withdrawn, s.nominated, s.retried = s.withdrawn+c.withdrawn, s.nominated+c.nominated, s.retried+c.retried
	s.ended, s.filling, s.disturbed = s.ended+c.ended, s.filling+c.filling, s.disturbed+c.disturbed
}

// checkVariety fails the test if the worlds do not test every kind of decision, or if many attempts fail.
func (t *tally) checkVariety(test *testing.T) {
	c, least := t.counts, t.counts.decisions/50
	if c.placed < least || c.refused < least || c.preempted < least || c.withdrawn < least/4 || c.nominated < least || c.filling == 0 || c.ended == 0 {
		test.Errorf("the worlds are not varied: %+v; want at least %d of each kind", c, least)
	}
	if c.retried > c.decisions/50 {
		test.Errorf("%d attempts of %d decisions failed and were retried", c.retried, c.decisions)
	}
	if c.disturbed > 1+c.decisions/500 {
		test.Errorf("%d steps beside %d decisions were disturbed by connections that ended", c.disturbed, c.decisions)
	}
}

// oracleWorld is a random cluster that changes step by step, the replicas that share its nodes, and the reference.
type oracleWorld struct {
	*group
	*generate.Cluster
	seed  uint64
	tally counts
	// freedNode is the node of the nomination that was withdrawn last; "" after a decision about it.
	freedNode string

	// events are the last versions of nodes and pods in events that the leader got, by UID; "" after a deletion.
	eventsMu sync.Mutex
	events   map[types.UID]string

	// sentQuery is the last query that the leader has sent, and encodedQuery the message at that time.
	queryMu      sync.Mutex
	sentQuery    *wire.Query
	encodedQuery []byte

	// mu guards the fields below, and the nodes and pods of the cluster. Attempts to schedule a pod read and change
	// them in another goroutine than the test. No attempt is made while the test changes the cluster.
	mu             sync.Mutex
	reference      *reference.Reference
	preemptionArgs *config.DefaultPreemptionArgs
	// pending are the pods that wait for a decision. attempts are the last attempts to schedule them.
	pending  map[types.UID]*v1.Pod
	attempts map[types.UID]*attempt
	// nominated are the pending pods that are nominated to a node.
	nominated []*v1.Pod
	// evicted are the names of the pods that the leader has evicted for the current pod.
	evicted []string
	history []string
	// resets returns how many connections between replicas have ended since the current step has started.
	resets func() int
}

func newOracleWorld(t *testing.T, seed uint64, replicas int) *oracleWorld {
	w := &oracleWorld{
		Cluster: generate.NewCluster(seed), seed: seed, pending: map[types.UID]*v1.Pod{}, attempts: map[types.UID]*attempt{}, events: map[types.UID]string{},
	}
	w.OnlyBoundClaims = true
	server := schedtest.NewAPI()
	server.Others = generate.Objects()
	for _, name := range generate.Namespaces {
		server.Others = append(server.Others, generate.Namespace(name, name != "default"))
	}
	relays := make([]bool, replicas)
	for i := range relays {
		// The last replicas may be relays, which own no nodes. The leader owns some.
		relays[i] = i > 1 && w.Chance(25)
	}
	fanout := 1 + w.Rand.IntN(4)
	w.group = startReplicasOn(t, server, func(o *member.Options) { o.Fanout = fanout }, relays)
	w.newReference()
	w.observeLeader(w.replicas[0])
	w.observeQueries(w.replicas[0])
	server.OnDelete = w.terminate
	w.populate()
	w.lead(0)
	w.awaitCaughtUp()
	return w
}

// newReference creates the reference. Its informers have the same objects as those of the replicas.
func (w *oracleWorld) newReference() {
	profile := *schedtest.DefaultProfile(w.T)
	for _, plugin := range profile.PluginConfig {
		if args, ok := plugin.Args.(*config.DefaultPreemptionArgs); ok {
			w.preemptionArgs = args
		}
	}
	factory := informers.NewSharedInformerFactory(fake.NewClientset(w.API.Others...), 0)
	var err error
	w.reference, err = reference.New(w.Ctx, profile, factory)
	w.Must(err)
	factory.Start(w.Ctx.Done())
	factory.WaitForCacheSync(w.Ctx.Done())
}

// observeLeader records the attempts of the leader to schedule pods, and the events that it gets.
func (w *oracleWorld) observeLeader(leader *testReplica) {
	schedule := leader.sched.SchedulePod
	leader.sched.SchedulePod = w.observe(schedule)
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { w.recordEvent(object, false) },
		UpdateFunc: func(_, object any) { w.recordEvent(object, false) },
		DeleteFunc: func(object any) { w.recordEvent(object, true) },
	}
	_, err := leader.informers.Core().V1().Nodes().Informer().AddEventHandler(handler)
	w.Must(err)
	_, err = leader.informers.Core().V1().Pods().Informer().AddEventHandler(handler)
	w.Must(err)
}

// observeQueries checks that nothing changes a query that the leader has sent. While the leader answers the query
// itself, and even later, it may be encoded for other replicas: [wire.Gather] does not wait for slow ones.
func (w *oracleWorld) observeQueries(leader *testReplica) {
	answer := leader.answerOwn
	leader.answerOwn = func(ctx context.Context, q *wire.Request) *wire.Answer {
		w.checkSentQuery(q.Query)
		defer w.checkSentQuery(nil)
		return answer(ctx, q)
	}
}

// checkSentQuery checks that the last query is as it was sent. If next is not nil, it is the last query from now on.
func (w *oracleWorld) checkSentQuery(next *wire.Query) {
	w.queryMu.Lock()
	defer w.queryMu.Unlock()
	if w.sentQuery != nil && !bytes.Equal(w.encode(w.sentQuery), w.encodedQuery) {
		w.T.Errorf("seed %d: a query was changed after it was sent; its counters are %+v", w.seed, w.sentQuery.Counters)
	}
	if next != nil {
		w.sentQuery, w.encodedQuery = next, w.encode(next)
	}
}

// encode returns an encoding of a query in which the entries of maps are sorted, so that equal queries have equal ones.
func (w *oracleWorld) encode(query *wire.Query) []byte {
	mode, err := cbor.CanonicalEncOptions().EncMode()
	w.Must(err)
	encoded, err := mode.Marshal(query)
	if err != nil {
		w.T.Errorf("seed %d: encoding a query: %v", w.seed, err)
	}
	return encoded
}

// run makes random changes and decisions, and checks at the end that nothing is left over.
func (w *oracleWorld) run(decisions int) {
	for w.tally.decisions < decisions && !w.T.Failed() {
		w.resets = schedtest.CounterDelta(w.T, schedtest.CounterSum("scheduler_replica_link_resets_total"))
		w.change()
		w.decide()
	}
	if !w.T.Failed() {
		w.checkEnd()
	}
}

// record remembers a change, for the message of a failure.
func (w *oracleWorld) record(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

// disturbed returns whether a connection between replicas has ended during the current step, which happens if the machine
// is so busy that a process gets no CPU for seconds. Then events are lost, hash slots move, and decisions are made without
// some nodes. It counts the step.
func (w *oracleWorld) disturbed() bool {
	if w.resets == nil || w.resets() == 0 {
		return false
	}
	w.tally.disturbed++
	return true
}

// fail reports a wrong decision with the pod and the latest changes, unless the step was disturbed.
func (w *oracleWorld) fail(pod *v1.Pod, format string, args ...any) {
	w.T.Helper()
	if w.disturbed() {
		w.T.Logf("seed %d, disturbed: "+format, append([]any{w.seed}, args...)...)
		return
	}
	w.T.Errorf("seed %d, %d replicas, decision %d: "+format, append([]any{w.seed, len(w.replicas), w.tally.decisions}, args...)...)
	w.T.Logf("pod %s/%s labels %v\naffinity %v\nspread %v\nselector %v tolerations %v\ncontainers %v", pod.Namespace, pod.Name, pod.Labels,
		pod.Spec.Affinity, pod.Spec.TopologySpreadConstraints, pod.Spec.NodeSelector, pod.Spec.Tolerations, pod.Spec.Containers)
	w.T.Logf("the latest changes: %s", strings.Join(w.history[max(0, len(w.history)-20):], ", "))
}

// withoutPod returns a list without the pod that has a UID.
func withoutPod(pods []*v1.Pod, uid types.UID) []*v1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool { return pod.UID == uid })
}
