package replica

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// A relay owns no nodes, so that it can only lead others. It stands for the lead once it
// reaches one that owns some, and lets another lead that may reach more when it is cut off
// from all. Who owns nodes goes on with those.

const (
	// What cuts a relay off may be over soon, and another leader has to learn everything.
	resignAfter = time.Second
	// How many replicas are tried, and for how long each.
	mostTried, reachPatience = 4, 500 * time.Millisecond
)

var errAlone = errors.New("this replica owns no nodes, and reaches none that does")

// MayLead says why this replica should not stand for the lead, if it should not.
func (r *Replica) MayLead(ctx context.Context) error {
	if !r.options.Self.Relay || r.lead.termNow() > 0 {
		return nil
	}
	owners := slices.DeleteFunc(slices.Clone(r.options.Discovery.Members()), func(m wire.Member) bool { return m.Relay })
	rand.Shuffle(len(owners), func(a, b int) { owners[a], owners[b] = owners[b], owners[a] })
	for _, owner := range owners[:min(len(owners), mostTried)] {
		if reaches(ctx, owner) {
			return nil
		}
	}
	return errAlone
}

func reaches(ctx context.Context, member wire.Member) bool {
	ctx, cancel := context.WithTimeout(ctx, reachPatience)
	defer cancel()
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", member.Address)
	if err != nil {
		return false
	}
	_ = connection.Close()
	return true
}

// resignIfAlone ends a leader that has nobody to lead, though there are some who say that
// they live.
func (l *lead) resignIfAlone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	owns := func(m wire.Member) bool { return !m.Relay }
	if !l.r.options.Self.Relay || l.r.options.Resign == nil || slices.ContainsFunc(l.members, owns) || !slices.ContainsFunc(l.known, owns) {
		l.alone = time.Time{}
		return
	}
	if l.alone.IsZero() {
		l.alone = time.Now()
	}
	if time.Since(l.alone) > resignAfter {
		klog.FromContext(l.r.ctx).Error(errAlone, "This replica gives up the lead, and ends")
		l.r.options.Resign()
	}
}
