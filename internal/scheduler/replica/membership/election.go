package membership

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// Election knows which replica leads. A replica asks it before it follows a term that is new to it.
type Election interface {
	// Check returns nil if the replica leads for the term. Otherwise it returns [ErrNotElected] or
	// [ErrReplaced], or another error if it cannot find out.
	Check(ctx context.Context, leader string, term int64) error
}

// ErrNotElected means that a replica claims to lead for a term for which it was not elected.
var ErrNotElected = errors.New("not elected")

// ErrReplaced means that another replica was elected for a later term.
var ErrReplaced = errors.New("a later leader was elected")

// LeaseElection is an Election by the leader election Lease. The term of the holder is the number of the
// Lease's transitions plus 1.
type LeaseElection struct {
	read func(context.Context) (Holder, error)

	mu sync.Mutex
	// last is the holder that was read at readAt; empty if reading it failed.
	last   Holder
	readAt time.Time
}

// Holder is the holder of the leader election Lease.
type Holder struct {
	// Replica is the name of the replica that holds the Lease; "" if none does.
	Replica string
	Term    int64
}

const (
	// electionReadInterval is the shortest time between two reads of the Lease, so that a replica that
	// claims wrong terms does not cause many requests.
	electionReadInterval = 200 * time.Millisecond
	// electionReadTimeout is shorter than the time after which a leader gives the hash slots of a replica
	// that does not answer to others.
	electionReadTimeout = 500 * time.Millisecond
)

// NewLeaseElection returns an Election by a Lease.
func NewLeaseElection(client kubernetes.Interface, namespace, name string) *LeaseElection {
	return &LeaseElection{read: func(ctx context.Context) (Holder, error) {
		lease, err := client.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return Holder{}, fmt.Errorf("reading the leader election Lease: %w", err)
		}
		identity := ptr.Deref(lease.Spec.HolderIdentity, "")
		return Holder{identity[:max(strings.LastIndex(identity, "_"), 0)], int64(ptr.Deref(lease.Spec.LeaseTransitions, 0)) + 1}, nil
	}}
}

// HolderIdentity returns the identity with which a replica holds the leader election Lease. unique
// distinguishes processes with the same replica name; it must not contain an underscore.
func HolderIdentity(replica, unique string) string { return replica + "_" + unique }

// Term returns the term for which a replica holds the Lease.
func (e *LeaseElection) Term(ctx context.Context, replica string) (int64, error) {
	holder, err := e.holder(ctx, func(h Holder) bool { return h.Replica == replica })
	if err == nil && holder.Replica != replica {
		err = fmt.Errorf("replica %s: %w; the Lease says %q", replica, ErrNotElected, holder.Replica)
	}
	return holder.Term, err
}

// Check reads the Lease.
func (e *LeaseElection) Check(ctx context.Context, leader string, term int64) error {
	claimed := Holder{leader, term}
	holder, err := e.holder(ctx, func(h Holder) bool { return h == claimed })
	reason := ErrNotElected
	switch {
	case err != nil || holder == claimed:
		return err
	case holder.Term > term:
		reason = ErrReplaced
	}
	return fmt.Errorf("replica %s as leader for term %d: %w; the Lease says %q for term %d", leader, term, reason, holder.Replica, holder.Term)
}

// holder returns the holder of the Lease. If it has read the Lease just before, and the result is not the
// expected one, it waits and reads the Lease again, because the Lease may have changed since.
func (e *LeaseElection) holder(ctx context.Context, expected func(Holder) bool) (Holder, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if wait := electionReadInterval - time.Since(e.readAt); wait > 0 {
		if expected(e.last) {
			return e.last, nil
		}
		select {
		case <-ctx.Done():
			return Holder{}, ctx.Err()
		case <-time.After(wait):
		}
	}
	ctx, cancel := context.WithTimeout(ctx, electionReadTimeout)
	defer cancel()
	holder, err := e.read(ctx)
	e.last, e.readAt = holder, time.Now()
	return holder, err
}

// ClockElection is an Election without a Lease. A term is the Unix time at which its leader started, so
// that the replicas follow the leader that started last. If several claim the same term, they start again.
type ClockElection struct{}

// maxClockSkew is the tolerated difference between the clocks of two machines.
const maxClockSkew = time.Minute

// Check returns an error if the term is in the future.
func (ClockElection) Check(_ context.Context, leader string, term int64) error {
	if latest := time.Now().Add(maxClockSkew).Unix(); term > latest {
		return fmt.Errorf("replica %s as leader for term %d: %w; it started after %d", leader, term, ErrNotElected, latest)
	}
	return nil
}
