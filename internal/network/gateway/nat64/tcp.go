package nat64

import "time"

// tcpState is the state of a TCP session (RFC 6146, section 3.5.2.2). V4 INIT does not exist here,
// because packets from IPv4 open no sessions.
type tcpState uint8

const (
	v6Init tcpState = iota
	established
	v4Fin
	v6Fin
	bothFin
	transitory
)

const (
	flagFIN = 1
	flagSYN = 2
	flagRST = 4
)

// next returns the state after a segment, and whether the idle timer starts again.
func (s tcpState) next(flags byte, fromNode bool) (tcpState, bool) {
	reset, syn, fin := flags&flagRST != 0, flags&flagSYN != 0, flags&flagFIN != 0
	switch {
	case s == v6Init && syn && !fromNode:
		return established, true
	case s == v6Init:
		return v6Init, syn && fromNode
	case s == transitory && !reset:
		return established, true
	case s == bothFin && syn && fromNode: // the node uses the port again (RFC 7857, section 2.2)
		return v6Init, true
	case s == bothFin || s == transitory:
		return s, false
	case reset:
		return transitory, true
	case fin:
		return s.finished(fromNode), true
	}
	return s, true
}

func (s tcpState) finished(fromNode bool) tcpState {
	own, other := v4Fin, v6Fin
	if fromNode {
		own, other = v6Fin, v4Fin
	}
	if s == other {
		return bothFin
	}
	return own
}

func (s tcpState) timeout(t *Timeouts) time.Duration {
	switch s {
	case established, v4Fin, v6Fin:
		return t.TCPEstablished
	}
	return t.TCPTransitory
}
