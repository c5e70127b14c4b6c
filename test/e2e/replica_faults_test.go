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

// fault is a kind of fault. A shard in its name is a replica that owns nodes and is not the leader.
type fault struct {
	name    string
	seconds int // duration
	// begin causes the fault and returns a function that ends it.
	begin func(*campaign) (end func())
}

// campaign injects faults into replicas under load.
type campaign struct {
	t             *testing.T
	w             *workspace
	rs            *replicas
	load          *churn
	rand          *rand.Rand
	recoveryTimes map[string][]time.Duration
	// faultStart is the start time of the current fault.
	faultStart time.Time
	// limit is the maximum recovery time. It is long enough for slow and busy machines.
	limit time.Duration
}

const (
	faultNodes = 60
	faultsName = "faults"
)

// faults are all kinds of faults. A run without FAULTS uses only the first seven.
var faults = []fault{
	{"kill -9 of a shard", 1, func(c *campaign) func() { return c.kill(c.shard(), syscall.SIGKILL) }},
	{"clean exit of the leader", 1, func(c *campaign) func() { return c.kill(c.rs.leader(), syscall.SIGTERM) }},
	{"half-open to a shard", 4, func(c *campaign) func() { return c.cut([2]string{"*", c.shard().name}) }},
	{"a shard suspended", 5, func(c *campaign) func() { return c.suspend(c.shard()) }},
	{"kill -9 of a relay", 1, func(c *campaign) func() { return c.kill(c.relay(), syscall.SIGKILL) }},
	{"a shard joins and leaves", 3, (*campaign).join},
	{"kill -9 of the leader", 1, func(c *campaign) func() { return c.kill(c.rs.leader(), syscall.SIGKILL) }},
	{"clean exit of a shard", 1, func(c *campaign) func() { return c.kill(c.shard(), syscall.SIGTERM) }},
	{"a shard suspended for 30 s", 30, func(c *campaign) func() { return c.suspend(c.shard()) }},
	{"the leader suspended", 5, func(c *campaign) func() { return c.suspend(c.rs.leader()) }},
	{"the leader suspended for 30 s", 30, func(c *campaign) func() { return c.suspend(c.rs.leader()) }},
	{"a relay suspended", 5, func(c *campaign) func() { return c.suspend(c.relay()) }},
	{"a shard cut off", 12, func(c *campaign) func() {
		name := c.shard().name
		return c.cut([2]string{"*", name}, [2]string{name, "*"})
	}},
	{"half-open from a shard", 6, func(c *campaign) func() { return c.cut([2]string{c.shard().name, "*"}) }},
	{"two shards cut off from each other", 40, (*campaign).cutBetweenShards},
	{"a shard without the API server", 12, func(c *campaign) func() {
		name := c.shard().name
		return c.cut([2]string{"api", name}, [2]string{name, "api"})
	}},
	{"the leader cut off from replicas", 8, (*campaign).isolateLeader},
	{"a relay that is the leader cut off", 8, (*campaign).isolateRelay},
	{"connections of a shard reset", 1, (*campaign).resetConnections},
	{"a slow shard", 10, func(c *campaign) func() { return c.slowDown(c.shard()) }},
	{"a second replica with a shard's name", 1, (*campaign).startSameName},
	{"kill -9 of the API server", 1, func(c *campaign) func() { c.w.kill(c.t, faultsName, "kube-apiserver"); return func() {} }},
}

