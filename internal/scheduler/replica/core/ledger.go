package core

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Nodes are the nodes that a replica owns, with the capacity that pods use on them. The ledger is the only one that
// changes the pods.
type Nodes interface {
	// AddPod counts a bound pod. If the pod is assumed, it replaces the assumed version. UpdatePod replaces a version of
	// a bound pod, and RemovePod removes one.
	AddPod(*v1.Pod)
	UpdatePod(before, after *v1.Pod)
	RemovePod(*v1.Pod)
	// Assume counts a pod that is not known to be bound. Forget removes it.
	Assume(*v1.Pod) error
	Forget(*v1.Pod)
	// Refuses returns the reason for which a pod does not fit on the node of a reservation; "" if it fits.
	Refuses(*v1.Pod, *wire.Reservation) string
	// Nominate makes pods of a lower priority leave room for a pod on a node. Withdraw undoes that.
	Nominate(node string, pod *v1.Pod)
	Withdraw(node string, uid types.UID)
	// Expired is called when the reservation of a pod has expired.
	Expired(*v1.Pod)
}

// Ledger is the state of an owner of nodes: the pods on its nodes, as replicas have sent them, the reservations that
// leaders have requested, and the nominations. It decides which of them count, and for how long.
//
// Invariants:
//   - A pod counts at most once: it is in pods or in reservations, and not in both.
//   - Each pod in pods, and each reservation, counts in [Nodes], and nothing else does.
//   - A reservation that a leader requested ends only if the pod is known to be bound or deleted, the leader releases
//     it, the node has another owner, or no bind to the node can arrive any more.
type Ledger struct {
	nodes Nodes
	fault Fault
	// pods are the bound pods on the nodes, in the versions that replicas have last sent.
	pods map[types.UID]refresh.Object
	// reservations are the reservations on the nodes, by the pod's UID.
	reservations map[types.UID]*reservation
	// nominated are the nominations of pods in the leader's queue to the nodes.
	nominated map[types.UID]ledgerNomination
	// tick is the number of lists that have started. lists are those that have not ended.
	tick  int64
	lists refresh.Lists
	// antiAffinityPods is the number of bound and reserved pods with anti-affinity beyond their node.
	antiAffinityPods int
	// expired is the number of reservations that have expired.
	expired int64
	// seen is the number of reservations that each replica has sent on its current connection.
	seen map[string]uint64
}

// NewLedger returns a ledger of nodes without pods.
func NewLedger(nodes Nodes) *Ledger {
	return &Ledger{
		nodes: nodes, pods: map[types.UID]refresh.Object{}, reservations: map[types.UID]*reservation{},
		nominated: map[types.UID]ledgerNomination{}, lists: refresh.Lists{}, seen: map[string]uint64{},
	}
}

// reservation is capacity of a node that the owner keeps for a pod until a watch shows the pod there.
type reservation struct {
	pod *v1.Pod
	// term is the term of the leader that last requested the reservation. until is the time at which
	// the reservation expires unless it is renewed.
	term  int64
	until time.Time
	// keptUntil is the time until which the reservation does not expire while the pod is pending; zero if
	// no earlier leader requested it. keptFor is the term of the leader whose late bind it waits for.
	keptUntil time.Time
	keptFor   int64
	// bound is true if the pod was known to be bound, but is missing in a later list of pods.
	bound bool
}

// ledgerNomination is the nomination of a pod to a node. from is the leader that has sent it.
type ledgerNomination struct{ node, from string }

// A reservation that no leader renews expires after ReservationLife. If it was requested in an earlier
// term, the owner checks at most EarlierLeaderReservationLife after it knows the new leader whether the pod was
// bound elsewhere or deleted. Otherwise the bind of the earlier leader may still arrive, so the reservation
// remains until [LateBindLife] has passed. That is longer than the API server processes a request (60 s by default).
// A reservation does not expire if the pod is bound to the node.
const (
	ReservationLife              = 30 * time.Second
	EarlierLeaderReservationLife = 5 * time.Second
	// LateBindLife is the time after which no bind of an earlier leader arrives any more.
	LateBindLife = 2 * time.Minute
)

