package leader

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// A relay owns no nodes, so it can only lead other replicas. It takes part in the election only
// while it reaches a replica that owns nodes. When it is cut off from all of them it resigns, so
// that another replica can lead that may reach more. A replica that owns nodes continues with
// those.

const (
	// ResignAfter is how long a relay leads without reaching an owner of nodes. A short
	// interruption is tolerated, because a new leader has to be sent everything again.
	ResignAfter = time.Second
	// How many replicas are tried, and the time for each.
	mostTried, reachPatience = 4, 500 * time.Millisecond
)

// ErrAlone is returned by a relay that reaches no owner of nodes.
var ErrAlone = errors.New("this relay reaches no replica that owns nodes")

// MayLead returns why this replica should not take part in the election; nil if it should.
func (l *Leader) MayLead(ctx context.Context) error {
	if !l.options.Self.Relay || l.Term() > 0 {
		return nil
	}
	owners := slices.DeleteFunc(slices.Clone(l.options.Discovery.Members()), func(m membership.Member) bool { return m.Relay })
	rand.Shuffle(len(owners), func(a, b int) { owners[a], owners[b] = owners[b], owners[a] })
	for _, owner := range owners[:min(len(owners), mostTried)] {
		if reaches(ctx, owner) {
			return nil
		}
	}
	return ErrAlone
}

func reaches(ctx context.Context, member membership.Member) bool {
	ctx, cancel := context.WithTimeout(ctx, reachPatience)
	defer cancel()
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", member.Address)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

// resignIfAlone exits if this relay leads and reaches no owner of nodes although some are
// discovered.
func (l *Leader) resignIfAlone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	owns := func(m membership.Member) bool { return !m.Relay }
	if !l.options.Self.Relay || l.options.Resign == nil || slices.ContainsFunc(l.members, owns) || !slices.ContainsFunc(l.discovered, owns) {
		l.aloneSince = time.Time{}
		return
	}
	if l.aloneSince.IsZero() {
		l.aloneSince = time.Now()
	}
	if time.Since(l.aloneSince) > ResignAfter {
		l.logger.Error(ErrAlone, "Resigning as leader and exiting")
		l.options.Resign()
	}
}
