package core

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// simAPI is the API server: nodes, pods and the leader election Lease. It checks with each bind that no place is given
// twice.
type simAPI struct {
	sim   *simulation
	pods  map[types.UID]*v1.Pod
	nodes map[string]*v1.Node
	// room is the number of pods that fit on a node, by its name.
	room map[string]int
	// changed is the time at which a node was last created or deleted.
	changed map[string]time.Time
	// log are all changes, for watches.
	log []simChange
	// bound counts the binds of each pod.
	bound map[types.UID]int

	holder    string
	term      int64
	renewals  int64
	lastWrite int
}

// simChange is a change of a pod or a node.
type simChange struct {
	version   int
	pod, was  *v1.Pod
	node, old *v1.Node
}

func newSimAPI(s *simulation) *simAPI {
	return &simAPI{sim: s, pods: map[types.UID]*v1.Pod{}, nodes: map[string]*v1.Node{}, room: map[string]int{}, changed: map[string]time.Time{}, bound: map[types.UID]int{}}
}

func (a *simAPI) version() int { return a.lastWrite }

func (a *simAPI) write(c simChange) {
	c.version = a.lastWrite
	a.log = append(a.log, c)
	for _, r := range a.sim.replicas {
		r.deliverSoon()
	}
}

func (a *simAPI) next() string {
	a.lastWrite++
	return strconv.Itoa(a.lastWrite)
}

func (a *simAPI) createPod(pod *v1.Pod) {
	pod.ResourceVersion = a.next()
	a.pods[pod.UID] = pod
	a.sim.record("%s is created, exclusive %t, group %q", pod.Name, HasAntiAffinityBeyondNode(pod), pod.Labels["group"])
	a.write(simChange{pod: pod})
}

func (a *simAPI) deletePod(uid types.UID) {
	pod := a.pods[uid]
	a.next()
	delete(a.pods, uid)
	a.sim.record("%s is deleted", pod.Name)
	a.write(simChange{was: pod})
}

func (a *simAPI) createNode(name string, room int) {
	node := &v1.Node{}
	node.Name, node.UID = name, types.UID(fmt.Sprintf("%s-%x", name, a.sim.random.Uint64()))
	node.CreationTimestamp = metav1.NewTime(a.sim.now.Truncate(time.Second))
	node.ResourceVersion = a.next()
	a.nodes[name], a.room[name], a.changed[name] = node, room, a.sim.now
	a.sim.record("node %s is created", name)
	a.write(simChange{node: node})
}

func (a *simAPI) deleteNode(name string) {
	node := a.nodes[name]
	a.next()
	delete(a.nodes, name)
	a.changed[name] = a.sim.now
	a.sim.record("node %s is deleted", name)
	a.write(simChange{old: node})
}

// bind binds a pod, if it exists and is not bound. It returns whether it did, and otherwise whether it is a conflict.
func (a *simAPI) bind(uid types.UID, node, by string, decided *simDecision) (bound, conflict bool) {
	pod := a.pods[uid]
	switch {
	case pod == nil:
		return false, false
	case pod.Spec.NodeName != "":
		return false, true
	}
	after := pod.DeepCopy()
	after.Spec.NodeName, after.ResourceVersion = node, a.next()
	a.pods[uid] = after
	a.bound[uid]++
	a.sim.stats.Binds++
	a.sim.note("bind %s to %s by %s", pod.Name, node, by)
	a.checkBind(after, by, decided)
	a.write(simChange{was: pod, pod: after})
	return true, false
}

// simDecision is what a leader knew when it placed a pod.
type simDecision struct {
	at time.Time
	// unused are the names of the nodes that no owner used. Pods on nodes that do not exist, or are held back, do not count
	// for the anti-affinity of others: in kube-scheduler neither.
	unused map[string]bool
}

// decision returns what a leader knows now.
func (a *simAPI) decision() *simDecision {
	d := &simDecision{a.sim.now, map[string]bool{}}
	for name := range a.room {
		d.unused[name] = true
	}
	for _, r := range a.sim.replicas {
		if r.nodes == nil {
			continue
		}
		for name, node := range r.nodes.nodes {
			if current := a.nodes[name]; current != nil && current.UID == node.UID {
				delete(d.unused, name)
			}
		}
	}
	return d
}

// counts returns whether a pod on a node counts for the anti-affinity of a pod that was placed with a decision.
func (a *simAPI) counts(node string, d *simDecision) bool {
	return a.nodes[node] != nil && !d.unused[node] && a.changed[node].Before(d.at)
}

// checkBind checks that no place was given twice: the pods on a node fit, and no two pods of the cluster exclude each other.
func (a *simAPI) checkBind(pod *v1.Pod, by string, decided *simDecision) {
	if used := a.used(pod.Spec.NodeName); used > a.room[pod.Spec.NodeName] {
		a.sim.fail("%s has bound %s to %s, which has %d pods with room for %d", by, pod.Name, pod.Spec.NodeName, used, a.room[pod.Spec.NodeName])
	}
	if a.bound[pod.UID] > 1 {
		a.sim.fail("%s is bound twice", pod.Name)
	}
	for _, other := range a.sortedPods() {
		exclusive := HasAntiAffinityBeyondNode(pod) || HasAntiAffinityBeyondNode(other)
		if other.UID != pod.UID && a.counts(other.Spec.NodeName, decided) && inGroup(pod) && inGroup(other) && exclusive {
			a.sim.fail("%s has bound %s to %s, and %s on %s excludes it", by, pod.Name, pod.Spec.NodeName, other.Name, other.Spec.NodeName)
		}
	}
}

func inGroup(pod *v1.Pod) bool { return pod.Labels["group"] == "x" }

func (a *simAPI) used(node string) int {
	used := 0
	for _, pod := range a.pods {
		if pod.Spec.NodeName == node {
			used++
		}
	}
	return used
}

func (a *simAPI) sortedPods() []*v1.Pod {
	pods := slices.Collect(maps.Values(a.pods))
	slices.SortFunc(pods, byUID)
	return pods
}

func (a *simAPI) sortedNodes() (nodes []*v1.Node) {
	for _, name := range slices.Sorted(maps.Keys(a.nodes)) {
		nodes = append(nodes, a.nodes[name])
	}
	return nodes
}

// deliverAll makes all watches deliver what they have to.
func (a *simAPI) deliverAll() {
	for _, r := range a.sim.replicas {
		r.deliverSoon()
	}
}

// Durations of the leader election. They are those that k1m configures.
const (
	simLease    = 10 * time.Second
	simDeadline = 7 * time.Second
	simRetry    = 2 * time.Second
)

// acquire makes a candidate the leader that has seen the given number of renewals, unless there were more since. known is
// the last term that it knows. It returns the term; 0 if it did not acquire the Lease.
func (a *simAPI) acquire(candidate string, seen, known int64) int64 {
	if a.renewals != seen {
		return 0
	}
	a.renewals++
	a.term, a.holder = max(a.term, known)+1, candidate
	a.sim.stats.Terms++
	return a.term
}

// renew renews the Lease, and returns whether the replica still holds it.
func (a *simAPI) renew(holder string, term int64) bool {
	if a.holder != holder || a.term != term {
		return false
	}
	a.renewals++
	return true
}
