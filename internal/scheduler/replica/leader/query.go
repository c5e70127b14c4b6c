package leader

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Query sends a query to all replicas that own nodes and merges their answers. If all is true, or the option
// WaitForAll is set, it waits for the answers of all owners, and returns [core.ErrIncomplete] if one is missing. With
// WaitForAll, an owner that cannot use a new node yet does not answer.
func (l *Leader) Query(ctx context.Context, query *wire.Query, all bool) (*wire.Answer, error) {
	ask := l.ask(all || l.options.WaitForAll)
	q := &wire.Request{
		Query: query, From: l.member.Self(), Patience: l.options.Patience, AwaitNodes: l.options.WaitForAll,
		Term: ask.Term, Number: ask.Number, Reservations: ask.Reservations,
	}
	if ask.All {
		q.Patience.Quorum = 100
	}
	var answerOwn func() *wire.Answer
	if ask.Own {
		answerOwn = func() *wire.Answer { return l.answer(ctx, q) }
	}
	started := time.Now()
	answer := l.dial.Scatter(ctx, answerOwn, ask.Members, l.options.Fanout, query.Pod, q)
	queryTimes.Observe(time.Since(started).Seconds())
	if unreached := ask.Unreached(answer.Absent, l.options.Fanout, query.Pod); len(unreached) > 0 && ctx.Err() == nil {
		// Query these replicas again, directly. They do not count as late because of a late relay.
		answer.Absent = slices.DeleteFunc(answer.Absent, func(name string) bool {
			return slices.ContainsFunc(unreached, func(m membership.Member) bool { return m.Name == name })
		})
		first := answer
		answer = l.dial.Scatter(ctx, func() *wire.Answer { return first }, unreached, max(len(unreached), 1), query.Pod, q)
	}
	absent, err := l.judge(&ask, answer)
	switch {
	case answer.Failed != "":
		// Upstream places a pod on no node if the plugins fail for one node. Other pods are not affected.
		return nil, fmt.Errorf("evaluating the nodes of replica %s", answer.Failed)
	case err == core.ErrNoAnswer:
		return nil, fmt.Errorf("%w: %v", err, answer.Errors)
	case err != nil:
		return nil, err
	}
	answer.Absent = absent
	return answer, nil
}

// ask sends the nominations that have changed, and returns whom to query. Both happen under the lock, so that all
// reservations count that were sent to a replica before it became ready, and so that a new connection counts only if the
// nominations were sent on it.
func (l *Leader) ask(all bool) core.Question {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.core.Nominate(l.nominees(), l.nominated, l.member)
	l.send(&out)
	return l.core.Ask(time.Now(), all, l.member.Reservations())
}

// nominees returns the pods in the queue that are nominated to nodes. It must run in the scheduling cycle.
func (l *Leader) nominees() (nominees []core.Nominee) {
	for node, pods := range l.search.Nominations.ByNode() {
		for i := range pods {
			nominees = append(nominees, core.Nominee{UID: pods[i].UID, Node: node, Version: pods[i].Version})
		}
	}
	return nominees
}

// nominated returns a nominated pod; nil if it is not nominated any more.
func (l *Leader) nominated(nominee core.Nominee) *v1.Pod {
	for _, info := range l.search.Nominations.NominatedPodsForNode(nominee.Node) {
		if pod := info.GetPod(); pod.UID == nominee.UID {
			return pod
		}
	}
	return nil
}

// judge records which replicas did not answer in time, and returns whether the answer suffices for a decision.
func (l *Leader) judge(ask *core.Question, answer *wire.Answer) (absent []string, err error) {
	l.mu.Lock()
	late := l.core.Answered(time.Now(), ask, answer.Absent)
	absent, err = l.core.Decides(ask, answer.Absent)
	l.mu.Unlock()
	for _, replica := range late {
		lateAnswers.WithLabelValues(replica.Replica).Inc()
		l.logger.Info("Replica did not answer in time; pausing queries to it", "replica", replica.Replica, "times", replica.Times, "pause", replica.Pause, "errors", answer.Errors)
	}
	return absent, err
}
