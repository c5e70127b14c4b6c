package membership

import "time"

// maxRenewalGap is the time between two observed renewals of a replica's own Lease beyond which its view of all Leases
// counts as interrupted. A Lease whose last renewal was observed one leaseRenewInterval before the interruption is then
// still younger than leaseDuration.
const maxRenewalGap = leaseRenewInterval * 3 / 2

// renewals are the Leases of a group as one of its replicas observes them. Their ages are computed from the local times
// of observation, because clocks of other machines may differ from the local clock.
//
// While the API server is down, no replica can renew its Lease, although all of them may run. A replica notices that by
// its own Lease: if it does not observe a renewal of that one for maxRenewalGap, whether the request or the watch fails,
// the ages of all Leases stand still. When it observes a renewal again, the others get another leaseDuration for theirs.
type renewals struct {
	// own is the name of this replica's Lease, and ownObserved the time at which its last renewal was observed.
	own         string
	ownObserved time.Time
	// last has the last renewal of each Lease, by its name.
	last map[string]renewal
}

// renewal is a change of a Lease's renewTime.
type renewal struct {
	member    Member
	renewTime time.Time
	observed  time.Time
}

// newRenewals returns the renewals that a replica observes from now on. own is the name of its Lease.
func newRenewals(own string, now time.Time) *renewals {
	return &renewals{own: own, ownObserved: now, last: map[string]renewal{}}
}

// observe records the state of a Lease.
func (r *renewals) observe(lease string, member Member, renewTime, now time.Time) {
	before, known := r.last[lease]
	observed := before.observed
	if !known || !before.renewTime.Equal(renewTime) {
		observed = now
		if lease == r.own {
			r.observeOwn(now)
		}
	}
	r.last[lease] = renewal{member, renewTime, observed}
}

// observeOwn records a renewal of this replica's own Lease. If it ends an interruption, the other Leases that were valid
// until then count as renewed.
func (r *renewals) observeOwn(now time.Time) {
	if now.Sub(r.ownObserved) > maxRenewalGap {
		for lease, other := range r.last {
			if r.valid(other, now) {
				other.observed = now
				r.last[lease] = other
			}
		}
	}
	r.ownObserved = now
}

// forget removes a Lease.
func (r *renewals) forget(lease string) { delete(r.last, lease) }

// valid returns whether a Lease was renewed within leaseDuration, without the time for which the view is interrupted.
func (r *renewals) valid(last renewal, now time.Time) bool {
	if interrupted := r.ownObserved.Add(maxRenewalGap); now.After(interrupted) {
		now = interrupted
	}
	return now.Sub(last.observed) < leaseDuration
}

// others returns the other replicas with valid Leases.
func (r *renewals) others(now time.Time) (members []Member) {
	for lease, last := range r.last {
		if lease != r.own && r.valid(last, now) {
			members = append(members, last.member)
		}
	}
	return members
}
