// Package replica makes a scheduler one of several that share the nodes of a cluster. A [Replica] is
// composed of a member, which watches the objects in its hash slots, a holder, which keeps the nodes that
// this replica owns, and a leader, which schedules pods while this replica leads.
package replica

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/leader"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Replica is one of several schedulers that share the nodes of a cluster. One of them leads: it has the
// scheduling queue and queries the others for nodes on which pods fit.
type Replica struct {
	member *member.Member
	holder *holder.Holder
	leader *leader.Leader

	options member.Options
	logger  klog.Logger
	ctx     context.Context
	sched   *kubescheduler.Scheduler
	dial    *wire.Dialer
	// follower decides which assignments this replica follows. verifying guards the terms that it has verified.
	verifying sync.Mutex
	follower  core.Follower
	// leaving is true if this replica is about to exit.
	leaving atomic.Bool
	// present is the context of discovery: the other replicas discover this one until withdraw ends
	// it. withdrawn is closed after discovery has ended.
	present   context.Context
	withdraw  context.CancelFunc
	withdrawn chan struct{}
	// leading is closed when this replica leads and all owners of nodes are ready.
	leading chan struct{}
	// answerOwn answers the queries that this replica sends to itself as the leader.
	answerOwn func(context.Context, *wire.Request) *wire.Answer
	// exit logs an error and ends the process.
	exit func(err error, why string)
}

// newReplica builds the parts of a replica and connects them. No other function knows all parts.
//
// Three ledgers record assumed pods, which are placed but not yet known to be bound:
//
//   - cache.Cache of the holder contains every pod that uses capacity of a node that this replica
//     owns, bound or reserved. Only the holder writes it, so a query sees exactly the reservations
//     that the holder has granted.
//   - The reservations of the holder are the pods of that cache that a leader has placed and that no
//     watch has shown on the node. Each belongs to a term, and expires. The holder changes them when
//     it receives messages of the leader.
//   - The assumptions of the leader are the pods that it has placed on the nodes of all owners, until
//     a watch shows that they are bound. Scheduling and binding cycles change them. Each change sends
//     a reservation or its release to the owner of the node.
//
// The owner of a node has the first two, and the leader has the third. Owner and leader may be different
// processes; if one of them ends, the ledgers of the other remain.
func newReplica(
	ctx context.Context, sched *kubescheduler.Scheduler, parts *attach.Parts, watching, client kubernetes.Interface, feeds leader.Feeds, options member.Options,
) *Replica {
	logger := klog.FromContext(ctx)
	r := &Replica{
		options: options, logger: logger, ctx: ctx, sched: sched, dial: wire.NewDialer(options.TLS),
		exit: func(err error, why string) {
			logger.Error(err, why)
			klog.FlushAndExit(klog.ExitFlushTimeout, 1)
		},
		withdrawn: make(chan struct{}), leading: make(chan struct{}),
		follower: core.Follower{Self: options.Self.Name, Elected: options.Elected},
	}
	parts.Ranker.Replica = options.Self.Name
	r.answerOwn = r.Answer
	r.present, r.withdraw = context.WithCancel(ctx)
	r.holder = holder.New(logger, parts.Ranker, parts.Cache)
	// The member calls its hooks only when it has connections, and r.leader is set by then.
	r.member = member.New(ctx, options, r.dial, watching, client, r.holder, member.Hooks{
		Handler: r,
		Term:    func() int64 { return r.leader.Term() },
		Greet:   func(link *wire.Link) { r.leader.Greet(link) },
		Settle:  func() { r.leader.SettleNodes() },
		Assumed: func() int { assumed, _ := r.leader.Assumptions().PodCount(); return assumed },
		Exit:    func(err error, why string) { r.exit(err, why) },
	})
	r.leader = leader.New(ctx, &leader.Config{
		Options: options, Member: r.member, Sched: sched, Client: client, Dial: r.dial, Feeds: feeds,
		Ranker: parts.Ranker.WithoutNodes(), Exclusively: r.holder.Exclusively,
		Answer: func(ctx context.Context, q *wire.Request) *wire.Answer { return r.answerOwn(ctx, q) },
	})
	return r
}

