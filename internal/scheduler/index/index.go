// Package index indexes the nodes of a cluster so that the best node for a pod is found
// without evaluating each node.
//
// Nodes that no plugin can distinguish have one [State]. Pods that every plugin treats
// alike form a pod class ([Class]). A class stores one [Verdict] for each state instead of
// each node. States with equal filter results and raw scores form a node group, and a
// query iterates over the groups. Within a group, each score bucket has the nodes with one
// static score. A node that differs from the other nodes of its state for one class only,
// for example by a pod to which that class has anti-affinity, is a special node of that
// class.
//
// All changes of nodes are appended to one log. A class reads the log from its last
// position when it is used next, so a change costs nothing for unused classes.
//
// The package does not depend on Kubernetes. It is not safe for concurrent use: the
// scheduling cycle owns the index.
package index

// NodeID is the number of a node in an index. The caller chooses it; numbers should be dense.
type NodeID int32

// StateID is the number of a [State] in an [Index]. [Index.sweep] renumbers states.
type StateID int32

// ShapeID is the number of a node shape: the part of the state that does not depend on pods.
type ShapeID int32

// KindID is the number of a pod kind: running pods that look the same to all pods that will
// be scheduled.
type KindID int32

// None is the state of a node that does not exist.
const None StateID = -1

// State is everything that plugins read of a node except its pods.
type State struct {
	Shape ShapeID
	// Requests of all pods on the node, in millicores and bytes.
	MilliCPU, Memory, EphemeralStorage int64
	// The same sums with kube-scheduler's default requests for pods without requests.
	NonZeroMilliCPU, NonZeroMemory int64
	// Pods is the number of pods on the node.
	Pods int32
	// Extra is the number of the set of other resources in use, such as host ports.
	Extra int32
}

// Index has the nodes of a cluster by state, and the pod classes.
type Index struct {
	ids    map[State]StateID
	states []stateNodes
	nodes  []nodeEntry
	// count is the number of nodes, empty the number of states without nodes.
	count, empty int
	log          changeLog
	classes      map[string]*Class
	// young are the most recently created classes, oldest first.
	young []*Class
	// clock counts uses of classes, to find the least recently used ones.
	clock int64
	// limit is the maximal number of classes. States are swept when there are more than spare
	// empty states in addition to as many as there are states with nodes.
	limit, spare int
}

// stateNodes is a state with its nodes.
type stateNodes struct {
	State
	nodes []NodeID
}

// nodeEntry is what the index stores of a node.
type nodeEntry struct {
	state StateID
	// position is the index in the nodes of the state.
	position int32
	// kinds has the kind of each pod on the node.
	kinds []KindID
}

const (
	// At most maxClasses classes with maxEntries entries in total are kept. The least
	// recently used ones are dropped first.
	maxClasses = 4096
	maxEntries = 1 << 25

	// The same limits for classes that were used only once.
	maxYoung        = 256
	maxYoungEntries = 1 << 22

	spareStates = 1024
)

// New returns an index without nodes.
func New() *Index {
	return &Index{
		ids:     map[State]StateID{},
		classes: map[string]*Class{},
		log:     changeLog{least: minLog},
		limit:   maxClasses,
		spare:   spareStates,
	}
}

// Len returns the number of nodes.
func (x *Index) Len() int { return x.count }

// States returns the number of states that have nodes.
func (x *Index) States() int { return len(x.states) - x.empty }

// Place sets the state of a node. It adds the node, without pods, if it is new.
func (x *Index) Place(node NodeID, state State) {
	for int(node) >= len(x.nodes) {
		x.nodes = append(x.nodes, nodeEntry{state: None})
	}
	n := &x.nodes[node]
	to := x.id(state)
	from := n.state
	if from == to {
		return
	}
	change := change{node: node, from: from, to: to}
	if from == None {
		x.count++
	} else if before := x.states[from].Shape; before != state.Shape {
		change.kinds = append([]KindID(nil), n.kinds...)
	}
	x.leave(node)
	x.enter(node, to)
	x.log.add(change, x.count)
	x.sweep()
}

// Remove removes a node and its pods.
func (x *Index) Remove(node NodeID) {
	n := &x.nodes[node]
	from := n.state
	x.count--
	x.leave(node)
	n.state = None
	x.log.add(change{node: node, from: from, to: None, kinds: n.kinds}, x.count)
	n.kinds = nil
	x.sweep()
}

// AddPod adds a pod of a kind to an existing node.
func (x *Index) AddPod(node NodeID, kind KindID) {
	n := &x.nodes[node]
	n.kinds = append(n.kinds, kind)
	x.log.add(change{node: node, to: n.state, kind: kind, delta: 1}, x.count)
}

// RemovePod removes one pod of a kind from a node, if there is one.
func (x *Index) RemovePod(node NodeID, kind KindID) {
	n := &x.nodes[node]
	for i, found := range n.kinds {
		if found == kind {
			last := len(n.kinds) - 1
			n.kinds[i] = n.kinds[last]
			n.kinds = n.kinds[:last]
			x.log.add(change{node: node, to: n.state, kind: kind, delta: -1}, x.count)
			return
		}
	}
}

// Reset drops all classes. It is called when something has changed on which all of them
// depend.
func (x *Index) Reset() {
	clear(x.classes)
	x.young = nil
}

// id returns the number of a state and adds the state if it is new.
func (x *Index) id(state State) StateID {
	if id, ok := x.ids[state]; ok {
		return id
	}
	id := StateID(len(x.states))
	x.ids[state] = id
	x.states = append(x.states, stateNodes{State: state})
	x.empty++
	return id
}

// enter adds a node to the nodes of a state.
func (x *Index) enter(node NodeID, to StateID) {
	state := &x.states[to]
	if len(state.nodes) == 0 {
		x.empty--
	}
	n := &x.nodes[node]
	n.state, n.position = to, int32(len(state.nodes))
	state.nodes = append(state.nodes, node)
}

// leave removes a node from the nodes of its state.
func (x *Index) leave(node NodeID) {
	n := &x.nodes[node]
	if n.state == None {
		return
	}
	state := &x.states[n.state]
	last := len(state.nodes) - 1
	moved := state.nodes[last]
	state.nodes[n.position] = moved
	x.nodes[moved].position = n.position
	state.nodes = state.nodes[:last]
	if last == 0 {
		x.empty++
		state.nodes = nil
	}
}

// sweep removes states without nodes once there are many, and renumbers the others.
func (x *Index) sweep() {
	if x.empty <= x.States()+x.spare {
		return
	}
	// Unread changes in the log refer to states by their old numbers.
	for _, class := range x.classes {
		class.catchUp()
	}
	renumbered := make([]StateID, len(x.states))
	kept := make([]stateNodes, 0, len(x.states)-x.empty)
	for id, state := range x.states {
		renumbered[id] = None
		if len(state.nodes) == 0 {
			delete(x.ids, state.State)
			continue
		}
		renumbered[id] = StateID(len(kept))
		x.ids[state.State] = renumbered[id]
		kept = append(kept, state)
	}
	x.states, x.empty = kept, 0
	for i := range x.nodes {
		if n := &x.nodes[i]; n.state != None {
			n.state = renumbered[n.state]
		}
	}
	x.log.clear()
	for _, class := range x.classes {
		class.renumber(renumbered)
	}
}