// Connected handles a new connection from a replica, which sends its whole state again on it.
func (l *Ledger) Connected(from string) {
	l.seen[from] = 0
	l.withdraw(func(n ledgerNomination) bool { return n.from == from })
	delete(l.lists, from)
}

// Seen returns the number of reservations that a replica has sent on its current connection, and that were processed.
// A query is answered only when this is the number that the query requires.
func (l *Ledger) Seen(from string) uint64 { return l.seen[from] }

// BeginList handles the start of a replica's list of pods. It returns an error if the replica has too many open ones.
func (l *Ledger) BeginList(from string, id int64) error {
	l.tick++
	return l.lists.Begin(from, id, l.tick)
}

// EndList handles the end of a replica's list of pods. It removes the pods in the given hash slots that
// were not in the list. If a pod is newer than the list (see [wire.Refresh.Version]), it keeps the
// capacity of the pod: the former watcher of the hash slot has sent the pod, and the replica that sent the
// list has not received the bind yet. It returns the removed pods.
func (l *Ledger) EndList(now time.Time, from string, id int64, slots []int, version string) (removed []*v1.Pod) {
	l.lists.End(from, id, slots, l.pods, func(pod *v1.Pod) {
		if refresh.IsNewer(pod.ResourceVersion, version) && l.fault != ListRemovesNewerPods {
			l.reserveBound(now, pod)
		} else {
			l.remove(pod.UID)
			removed = append(removed, pod)
		}
	})
	return removed
}

// SetPod stores the current version of a pod on one of the nodes. If the pod is new, it replaces
// the pod's reservation. It returns the version that counted on the node before, bound or reserved, which is nil if
// none did, and whether plugins may treat the new version differently.
//
// It does nothing if trusted returns false, and removes the pod if owned does.
func (l *Ledger) SetPod(pod *v1.Pod, trusted, owned func() bool) (before *v1.Pod, changed bool) {
	if !trusted() && l.fault != TrustAnySender {
		return nil, false
	}
	if !owned() && l.fault != KeepPodsOfOthers {
		l.removePod(pod.UID)
		return nil, false
	}
	known, ok := l.pods[pod.UID]
	before = known.Pod
	if ok && refresh.IsNewer(before.ResourceVersion, pod.ResourceVersion) {
		// Two replicas watched the pod one after the other, and the second has an older version.
		l.pods[pod.UID] = refresh.Object{Pod: before, Tick: l.tick}
		return before, false
	}
	l.pods[pod.UID] = refresh.Object{Pod: pod, Tick: l.tick}
	switch {
	case !ok:
		if r := l.reservations[pod.UID]; r != nil {
			delete(l.reservations, pod.UID)
			l.countAntiAffinity(r.pod, -1)
			if r.pod.Spec.NodeName == pod.Spec.NodeName {
				before = r.pod
			}
		}
		l.countAntiAffinity(pod, 1)
		l.nodes.AddPod(pod)
	case before.ResourceVersion != pod.ResourceVersion:
		l.nodes.UpdatePod(before, pod)
	}
	return before, before == nil || !cache.SameOnNode(before, pod)
}

// RemovePod removes a bound pod, and returns it; nil if the ledger does not have it, or trusted returns false. A
// reservation that a leader requested remains.
func (l *Ledger) RemovePod(uid types.UID, trusted func() bool) *v1.Pod {
	if !trusted() && l.fault != TrustAnySender {
		return nil
	}
	return l.removePod(uid)
}

// removePod is [Ledger.RemovePod] for a sender that is trusted.
func (l *Ledger) removePod(uid types.UID) *v1.Pod {
	before := l.pods[uid].Pod
	l.remove(uid)
	if r := l.reservations[uid]; r != nil && (r.bound || l.fault == RemovalEndsReservation) {
		before = r.pod
		l.unreserve(uid)
	}
	return before
}

