package e2e

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// fault is a kind of fault. Its function causes the fault and returns a function that ends it. Faults
// with "leader" in their name affect the leader.
type fault struct {
	name string
	// duration in seconds.
	seconds int
	begin   func(*campaign) (end func())
}

// campaign injects faults into replicas under load.
type campaign struct {
	t    *testing.T
	w    *world
	rs   *replicas
	load *churn
	rand *rand.Rand
	took map[string][]time.Duration
	// began is the start time of the current fault.
	began time.Time
	// limit is the maximum recovery time, generous enough for slow machines.
	limit time.Duration
}

const (
	faultNodes = 60
	faultsName = "faults"
)

// faults are all kinds of faults. A short run uses the first ones.
var faults = []fault{
	{"kill -9 of a shard", 1, func(c *campaign) func() { return c.kill(c.shard(), syscall.SIGKILL) }},
	{"clean exit of the leader", 1, func(c *campaign) func() { return c.kill(c.rs.leader(), syscall.SIGTERM) }},
	{"half-open to a shard", 4, func(c *campaign) func() { return c.cut([2]string{"*", c.shard().name}) }},
	{"a shard suspended", 5, func(c *campaign) func() { return c.stop(c.shard()) }},
	{"kill -9 of a relay", 1, func(c *campaign) func() { return c.kill(c.relay(), syscall.SIGKILL) }},
	{"a shard joins and leaves", 3, (*campaign).join},
	{"kill -9 of the leader", 1, func(c *campaign) func() { return c.kill(c.rs.leader(), syscall.SIGKILL) }},
	{"clean exit of a shard", 1, func(c *campaign) func() { return c.kill(c.shard(), syscall.SIGTERM) }},
	{"a shard suspended for 30 s", 30, func(c *campaign) func() { return c.stop(c.shard()) }},
	{"the leader suspended", 5, func(c *campaign) func() { return c.stop(c.rs.leader()) }},
	{"the leader suspended for 30 s", 30, func(c *campaign) func() { return c.stop(c.rs.leader()) }},
	{"a relay suspended", 5, func(c *campaign) func() { return c.stop(c.relay()) }},
	{"a shard cut off", 12, func(c *campaign) func() {
		name := c.shard().name
		return c.cut([2]string{"*", name}, [2]string{name, "*"})
	}},
	{"half-open from a shard", 6, func(c *campaign) func() { return c.cut([2]string{c.shard().name, "*"}) }},
	{"two shards cut off from each other", 40, (*campaign).between},
	{"a shard without the API server", 12, func(c *campaign) func() {
		name := c.shard().name
		return c.cut([2]string{"api", name}, [2]string{name, "api"})
	}},
	{"the leader cut off from replicas", 8, (*campaign).isolate},
	{"a relay that is the leader cut off", 8, (*campaign).isolateRelay},
	{"connections of a shard reset", 1, (*campaign).reset},
	{"a slow shard", 10, func(c *campaign) func() { return c.slow(c.shard()) }},
	{"a second replica with a shard's name", 1, (*campaign).twin},
	{"kill -9 of the API server", 1, func(c *campaign) func() { c.w.kill(c.t, faultsName, "kube-apiserver"); return func() {} }},
}

// TestReplicaFaults injects faults into scheduler replicas while pods are created and deleted.
//
//	FAULTS       number of faults (default: a few); FAULTS_ONLY: only kinds whose name contains this
//	FAULTS_SEED  seed of an earlier run, to repeat its sequence of faults
//	FAULTS_NETWORK  proxy: use proxies instead of network namespaces
//	FAULTS_LOGS  directory for the logs of the replicas
func TestReplicaFaults(t *testing.T) {
	count, kinds, seed := 7, faults[:7], uint64(time.Now().UnixNano())
	if text := os.Getenv("FAULTS"); text != "" {
		number, err := strconv.Atoi(text)
		must(t, err)
		count, kinds = number, faults
	}
	if text := os.Getenv("FAULTS_SEED"); text != "" {
		number, err := strconv.ParseUint(text, 10, 64)
		must(t, err)
		seed = number
	}
	if only := os.Getenv("FAULTS_ONLY"); only != "" {
		kinds = slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !strings.Contains(f.name, only) })
	}
	t.Logf("FAULTS_SEED=%d", seed)
	c := newCampaign(t, seed)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.load.run(ctx)
	}()
	defer func() { stop(); <-done; c.table() }()
	order := []fault{}
	for i := range count {
		if i%len(kinds) == 0 {
			order = append(order, kinds...)
			c.rand.Shuffle(len(kinds), func(a, b int) { order[i+a], order[i+b] = order[i+b], order[i+a] })
		}
		c.happen(i, order[i])
	}
	stop()
	<-done
	pods := c.load.audit(t, c.limit)
	eventually(t, 2*time.Minute, "replicas agree and hold no reservations", func() error { return c.rs.agree(faultNodes, pods) })
	for _, g := range c.load.groups {
		c.load.delete(t.Context(), g)
	}
	eventually(t, time.Minute, "replicas forget the pods that were deleted", func() error { return c.rs.agree(faultNodes, 0) })
}

