package index

// change is one event in the life of a node: it went from one state to another,
// or a pod came or went, if delta is not zero.
type change struct {
	slot     Slot
	from, to StateID
	kind     KindID
	delta    int8
	// kinds of the pods on a node whose shape has changed.
	kinds []KindID
}

// changeLog is the latest changes, oldest first.
type changeLog struct {
	changes []change
	// first is the number of the first change that is still there.
	first int64
	// least is how many changes are kept at least.
	least int
}

// Changes that are kept at least. A class that has missed more is made anew, which
// looks at all nodes' states and pods; so it is of no use to keep more than there
// are nodes.
const minLog = 1 << 16

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

// end is the number that the next change will have.
func (l *changeLog) end() int64 { return l.first + int64(len(l.changes)) }

// since is the changes from a number on; false if some of them are gone.
func (l *changeLog) since(number int64) ([]change, bool) {
	if number < l.first {
		return nil, false
	}
	return l.changes[number-l.first:], true
}

// clear forgets all changes.
func (l *changeLog) clear() {
	l.first = l.end()
	clear(l.changes)
	l.changes = l.changes[:0]
}