func (l *Ledger) remove(uid types.UID) {
	if known, ok := l.pods[uid]; ok {
		delete(l.pods, uid)
		l.countAntiAffinity(known.Pod, -1)
		l.nodes.RemovePod(known.Pod)
	}
}

// DropNodes removes all pods and reservations on nodes for which owned returns false: other replicas own them now.
func (l *Ledger) DropNodes(owned func(node string) bool) {
	for uid, known := range l.pods {
		if !owned(known.Pod.Spec.NodeName) {
			l.remove(uid)
		}
	}
	for uid, r := range l.reservations {
		if !owned(r.pod.Spec.NodeName) {
			l.unreserve(uid)
		}
	}
}

// Clear removes all bound pods. Reservations remain.
func (l *Ledger) Clear() {
	for uid := range l.pods {
		l.remove(uid)
	}
}

// Counts are the numbers of objects that an owner has.
type Counts struct {
	// Nodes, Pods and Reservations are the current numbers. Pods are bound pods.
	Nodes, Pods, Reservations int
	// Nominations is the number of nominations by the leader to the owner's nodes.
	Nominations int
	// Expired is the number of reservations that have expired since the start.
	Expired int64
	// AntiAffinityBeyondNode is true if a bound or reserved pod has anti-affinity beyond its node.
	AntiAffinityBeyondNode bool
}

// Counts returns the numbers of objects in the ledger. It does not set Nodes.
func (l *Ledger) Counts() Counts {
	return Counts{
		Pods: len(l.pods), Reservations: len(l.reservations), Nominations: len(l.nominated),
		Expired: l.expired, AntiAffinityBeyondNode: l.antiAffinityPods > 0,
	}
}

