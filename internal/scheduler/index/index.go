// Package index indexes the nodes of a cluster so that the best node for a pod is found
// without evaluating each node.
//
// Nodes with equal [State] are the same for all plugins that do not read individual pods on a node.
// Pods that every plugin treats alike form a pod class ([Class]). A class stores one [Verdict] for each
// state instead of each node. Nodes whose states have equal filter results and raw scores form a node
// group, and a query iterates over the groups. Within a group, each score bucket contains the nodes
// with one static score. A node that differs from the other nodes of its state for one class only, for
// example by a pod to which that class has anti-affinity, is a special node of that class. Its other
// nodes are ordinary.
//
// All changes of nodes are appended to one log. When a class is used, it reads the changes since its
// last use from the log. So a change costs nothing for classes that are not used.
//
// The package does not depend on Kubernetes. It is not safe for concurrent use: the
// scheduling cycle owns the index.
package index

// NodeID is the number of a node in an index. The caller chooses it; numbers should be dense.
type NodeID int32

// StateID is the number of a [State] in an [Index]. [Index.sweep] renumbers states.
type StateID int32

// ShapeID is the number of a node shape: the part of the state that does not depend on pods. The caller
// chooses it.
type ShapeID int32

// KindID is the number of a pod kind: running pods that affect the placement of other pods in the same
// way. The caller chooses it.
type KindID int32

// None is the StateID of a node that does not exist.
const None StateID = -1

// State is everything that plugins read of a node except its individual pods.
type State struct {
	Shape ShapeID
	// MilliCPU, Memory and EphemeralStorage are the sums of the requests of all pods on the node, in
	// millicores and bytes.
	MilliCPU, Memory, EphemeralStorage int64
	// NonZeroMilliCPU and NonZeroMemory are the same sums, with kube-scheduler's default requests
	// for pods without requests.
	NonZeroMilliCPU, NonZeroMemory int64
	// Pods is the number of pods on the node.
	Pods int32
	// Extra is the number of the set of other used resources, such as host ports. The caller chooses
	// it.
	Extra int32
}

// Index has the nodes of a cluster by state, and the pod classes.
type Index struct {
	ids    map[State]StateID
	states []stateNodes
	nodes  []nodeEntry
	// count is the number of nodes. empty is the number of states without nodes.
	count, empty int
	log          changeLog
	classes      map[string]*Class
	// young are the most recently created classes, oldest first.
	young []*Class
	// clock is the number of uses of classes, to find the least recently used classes.
	clock int64
	// limit is the maximal number of classes. States are swept when the number of empty states
	// exceeds the number of states with nodes plus spare.
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
	// The index keeps at most maxClasses classes with at most maxEntries entries in total. Beyond
	// that it drops the least recently used half of the classes.
	maxClasses = 4096
	maxEntries = 1 << 25

	// maxYoung and maxYoungEntries are the same limits for the young classes. Beyond them, the
	// oldest young class is dropped if it was used only once.
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

// Place sets the state of a node. A new node is added without pods.
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

// StateOf returns the state of an existing node.
func (x *Index) StateOf(node NodeID) State { return x.states[x.nodes[node].state].State }

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

// RemovePod removes one pod of a kind from a node, if the node has one.
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

// Reset drops all classes. The caller calls it when data that is not in the index, and on which classes
// depend, has changed.
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

// sweep removes the states without nodes, if there are too many, and renumbers the others.
func (x *Index) sweep() {
	if x.empty <= x.States()+x.spare {
		return
	}
	// All classes must read the log first, because its changes refer to states by their old numbers.
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
