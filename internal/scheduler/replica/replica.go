// Package replica makes a scheduler one of several that share the nodes of a cluster. A [Replica]
// composes a member, which watches a share of the objects, a holder, which owns nodes, and a
// leader, which schedules while this replica leads.
package replica

import (
	"context"
	"errors"
	"sync/atomic"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/attach"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/leader"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Replica is one of several schedulers that share the nodes of a cluster. One of them leads: it
// has the queue and asks the others where pods fit.
type Replica struct {
	member *member.Member
	holder *holder.Holder
	leader *leader.Leader

	options member.Options
	logger  klog.Logger
	ctx     context.Context
	sched   *kubescheduler.Scheduler
	dial    *wire.Dialer
	// leaving is set when this replica is about to exit. Others discover it until present ends;
	// withdrawn is closed when they no longer do.
	leaving   atomic.Bool
	present   context.Context
	withdraw  context.CancelFunc
	withdrawn chan struct{}
	// leading is closed when this replica leads and the others are ready.
	leading chan struct{}
	// exit ends the process.
	exit func(err error, why string)
}

// newReplica builds the parts of a replica and hands each what it needs. This is the only place
// that knows all of them.
//
// Three ledgers record pods that are not known to be bound yet:
//
//   - cache.Cache of the holder has every pod that uses capacity of a node here, bound or
//     reserved. Only the holder writes it, so queries see exactly what the holder has granted.
//   - The reservations of the holder are those pods of its cache that a leader has placed and
//     that no watch has shown on the node. They expire, and belong to a term. The holder writes
//     them on messages of the leader.
//   - The assumptions of the leader are the pods that it has placed, on nodes of all owners,
//     until a watch shows that they are bound. Scheduling and binding cycles write them, and each
//     change sends a reservation or a release to the owner.
//
// The first two are on the owner of a node, and the third is on the leader: they are different
// processes, and a ledger of one survives the end of the other.
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
	}
	r.present, r.withdraw = context.WithCancel(ctx)
	r.holder = holder.New(logger, parts.Ranker, parts.Cache)
	// The member calls its hooks only once it has connections, when the leader is there.
	r.member = member.New(ctx, options, r.dial, watching, client, r.holder, member.Hooks{
		Handler: r,
		Term:    func() int64 { return r.leader.Term() },
		Greet:   func(link *wire.Link) { r.leader.Greet(link) },
		Assumed: func() int { assumed, _ := r.leader.Assumptions().PodCount(); return assumed },
		Exit:    func(err error, why string) { r.exit(err, why) },
	})
	r.leader = leader.New(ctx, &leader.Config{
		Options: options, Member: r.member, Sched: sched, Client: client, Dial: r.dial, Feeds: feeds,
		Ranker: parts.Ranker.WithoutNodes(), Exclusively: r.holder.Exclusively, Answer: r.Answer,
	})
	return r
}

// Run serves other replicas and watches until the context ends. It returns an error if it cannot
// serve, or if another replica has its name.
func (r *Replica) Run(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go r.member.Run(ctx)
	go func() {
		defer close(r.withdrawn)
		switch err := r.options.Discovery.Run(r.present); {
		case errors.Is(err, membership.ErrNameTaken):
			end(err)
		case err != nil:
			r.logger.Error(err, "Announcing this replica failed")
		}
	}()
	err := wire.Serve(ctx, r.options.Listener, r.options.TLS, r, r.dial)
	if cause := context.Cause(ctx); errors.Is(cause, membership.ErrNameTaken) {
		return cause
	}
	return err
}

// Leave prepares the exit, within the time of the context: it schedules no further pod, waits for
// binds that are under way, and withdraws this replica from discovery, so that the others need not
// detect its absence.
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

// beginLeading starts to lead, and returns when the other replicas are ready.
func (r *Replica) beginLeading(term func(context.Context) (int64, error)) {
	number, err := term(r.ctx)
	if err != nil {
		r.exit(err, "Reading the leader's term failed")
	}
	r.leader.Start(r.ctx, number)
	close(r.leading)
	r.logger.Info("Leading", "term", number)
}

// Leads returns a channel that is closed when this replica leads and the others are ready.
func (r *Replica) Leads() <-chan struct{} { return r.leading }

// MayLead returns why this replica should not take part in the election; nil if it should.
func (r *Replica) MayLead(ctx context.Context) error { return r.leader.MayLead(ctx) }
