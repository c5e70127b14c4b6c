package leader

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// A relay owns no nodes, so as a leader it can place pods only on nodes of other replicas. It takes part
// in the election only while it can connect to a replica that owns nodes. If it reaches none of them as
// the leader, it resigns, because another replica may reach some. A leader that owns nodes does not
// resign, because it can place pods on its own nodes.

const (
	// ResignAfter is the time for which a relay leads without an owner of nodes.
	ResignAfter = core.ResignAfter
	// A relay tries to connect to maxTried owners, each for dialTimeout.
	maxTried, dialTimeout = 4, 500 * time.Millisecond
)

// ErrIsolated is the error of a relay that reaches no owner of nodes.
var ErrIsolated = errors.New("this relay reaches no replica that owns nodes")

// MayLead returns nil if this replica should take part in the election, otherwise the reason why not.
func (l *Leader) MayLead(ctx context.Context) error {
	if !l.options.Self.Relay || l.Term() > 0 {
		return nil
	}
	owners := slices.DeleteFunc(slices.Clone(l.options.Discovery.Members()), func(m membership.Member) bool { return m.Relay })
	rand.Shuffle(len(owners), func(a, b int) { owners[a], owners[b] = owners[b], owners[a] })
	for _, owner := range owners[:min(len(owners), maxTried)] {
		if canDial(ctx, owner) {
			return nil
		}
	}
	return ErrIsolated
}

// canDial returns whether a TCP connection to a replica can be opened.
func canDial(ctx context.Context, member membership.Member) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", member.Address)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}