// Reserve reserves capacity for a pod, or releases it, or changes the nomination of a pod. It returns the
// reason for a refusal; "" if it does not refuse. ready means that the owner has received all pods on
// its nodes. Otherwise it accepts only reservations that exist, or that the previous owner has granted.
func (l *Ledger) Reserve(now time.Time, from string, term int64, ready bool, r *wire.Reservation) (refused string) {
	l.seen[from]++
	if r.Nominated {
		return l.nominate(from, r)
	}
	if len(r.Pod) == 0 {
		l.release(r)
		return ""
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(r.Pod); err != nil {
		return fmt.Sprintf("decoding the pod: %v", err)
	}
	if pod.UID != r.UID {
		return fmt.Sprintf("the pod has UID %s, and the reservation is for UID %s", pod.UID, r.UID)
	}
	pod.Spec.NodeName = r.Node
	if decided, refused := l.known(now, term, pod); decided {
		return refused
	}
	if !r.Granted {
		if !ready && l.fault != ReserveBeforeReady {
			return "the replica that owns the node has not received all its pods yet"
		}
		if refused := l.nodes.Refuses(pod, r); refused != "" && l.fault != ReserveWithoutRoom {
			return refused
		}
	}
	if err := l.nodes.Assume(pod); err != nil {
		return err.Error()
	}
	l.countAntiAffinity(pod, 1)
	l.reservations[pod.UID] = &reservation{pod: pod, term: term, until: now.Add(ReservationLife)}
	return ""
}

// release releases the reservation of a pod on the node of the request. A reservation on another node belongs to a later
// placement, and that of a bound pod to nobody.
func (l *Ledger) release(r *wire.Reservation) {
	before := l.reservations[r.UID]
	if before != nil && !before.bound && (before.pod.Spec.NodeName == r.Node || l.fault == ReleaseOfAnyNode) {
		l.unreserve(r.UID)
	}
}

// known handles the request for a pod that counts already: decided is false if it does not, or if its reservation was for
// another node.
func (l *Ledger) known(now time.Time, term int64, pod *v1.Pod) (decided bool, refused string) {
	if known, ok := l.pods[pod.UID]; ok {
		if known.Pod.Spec.NodeName == pod.Spec.NodeName {
			return true, ""
		}
		return true, fmt.Sprintf("the pod is on node %s", known.Pod.Spec.NodeName)
	}
	before := l.reservations[pod.UID]
	switch {
	case before == nil:
		return false, ""
	case before.pod.Spec.NodeName == pod.Spec.NodeName:
		before.term, before.until = term, now.Add(ReservationLife)
		return true, ""
	case before.bound:
		return true, fmt.Sprintf("the pod is on node %s", before.pod.Spec.NodeName)
	}
	l.unreserve(pod.UID)
	return false, ""
}

// SkipReservation counts a reservation of a replica that does not lead. The replica counts it as well, and may lead
// later on the same connection. Then each of its queries would wait for a reservation that has already arrived.
func (l *Ledger) SkipReservation(from string) { l.seen[from]++ }

// nominate adds, changes or removes the nomination of a pod in the leader's queue.
func (l *Ledger) nominate(from string, r *wire.Reservation) (refused string) {
	if n, ok := l.nominated[r.UID]; ok && (len(r.Pod) > 0 || n.node == r.Node) {
		l.removeNomination(r.UID)
	}
	if len(r.Pod) == 0 {
		return ""
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(r.Pod); err != nil {
		return fmt.Sprintf("decoding the pod: %v", err)
	}
	l.nominated[pod.UID] = ledgerNomination{r.Node, from}
	l.nodes.Nominate(r.Node, pod)
	return ""
}

// ForgetNominated removes all nominations, because a new leader sends its own.
func (l *Ledger) ForgetNominated() {
	l.withdraw(func(ledgerNomination) bool { return true })
}

// withdraw removes the nominations for which which returns true.
func (l *Ledger) withdraw(which func(ledgerNomination) bool) {
	for uid, n := range l.nominated {
		if which(n) {
			l.removeNomination(uid)
		}
	}
}

func (l *Ledger) removeNomination(uid types.UID) {
	l.nodes.Withdraw(l.nominated[uid].node, uid)
	delete(l.nominated, uid)
}

// unreserve releases the reservation of a pod, if there is one.
func (l *Ledger) unreserve(uid types.UID) {
	if r := l.reservations[uid]; r != nil {
		delete(l.reservations, uid)
		l.countAntiAffinity(r.pod, -1)
		l.nodes.Forget(r.pod)
	}
}

// Without removes the reservation of a pod, and returns a function that restores it. Nothing else may change the ledger
// until then. The answer to a query for this pod must not count its own reservation.
func (l *Ledger) Without(uid types.UID) (restore func()) {
	r := l.reservations[uid]
	if r == nil || r.bound {
		return func() {}
	}
	l.unreserve(uid)
	return func() {
		if err := l.nodes.Assume(r.pod); err != nil {
			return
		}
		l.countAntiAffinity(r.pod, 1)
		l.reservations[uid] = r
	}
}

// countAntiAffinity adds a number to antiAffinityPods if a pod has anti-affinity beyond its node.
func (l *Ledger) countAntiAffinity(pod *v1.Pod, by int) {
	if HasAntiAffinityBeyondNode(pod) {
		l.antiAffinityPods += by
	}
}

// HasAntiAffinityBeyondNode returns whether a pod has a required anti-affinity term with another topology
// key than the hostname. Such a term can forbid nodes of other owners.
func HasAntiAffinityBeyondNode(pod *v1.Pod) bool {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return false
	}
	terms := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	return slices.ContainsFunc(terms, func(term v1.PodAffinityTerm) bool { return term.TopologyKey != v1.LabelHostname })
}

// Renew renews reservations. It returns an answer for each: a refusal if the reservation has expired.
func (l *Ledger) Renew(now time.Time, renewals []wire.Renewal) []wire.Ack {
	acks := make([]wire.Ack, 0, len(renewals))
	for _, renewal := range renewals {
		ack := wire.Ack{UID: renewal.UID, Attempt: renewal.Attempt}
		if r := l.reservations[renewal.UID]; r != nil {
			r.until = now.Add(ReservationLife)
		} else if _, ok := l.pods[renewal.UID]; !ok {
			ack.Refused = "the reservation has expired"
		}
		acks = append(acks, ack)
	}
	return acks
}

// Overdue returns the pods of the reservations that were not renewed in time. The caller finds out what became of each
// of them, and calls [Ledger.Expire].
func (l *Ledger) Overdue(now time.Time) []*v1.Pod {
	var pods []*v1.Pod
	for _, r := range l.reservations {
		if now.After(r.until) {
			pods = append(pods, r.pod)
		}
	}
	slices.SortFunc(pods, func(a, b *v1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	return pods
}

// PodState is what the API server says about the pod of a reservation.
type PodState int

const (
	// PodGone means that the pod was deleted, is being deleted, or is bound to another node. It cannot be bound
	// to the node of the reservation.
	PodGone PodState = iota
	// PodPending means that the pod is not bound.
	PodPending
	// PodBound means that the pod is bound to the node of the reservation.
	PodBound
)

// Expire releases the reservation of a pod if it was not renewed in time. If the pod is bound, it extends
// the reservation, because a replica will send the pod. If the pod is pending, it extends a reservation that an
// earlier leader requested.
func (l *Ledger) Expire(uid types.UID, now time.Time, state PodState) {
	r := l.reservations[uid]
	if r == nil || !now.After(r.until) {
		return
	}
	switch {
	case state == PodBound && l.fault != ExpireBound:
		r.until = now.Add(ReservationLife)
		return
	case state == PodPending && now.Before(r.keptUntil) && l.fault != ExpireBeforeLateBind:
		r.until = now.Add(EarlierLeaderReservationLife)
		return
	}
	l.expired++
	l.nodes.Expired(r.pod)
	l.unreserve(uid)
}

// ShortenOld makes the reservations of earlier terms overdue after at most EarlierLeaderReservationLife. Each
// leader that requested a reservation may have a late bind, so LateBindLife starts again if the last one has
// changed.
func (l *Ledger) ShortenOld(term int64, now time.Time) {
	for _, r := range l.reservations {
		if r.term >= term {
			continue
		}
		if end := now.Add(EarlierLeaderReservationLife); end.Before(r.until) {
			r.until = end
		}
		if r.keptUntil.IsZero() || r.keptFor != r.term {
			r.keptUntil, r.keptFor = now.Add(LateBindLife), r.term
		}
	}
}

// EarlierReservations returns the reservations that a leader of an earlier term than the given one
// requested, for pods that are not known to be bound. The leader does not know these reservations.
func (l *Ledger) EarlierReservations(term int64) []wire.EarlierReservation {
	var earlier []wire.EarlierReservation
	for uid, r := range l.reservations {
		if r.term < term && !r.bound {
			earlier = append(earlier, wire.EarlierReservation{UID: uid, Node: r.pod.Spec.NodeName})
		}
	}
	slices.SortFunc(earlier, func(a, b wire.EarlierReservation) int { return cmp.Compare(a.UID, b.UID) })
	return earlier
}

// reserveBound replaces a bound pod by a reservation, because a list of pods that is older than the
// bind does not contain the pod. The next message about the pod confirms it; otherwise the reservation
// expires if the API server does not have the pod.
func (l *Ledger) reserveBound(now time.Time, pod *v1.Pod) {
	l.remove(pod.UID)
	if err := l.nodes.Assume(pod); err != nil {
		return
	}
	l.countAntiAffinity(pod, 1)
	l.reservations[pod.UID] = &reservation{pod: pod, until: now.Add(EarlierLeaderReservationLife), bound: true}
}

// NewReservation returns the message that requests a reservation for a pod on the node in its spec.
func NewReservation(pod *v1.Pod, termKeys wire.TermKeys) wire.Reservation {
	return wire.Reservation{
		Pod: wire.MarshalObject(pod), UID: pod.UID, Node: pod.Spec.NodeName, Profile: pod.Spec.SchedulerName, TermKeys: termKeys,
	}
}
