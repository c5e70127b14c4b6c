package leader

import (
	"slices"
	"time"
)

// An owner whose first lists never finish, for example because it reaches the replicas but not the API server,
// is never ready. It loses its hash slots to other owners, because pods with constraints on other pods, and a new
// leader, would wait for it for ever.

const (
	// defaultStallTimeout is the time without progress after which an owner loses its slots. Lists of a million
	// nodes take minutes, but objects arrive all the time. Before the first ones arrive, the API server may have
	// to fill its cache.
	defaultStallTimeout = 3 * time.Minute
	// stallExclusion is the time after which that replica gets hash slots again if it does not connect again.
	stallExclusion = 30 * time.Minute
)

// listProgress is the progress of a replica's first lists.
type listProgress struct {
	// listing is the last [wire.Status.Listing], and since is the time at which it changed.
	listing int64
	since   time.Time
}

// recordProgress records the progress of a replica's first lists. The caller holds the lock.
func (l *Leader) recordProgress(from string, listing int64) {
	if listing == 0 {
		delete(l.listing, from)
	} else if l.listing[from].listing != listing {
		l.listing[from] = listProgress{listing, time.Now()}
	}
}

// excludeStalled excludes the owners whose first lists make no progress, except this replica. If no owner has
// complete lists, the API server is slow for all, and other owners could not list the objects either. The caller
// holds the lock.
func (l *Leader) excludeStalled() {
	owners := l.table.Owners()
	if !slices.ContainsFunc(owners, l.hasListed) {
		return
	}
	timeout := l.options.StallTimeout
	if timeout == 0 {
		timeout = defaultStallTimeout
	}
	for _, name := range owners {
		progress, listing := l.listing[name]
		if !listing || name == l.member.Self() || time.Since(progress.since) < timeout {
			continue
		}
		delete(l.listing, name)
		l.stalledUntil[name] = time.Now().Add(stallExclusion)
		l.logger.Error(nil, "Replica does not finish its lists of nodes and pods, and they make no progress; assigning no hash slots to it until it is started again. Check its connection to the API server",
			"replica", name, "timeout", timeout, "atMostFor", stallExclusion)
	}
}

// hasListed returns whether all first lists of a replica are complete.
func (l *Leader) hasListed(name string) bool {
	_, reported := l.statuses[name]
	_, listing := l.listing[name]
	return reported && !listing
}

// forgetStall lets a replica that has connected again get hash slots.
func (l *Leader) forgetStall(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.stalledUntil, name)
	delete(l.listing, name)
}