func newCampaign(t *testing.T, seed uint64) *campaign {
	w := newWorld(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", faultsName) })
	w.succeed(t, "up", "--name", faultsName, "--nodes", fmt.Sprint(faultNodes), "--store", storeKind())
	source := rand.New(rand.NewPCG(seed, 0))
	c := &campaign{
		t: t, w: w, rs: newReplicas(t, w, faultsName), rand: source, took: map[string][]time.Duration{}, limit: 90 * time.Second,
		load: &churn{client: w.client(t, faultsName), rand: rand.New(rand.NewPCG(seed, 1)), bound: map[types.UID]string{}},
	}
	for range 3 {
		c.rs.add(false)
	}
	c.rs.add(true)
	eventually(t, time.Minute, "replicas have all nodes", func() error { return c.rs.agree(faultNodes, 0) })
	return c
}

// happen injects a fault and waits until the replicas have recovered.
func (c *campaign) happen(number int, f fault) {
	c.t.Helper()
	c.began = time.Now()
	end := f.begin(c)
	took := c.load.probe(c.t, c.began, c.limit)
	time.Sleep(time.Until(c.began.Add(time.Duration(f.seconds) * time.Second)))
	end()
	pods := c.load.audit(c.t, c.limit)
	c.took[f.name] = append(c.took[f.name], took)
	c.t.Logf("%3d %-36s %6.2f s until new pods are bound; %d pods are on allowed nodes", number+1, f.name, took.Seconds(), pods)
	for _, r := range c.rs.all {
		if !r.runs() {
			r.start()
		}
	}
}

// shard returns a replica that owns nodes and is not the leader.
func (c *campaign) shard() *replica {
	leader := c.rs.leader()
	var others []*replica
	for _, r := range c.rs.all {
		if r != leader && !r.relay && r.runs() {
			others = append(others, r)
		}
	}
	return others[c.rand.IntN(len(others))]
}

func (c *campaign) relay() *replica {
	for _, r := range c.rs.all {
		if r.relay {
			return r
		}
	}
	return nil
}

// kill kills a replica, which is restarted a second later.
func (c *campaign) kill(r *replica, signal syscall.Signal) func() {
	r.signal(signal)
	return func() {
		r.await()
		r.start()
	}
}

// stop suspends a replica for a while. A leader that loses its lease in that time exits.
func (c *campaign) stop(r *replica) func() {
	r.signal(syscall.SIGSTOP)
	return func() { r.signal(syscall.SIGCONT) }
}

func (c *campaign) cut(ways ...[2]string) func() {
	must(c.t, c.rs.net.set(true, ways...))
	return func() { must(c.t, c.rs.net.set(false, ways...)) }
}

func (c *campaign) reset() func() {
	must(c.t, c.rs.net.reset(c.shard().name))
	return func() {}
}

// between cuts the path between two replicas that are not the leader, so that both stay members.
func (c *campaign) between() func() {
	one := c.shard()
	other := c.shard()
	for range 100 {
		if other == one {
			other = c.shard()
		}
	}
	return c.cut([2]string{one.name, other.name}, [2]string{other.name, one.name})
}

// isolate cuts the leader off from the other replicas, but not from the API server.
func (c *campaign) isolate() func() {
	leader := c.rs.leader()
	var ways [][2]string
	for _, r := range c.rs.all {
		if r != leader {
			ways = append(ways, [2]string{leader.name, r.name}, [2]string{r.name, leader.name})
		}
	}
	return c.cut(ways...)
}

// isolateRelay makes a relay the leader and cuts it off.
func (c *campaign) isolateRelay() func() {
	for leader := c.rs.leader(); leader != c.relay(); {
		leader.signal(syscall.SIGTERM)
		leader.await()
		last := leader
		leader = c.rs.leader()
		last.start()
	}
	c.began = time.Now()
	return c.isolate()
}

// slow lets a replica run only 10 % of the time.
func (c *campaign) slow(r *replica) func() {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			r.signal(syscall.SIGSTOP)
			time.Sleep(270 * time.Millisecond)
			r.signal(syscall.SIGCONT)
			select {
			case <-done:
				return
			case <-time.After(30 * time.Millisecond):
			}
		}
	}()
	return func() { close(done); <-ended }
}

// join adds a replica and later stops it.
func (c *campaign) join() func() {
	r := c.rs.add(false)
	return func() {
		r.signal(syscall.SIGTERM)
		r.await()
		c.rs.all = slices.DeleteFunc(c.rs.all, func(other *replica) bool { return other == r })
	}
}

// twin starts a second replica with the name of another one. It must exit with an error.
func (c *campaign) twin() func() {
	r := c.rs.prepare(false)
	r.args[slices.Index(r.args, "--replica-name")+1] = c.shard().name
	r.start()
	return func() {
		r.await()
		log, err := os.ReadFile(filepath.Join(c.rs.logs(), r.name+".log"))
		must(c.t, err)
		if r.cmd.ProcessState.Success() || !strings.Contains(string(log), "another replica has the same name") {
			c.t.Fatalf("the second replica exited with %v\n%s", r.cmd.ProcessState, log)
		}
	}
}

// table prints the recovery times by kind of fault.
func (c *campaign) table() {
	var lines strings.Builder
	fmt.Fprintf(&lines, "\n%-36s %5s %8s %8s %8s\n", "fault", "times", "median", "mean", "longest")
	for _, f := range faults {
		took := c.took[f.name]
		if len(took) == 0 {
			continue
		}
		slices.SortFunc(took, cmp.Compare)
		sum := time.Duration(0)
		for _, d := range took {
			sum += d
		}
		fmt.Fprintf(&lines, "%-36s %5d %7.2fs %7.2fs %7.2fs\n", f.name, len(took),
			took[len(took)/2].Seconds(), (sum / time.Duration(len(took))).Seconds(), took[len(took)-1].Seconds())
	}
	c.t.Log(lines.String())
}
