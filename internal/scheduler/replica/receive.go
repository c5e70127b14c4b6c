package replica

import (
	"context"
	"errors"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Connected handles a new connection from a replica, which sends its whole state again on it.
func (r *Replica) Connected(from string) {
	r.holder.Connected(from)
	r.member.Connected(from)
	r.leader.Connected(from)
}

// Receive handles the messages in a batch from another replica.
func (r *Replica) Receive(from string, b *wire.Batch) error {
	if err := r.receiveAssignments(from, b.Assignments); err != nil {
		return err
	}
	for i := range b.Refreshing {
		if err := r.holder.BeginList(from, b.Refreshing[i].ID); err != nil {
			return err
		}
		if err := r.leader.BeginList(from, b.Refreshing[i].ID); err != nil {
			return err
		}
	}
	if len(b.Nodes) > 0 {
		moved, err := r.member.HandleNodes(from, b.Nodes)
		if err != nil {
			return err
		}
		if moved {
			r.leader.NodesMoved(from)
		}
	}
	if b.Announced > 0 {
		r.member.ConfirmNodes(from, b.Announced)
	}
	if len(b.GoneNodes) > 0 {
		if err := r.member.HandleGoneNodes(from, b.GoneNodes); err != nil {
			return err
		}
	}
	r.leader.SettleNodes()
	for i := range b.Pods {
		if err := r.member.HandlePod(from, &b.Pods[i]); err != nil {
			return err
		}
	}
	if err := r.leader.Receive(from, b); err != nil {
		return err
	}
	for i := range b.Refreshed {
		refresh := &b.Refreshed[i]
		slots := r.member.SlotsOf(from, refresh.Slots)
		r.member.EndList(from, refresh, slots)
		r.leader.EndList(from, refresh.ID, slots)
		r.member.HandleRefreshed(from, refresh)
	}
	for i := range b.Listed {
		r.member.HandleNodesListed(from, &b.Listed[i])
	}
	r.leader.SettleNodes()
	r.member.HandleReservations(from, b)
	if b.Confirmed > 0 {
		r.member.HandleConfirmed(from, b.Confirmed)
	}
	for _, ack := range b.Acks {
		r.leader.HandleAck(from, ack)
	}
	if b.Status != nil {
		r.leader.HandleStatus(from, b.Status)
	}
	return nil
}

var (
	errNotReady  = errors.New("this replica does not follow the query's assignment of hash slots, or has not loaded all nodes and pods that belong to it")
	errNotLeader = errors.New("the query does not come from the leader that this replica follows")
)

// Answer answers a query of the leader. If this replica has not loaded all nodes and pods of the query's
// assignment, or could not answer in time, the answer lists this replica as absent. If it fails to evaluate the
// pod, the answer has the error.
func (r *Replica) Answer(ctx context.Context, q *wire.Request) *wire.Answer {
	self := r.member.Self()
	absent := func(err error) *wire.Answer {
		return &wire.Answer{Errors: []string{self + ": " + err.Error()}, Absent: []string{self}}
	}
	if a := r.member.Assignment(); a != nil && a.Leader.Name != q.From {
		return absent(errNotLeader)
	}
	if !r.member.Ready(q.Term, q.Number) {
		return absent(errNotReady)
	}
	if q.AwaitNodes {
		// Return before the sender stops waiting, so that it learns the reason.
		waiting, cancel := context.WithTimeout(ctx, q.Patience.Deadline-q.Patience.Deadline/8)
		err := r.member.AwaitNodes(waiting)
		cancel()
		if err != nil {
			return absent(err)
		}
	}
	answer, err := r.holder.Answer(ctx, q.From, q, self)
	switch {
	case !r.member.Ready(q.Term, q.Number):
		// An assignment that arrived meanwhile may have removed nodes before they were read.
		return absent(errNotReady)
	case err == nil:
		return answer
	case ctx.Err() != nil:
		return absent(err)
	}
	return wire.FailedAnswer(self, err)
}
