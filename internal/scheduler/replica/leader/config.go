// Package leader is the part of a replica that schedules pods. It assigns hash slots to replicas,
// passes pending pods to the scheduler, queries the owners of nodes, and requests reservations. It
// does nothing while another replica leads.
package leader

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	kubescheduler "k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/utils/clock"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/rank"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
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
		podEvents: c.Feeds.pods, nodeEvents: c.Feeds.nodes, statuses: map[string]statusAt{}, ready: sets.New[string](),
		changed: make(chan struct{}, 1), late: map[string]*lateReplica{}, lastAntiAffinityPlaced: map[string]time.Time{}, unanswered: map[types.UID]*v1.Pod{},
		nominated: map[string]map[types.UID]nomination{}, excludedUntil: map[string]time.Time{}, stalledUntil: map[string]time.Time{}, listing: map[string]listProgress{}, pending: map[types.UID]refresh.Object{}, lists: refresh.Lists{},
	}
	l.search = NewSearch(c.Ranker, c.Exclusively, l)
	l.search.victims = newVictims(c.Client, clock.RealClock{})
	c.Feeds.pods.observe = l.search.victims.observe
	l.assumptions = newAssumptions(c.Sched.Cache, l.search, l)
	return l
}
