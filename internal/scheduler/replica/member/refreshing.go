package member

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// HandleNodesListed handles a replica's report that it has announced all its nodes. This report is also
// its request for the pods on them.
func (m *Member) HandleNodesListed(from string, listed *wire.Refresh) {
	m.do(func(c *core.Member, now time.Time) core.MemberOutput { return c.Listed(now, from, listed) })
	m.sendDue()
}

// HandleRefreshed handles the end of a replica's list of pods on the nodes here, if the list answers
// the latest request.
func (m *Member) HandleRefreshed(from string, refresh *wire.Refresh) {
	m.do(func(c *core.Member, _ time.Time) core.MemberOutput { return c.Refreshed(from, refresh) })
	m.report("")
}

// sendDue sends to each peer the messages that the current assignment requires (see [core.Member.SendDue]).
func (m *Member) sendDue() {
	if m.ctx.Err() == nil {
		m.do(func(c *core.Member, _ time.Time) core.MemberOutput { return c.SendDue() })
	}
}

// sendDueAndReport is called after a list or watch has delivered all objects of its slots.
func (m *Member) sendDueAndReport() {
	m.sendDue()
	m.report("")
}

// listSender sends one list of pods to one peer, on one connection. If the connection ends, the rest of the list is not
// sent: on the next connection, the peer requests the pods again.
type listSender struct {
	m    *Member
	list *core.List
	link *wire.Link
	// ctx ends with the connection.
	ctx context.Context
}

// run sends the list until its connection ends.
func (s *listSender) run() {
	s.add(s.list.Begin())
	s.list.SetVersion(s.m.pods.version())
	for _, uid := range s.m.pods.uids() {
		if !s.link.WaitForRoom(s.ctx) {
			return
		}
		s.m.pods.visit(uid, s.send)
	}
	s.end()
	s.m.sendDue()
}

// add adds a message to the next batch on the connection of the list.
func (s *listSender) add(message core.Message) { (&link{Link: s.link}).send(message) }

// send sends a pod if the list covers it.
func (s *listSender) send(pod *v1.Pod) {
	s.m.mu.Lock()
	covered := s.m.core.Covers(s.list, pod)
	s.m.mu.Unlock()
	if covered {
		s.add(s.list.Item(pod))
	}
}

// end ends the list.
func (s *listSender) end() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	for _, message := range s.m.core.EndList(s.list).Messages {
		s.add(message)
	}
}