// TestReplicaFaults injects faults into scheduler replicas while pods are created and deleted.
//
//	FAULTS          number of faults (default 7)
//	FAULTS_ONLY     inject only faults whose name contains this text
//	FAULTS_SEED     seed of an earlier run, to repeat its sequence of faults (default 1; a new one with FAULTS)
//	FAULTS_NETWORK  proxy: use proxies instead of network namespaces
//	FAULTS_LOGS     directory for the logs of the replicas
func TestReplicaFaults(t *testing.T) {
	count, kinds, seed := 7, faults[:7], uint64(1)
	if text := os.Getenv("FAULTS"); text != "" {
		number, err := strconv.Atoi(text)
		must(t, err)
		count, kinds, seed = number, faults, uint64(time.Now().UnixNano())
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
	defer func() { stop(); <-done; c.printTable() }()
	order := []fault{}
	for i := range count {
		if i%len(kinds) == 0 {
			order = append(order, kinds...)
			c.rand.Shuffle(len(kinds), func(a, b int) { order[i+a], order[i+b] = order[i+b], order[i+a] })
		}
		c.inject(i, order[i])
	}
	stop()
	<-done
	pods := c.load.audit(t, c.limit, count)
	t.Logf("%d fillers were evicted for %d urgent pods", len(c.load.evicted), c.load.urgent)
	eventually(t, patience, "the replicas agree and have no reservations", func() error { return c.rs.agree(faultNodes, pods) })
	for _, g := range c.load.groups {
		c.load.delete(t.Context(), g)
	}
	eventually(t, patience, "the replicas have no pods after all pods were deleted", func() error { return c.rs.agree(faultNodes, 0) })
}

// newCampaign starts a cluster with three replicas that own nodes and one relay.
func newCampaign(t *testing.T, seed uint64) *campaign {
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", faultsName) })
	w.succeed(t, "up", "--name", faultsName, "--nodes", fmt.Sprint(faultNodes), "--store", storeKind())
	source := rand.New(rand.NewPCG(seed, 0))
	c := &campaign{
		t: t, w: w, rs: newReplicas(t, w, faultsName), rand: source, recoveryTimes: map[string][]time.Duration{}, limit: patience,
		load: &churn{client: w.client(t, faultsName), rand: rand.New(rand.NewPCG(seed, 1)), bound: map[types.UID]string{}, evicted: map[types.UID]bool{}},
	}
	c.load.prepare(t)
	for range 3 {
		c.rs.add(false)
	}
	c.rs.add(true)
	eventually(t, patience, "the replicas own all nodes", func() error { return c.rs.agree(faultNodes, 0) })
	return c
}

// inject injects a fault and waits until the replicas have recovered.
func (c *campaign) inject(number int, f fault) {
	c.t.Helper()
	c.faultStart = time.Now()
	end := f.begin(c)
	took := c.load.probe(c.t, c.faultStart, c.limit)
	time.Sleep(time.Until(c.faultStart.Add(time.Duration(f.seconds) * time.Second)))
	end()
	pods := c.load.audit(c.t, c.limit, number+1)
	c.recoveryTimes[f.name] = append(c.recoveryTimes[f.name], took)
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

// relay returns the relay.
func (c *campaign) relay() *replica {
	for _, r := range c.rs.all {
		if r.relay {
			return r
		}
	}
	return nil
}

// kill sends a signal to a replica that makes it exit. The end of the fault restarts the replica.
func (c *campaign) kill(r *replica, signal syscall.Signal) func() {
	r.signal(signal)
	return func() {
		r.await()
		r.start()
	}
}

// suspend suspends a replica until the end of the fault. A leader that loses its Lease meanwhile exits.
func (c *campaign) suspend(r *replica) func() {
	r.signal(syscall.SIGSTOP)
	return func() { r.signal(syscall.SIGCONT) }
}

// cut cuts paths until the end of the fault.
func (c *campaign) cut(paths ...[2]string) func() {
	must(c.t, c.rs.net.setCut(true, paths...))
	return func() { must(c.t, c.rs.net.setCut(false, paths...)) }
}

func (c *campaign) resetConnections() func() {
	must(c.t, c.rs.net.resetConnections(c.shard().name))
	return func() {}
}

// cutBetweenShards cuts the paths between two replicas that are not the leader. Both stay members, because
// the leader can reach them.
func (c *campaign) cutBetweenShards() func() {
	one := c.shard()
	other := c.shard()
	for range 100 {
		if other == one {
			other = c.shard()
		}
	}
	return c.cut([2]string{one.name, other.name}, [2]string{other.name, one.name})
}

// isolateLeader cuts the paths between the leader and the other replicas, but not those to the API server.
func (c *campaign) isolateLeader() func() {
	leader := c.rs.leader()
	var paths [][2]string
	for _, r := range c.rs.all {
		if r != leader {
			paths = append(paths, [2]string{leader.name, r.name}, [2]string{r.name, leader.name})
		}
	}
	return c.cut(paths...)
}

// isolateRelay restarts leaders until the relay is the leader. Then it cuts the paths between the relay and
// the other replicas.
func (c *campaign) isolateRelay() func() {
	for leader := c.rs.leader(); leader != c.relay(); {
		leader.signal(syscall.SIGTERM)
		leader.await()
		last := leader
		leader = c.rs.leader()
		last.start()
	}
	c.faultStart = time.Now()
	return c.isolateLeader()
}

// slowDown lets a replica run for only 10 % of the time.
func (c *campaign) slowDown(r *replica) func() {
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

// join adds a replica, and stops it at the end of the fault.
func (c *campaign) join() func() {
	r := c.rs.add(false)
	return func() {
		r.signal(syscall.SIGTERM)
		r.await()
		c.rs.all = slices.DeleteFunc(c.rs.all, func(other *replica) bool { return other == r })
	}
}

// startSameName starts another replica with the name of a running replica. It must exit with an error.
func (c *campaign) startSameName() func() {
	r := c.rs.prepare(false)
	same := c.shard()
	for _, flag := range []string{"--replica-name", "--replica-cert-file", "--replica-key-file"} {
		r.args[slices.Index(r.args, flag)+1] = same.args[slices.Index(same.args, flag)+1]
	}
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

// printTable prints the recovery times by kind of fault.
func (c *campaign) printTable() {
	var lines strings.Builder
	fmt.Fprintf(&lines, "\n%-36s %5s %8s %8s %8s\n", "fault", "times", "median", "mean", "longest")
	for _, f := range faults {
		took := c.recoveryTimes[f.name]
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
