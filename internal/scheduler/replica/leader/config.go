// Package leader is the part of a replica that schedules pods. It assigns hash slots to replicas,
// passes pending pods to the scheduler, queries the owners of nodes, and requests reservations. It
// does nothing while another replica leads.
package leader

import (
	"context"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/utils/clock"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Config has the dependencies of a leader.
type Config struct {
	Options member.Options
	Member  *member.Member
	Sched   *kubescheduler.Scheduler
	Client  kubernetes.Interface
	Dial    *wire.Dialer
	// Ranker has the profiles of the scheduler, but no nodes.
	Ranker *rank.Ranker
	// Exclusively calls a function while nothing else reads or writes the data that plugins read.
	Exclusively func(func())
	// Answer answers a query for the nodes that this replica owns.
	Answer func(context.Context, *wire.Request) *wire.Answer
	Feeds  Feeds
}

// New returns a leader. Its cache of assumed pods wraps the scheduler's cache, which keeps pod groups.
func New(ctx context.Context, c *Config) *Leader {
	l := &Leader{
		options: c.Options, logger: klog.FromContext(ctx), ctx: ctx, member: c.Member, sched: c.Sched, client: c.Client, dial: c.Dial, answer: c.Answer,
		podEvents: c.Feeds.pods, nodeEvents: c.Feeds.nodes, changed: make(chan struct{}, 1), answered: map[uint64]chan struct{}{}, pending: core.NewPending(),
		core: core.NewLeader(core.LeaderConfig{
			Self: c.Options.Self, Config: c.Options.Config, StallTimeout: c.Options.StallTimeout, MayResign: c.Options.Resign != nil,
			FirstAttempt: uint64(time.Now().UnixNano()),
		}),
	}
	l.search = NewSearch(c.Ranker, c.Exclusively, l)
	l.search.victims = newVictims(c.Client, clock.RealClock{})
	c.Feeds.pods.observe = l.search.victims.observe
	l.assumptions = &Assumptions{Cache: c.Sched.Cache, search: l.search, leader: l}
	return l
}
