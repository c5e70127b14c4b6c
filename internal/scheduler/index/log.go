package index

// change is a change of a node's state or, if delta is not zero, of its pods.
type change struct {
	node NodeID
	// from and to are the states before and after the change; None if the node did not exist or was
	// removed. For a change of pods, to is the current state.
	from, to StateID
	// kind is the kind of the pod that was added (delta 1) or removed (delta -1).
	kind  KindID
	delta int8
	// kinds are the pods on a node that was removed or whose shape has changed.
	kinds []KindID
}

// changeLog has the most recent changes, oldest first.
type changeLog struct {
	changes []change
	// first is the number of the oldest change.
	first int64
	// least is the minimal number of recent changes that the log keeps.
	least int
}

// minLog is the default of changeLog.least. A class that has not read a dropped change is rebuilt. A rebuild
// reads all nodes, so it is useless to keep many more changes than there are nodes.
const minLog = 1 << 16

// add appends a change and drops the older half if the log is full.
func (l *changeLog) add(c change, nodes int) {
	if most := 2 * max(l.least, nodes); len(l.changes) >= most {
		half := len(l.changes) / 2
		l.first += int64(half)
		kept := copy(l.changes, l.changes[half:])
		clear(l.changes[kept:])
		l.changes = l.changes[:kept]
	}
	l.changes = append(l.changes, c)
}

// end returns the number of the next change.
func (l *changeLog) end() int64 { return l.first + int64(len(l.changes)) }

// since returns the changes with the given number and higher. It returns false if some of them were
// dropped.
func (l *changeLog) since(number int64) ([]change, bool) {
	if number < l.first {
		return nil, false
	}
	return l.changes[number-l.first:], true
}

// clear drops all changes.
func (l *changeLog) clear() {
	l.first = l.end()
	clear(l.changes)
	l.changes = l.changes[:0]
}