// Run serves other replicas and watches objects until the context ends. It returns an error if it cannot
// serve, or if another replica has its name.
func (r *Replica) Run(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go r.member.Run(ctx)
	go func() {
		defer close(r.withdrawn)
		switch err := r.options.Discovery.Run(r.present); {
		case errors.Is(err, membership.ErrNameTaken), errors.Is(err, membership.ErrNotOurLease):
			end(err)
		case err != nil:
			r.logger.Error(err, "Announcing this replica failed")
		}
	}()
	err := wire.Serve(ctx, r.options.Listener, r.options.TLS, r, r.dial)
	if cause := context.Cause(ctx); errors.Is(cause, membership.ErrNameTaken) || errors.Is(cause, membership.ErrNotOurLease) {
		return cause
	}
	return err
}

// Leave prepares the exit of this process: it schedules no further pod, waits for binds in progress, and
// withdraws this replica from discovery, so that the others need not wait for a timeout. It returns
// early if the context ends.
func (r *Replica) Leave(ctx context.Context) {
	r.leaving.Store(true)
	r.leader.Assumptions().AwaitBinds(ctx)
	r.leader.Assumptions().AwaitBound(ctx)
	r.withdraw()
	select {
	case <-r.withdrawn:
	case <-ctx.Done():
	}
}

// startLeading starts to lead for the term that the given function returns. It returns when all owners
// of nodes are ready, or when the process is stopped.
func (r *Replica) startLeading(term func(context.Context) (int64, error)) {
	number, err := readTerm(r.ctx, r.options.Tenure, term)
	switch {
	case r.ctx.Err() != nil:
		return
	case err != nil:
		r.exit(err, "Reading the leader's term failed")
	}
	r.believe(number)
	r.leader.Start(r.ctx, number)
	close(r.leading)
	r.logger.Info("Leading", "term", number)
}

// termRetryInterval is the interval between attempts to read the leader's term.
const termRetryInterval = 100 * time.Millisecond

// readTerm reads the term for which this replica leads. It repeats a request that fails until the tenure ends: a
// slow API server is no reason to give up the leadership.
func readTerm(ctx context.Context, tenure *membership.Tenure, read func(context.Context) (int64, error)) (int64, error) {
	for {
		term, err := read(ctx)
		if err == nil || errors.Is(err, membership.ErrNotElected) || tenure == nil || tenure.Check() != nil {
			return term, err
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(termRetryInterval):
		}
	}
}

// Transitions returns the smallest number of transitions that the leader election Lease may have while this
// replica holds it, because it counts the terms. If the Lease was deleted, it counts from 0 again, but the
// terms must not decrease.
func (r *Replica) Transitions() int64 {
	if term := r.leader.Term(); term > 0 {
		return term - 1
	}
	if last := r.member.Assignment(); last != nil {
		return last.Term
	}
	return 0
}

// MayBind returns nil if this replica may bind a pod now: it leads, and the owner of the pod's node has reserved
// capacity for the pod.
func (r *Replica) MayBind(pod toolscache.ObjectName) error {
	return r.leader.Assumptions().MayBind(pod)
}

// MayWrite returns an error if this replica has led, and must not send requests as the leader any more.
func (r *Replica) MayWrite() error { return r.options.Tenure.CheckEnded() }

// Leads returns a channel that is closed when this replica leads and all owners of nodes are ready.
func (r *Replica) Leads() <-chan struct{} { return r.leading }

// MayLead returns nil if this replica should take part in the election, otherwise the reason why not.
func (r *Replica) MayLead(ctx context.Context) error { return r.leader.MayLead(ctx) }
