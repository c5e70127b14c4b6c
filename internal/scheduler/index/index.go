// Package index keeps the nodes of a cluster so that the best one for a pod is
// found without looking at each of them.
//
// Nodes that no plugin can tell apart are in one [State]. Pods that every plugin
// treats alike are in one [Class]. A class knows a verdict for each state, not for
// each node, and puts states with equal verdicts into groups; a query walks the
// groups. What makes a node different for one class only, such as the pods on it
// that the class wants to stay away from, is kept with the class, for the nodes
// that have it.
//
// Each change of a node is written to one log. A class reads the log when it is
// next used, from where it stopped, so a change costs nothing for classes that
// are not.
//
// The package knows nothing of Kubernetes. It is not safe for concurrent use: the
// scheduling cycle owns it.
package index

// Slot is the number of a node.
type Slot int32

// StateID is the number of a [State] in an [Index]. It may change in
// [Index.sweep].
type StateID int32

// ShapeID is the number of what a node is like without its pods.
type ShapeID int32

// KindID is the number of what a pod on a node is like for the pods to come.
type KindID int32

// None is the state of a node that is not there.
const None StateID = -1

// State is all that plugins look at on a node, except for which pods run on it.
type State struct {
	Shape ShapeID
	// Requested by the pods on the node: in thousandths of a core, and in bytes.
	MilliCPU, Memory, EphemeralStorage int64
	// The same, where a pod that requests nothing counts as if it did.
	NonZeroMilliCPU, NonZeroMemory int64
	Pods                           int32
	// Extra is the number of what else is used, such as ports of the host.
	Extra int32
}

// Index is the nodes of a cluster by state.
type Index struct {
	ids    map[State]StateID
	states []stateNodes
	nodes  []node
	// count of nodes, and of states that have none.
	count, empty int
	log          changeLog
	classes      map[string]*Class
	// young are the latest classes, oldest first.
	young []*Class
	// clock counts uses of classes, so that the oldest can be dropped.
	clock int64
	// limit of classes; spare are empty states that are kept although they are more
	// than those with nodes.
	limit, spare int
}

type stateNodes struct {
	State
	slots []Slot
}

type node struct {
	state StateID
	// position in the slots of the state.
	position int32
	// kinds of the pods on the node.
	kinds []KindID
}

const (
	// Classes that are kept, and what they know of states in all. Those that were
	// not used for the longest time go first.
	maxClasses = 4096
	maxEntries = 1 << 25

	// The same for those that were used once only.
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

// Len is the number of nodes.
func (x *Index) Len() int { return x.count }

// States is the number of states that nodes are in.
func (x *Index) States() int { return len(x.states) - x.empty }

// Place puts a node into a state. A node that is new has no pods.
func (x *Index) Place(slot Slot, state State) {
	for int(slot) >= len(x.nodes) {
		x.nodes = append(x.nodes, node{state: None})
	}
	n := &x.nodes[slot]
	to := x.id(state)
	from := n.state
	if from == to {
		return
	}
	change := change{slot: slot, from: from, to: to}
	if from == None {
		x.count++
	} else if before := x.states[from].Shape; before != state.Shape {
		change.kinds = append([]KindID(nil), n.kinds...)
	}
	x.leave(slot)
	x.enter(slot, to)
	x.log.add(change, x.count)
	x.sweep()
}

// Remove takes a node out, and what is on it.
func (x *Index) Remove(slot Slot) {
	n := &x.nodes[slot]
	from := n.state
	x.count--
	x.leave(slot)
	n.state = None
	x.log.add(change{slot: slot, from: from, to: None, kinds: n.kinds}, x.count)
	n.kinds = nil
	x.sweep()
}

// AddPod notes a pod on a node, which is there.
func (x *Index) AddPod(slot Slot, kind KindID) {
	n := &x.nodes[slot]
	n.kinds = append(n.kinds, kind)
	x.log.add(change{slot: slot, to: n.state, kind: kind, delta: 1}, x.count)
}

// RemovePod takes back what [Index.AddPod] noted.
func (x *Index) RemovePod(slot Slot, kind KindID) {
	n := &x.nodes[slot]
	for i, found := range n.kinds {
		if found == kind {
			last := len(n.kinds) - 1
			n.kinds[i] = n.kinds[last]
			n.kinds = n.kinds[:last]
			x.log.add(change{slot: slot, to: n.state, kind: kind, delta: -1}, x.count)
			return
		}
	}
}

// Reset forgets the classes, because what they were made from has changed.
func (x *Index) Reset() {
	clear(x.classes)
	x.young = nil
}

func (x *Index) id(state State) StateID {
	if id, known := x.ids[state]; known {
		return id
	}
	id := StateID(len(x.states))
	x.ids[state] = id
	x.states = append(x.states, stateNodes{State: state})
	x.empty++
	return id
}

func (x *Index) enter(slot Slot, to StateID) {
	state := &x.states[to]
	if len(state.slots) == 0 {
		x.empty--
	}
	n := &x.nodes[slot]
	n.state, n.position = to, int32(len(state.slots))
	state.slots = append(state.slots, slot)
}

func (x *Index) leave(slot Slot) {
	n := &x.nodes[slot]
	if n.state == None {
		return
	}
	state := &x.states[n.state]
	last := len(state.slots) - 1
	moved := state.slots[last]
	state.slots[n.position] = moved
	x.nodes[moved].position = n.position
	state.slots = state.slots[:last]
	if last == 0 {
		x.empty++
		state.slots = nil
	}
}

// sweep forgets states that no node is in, once they are the most.
func (x *Index) sweep() {
	if x.empty <= x.States()+x.spare {
		return
	}
	// What the classes have not read yet speaks of states by their old numbers.
	for _, class := range x.classes {
		class.catchUp()
	}
	renumbered := make([]StateID, len(x.states))
	kept := make([]stateNodes, 0, len(x.states)-x.empty)
	for id, state := range x.states {
		renumbered[id] = None
		if len(state.slots) == 0 {
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
