package core

import (
	"errors"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// simReplica is a process, with what the packages member, holder and leader do around their state machines.
type simReplica struct {
	sim  *simulation
	self membership.Member
	// skew is the difference between the clock of the machine and that of the simulation.
	skew time.Duration
	// instance counts the starts of the process. Nothing of an earlier instance has an effect.
	instance      int
	alive, paused bool
	// backlog is what a suspended process does when it resumes.
	backlog []func()
	// apiCutUntil is the time until which the process does not reach the API server.
	apiCutUntil time.Time

	member    *Member
	ledger    *Ledger
	nodes     *simNodes
	leader    *Leader
	pending   *Pending
	follower  *Follower
	scheduler *simScheduler
	links     map[string]*simLink
	sessions  map[string]int64
	pods      *simWatch
	nodeWatch *simWatch

	// renewed is the time at which the last successful renewal of the Lease was sent; zero if this process was not elected.
	renewed time.Time
	term    int64
	// seenRenewals is the number of renewals of the Lease that the process has seen at seenAt.
	seenRenewals int64
	seenAt       time.Time
	// ticking is true while a tick of the leader is planned.
	ticking bool
}

var errSimUnreadable = errors.New("the Lease cannot be read")

func (r *simReplica) clock() time.Time { return r.sim.now.Add(r.skew) }

func (r *simReplica) running() bool { return r.alive && !r.paused }

func (r *simReplica) reachesAPI() bool { return !r.sim.now.Before(r.apiCutUntil) }

// soon makes the process do something after some time, if it still runs then. A suspended one does it when it resumes.
func (r *simReplica) soon(d time.Duration, do func()) {
	instance := r.instance
	r.sim.after(d, func() { r.deliver(instance, do) })
}

func (r *simReplica) deliver(instance int, do func()) {
	switch {
	case !r.alive || r.instance != instance:
	case r.paused:
		r.backlog = append(r.backlog, do)
	default:
		do()
	}
}

// every makes the process do something again and again.
func (r *simReplica) every(interval time.Duration, do func()) {
	r.soon(r.sim.pace(interval), func() {
		do()
		r.every(interval, do)
	})
}

// start starts the process.
func (r *simReplica) start() {
	if r.alive {
		return
	}
	s := r.sim
	r.instance++
	r.alive, r.paused, r.backlog = true, false, nil
	r.links, r.sessions = map[string]*simLink{}, map[string]int64{}
	r.renewed, r.term, r.ticking = time.Time{}, 0, false
	r.seenRenewals, r.seenAt = -1, s.now
	name, first := r.self.Name, r.clock().UnixNano()
	r.nodes = &simNodes{sim: s, nodes: map[string]*v1.Node{}, pods: map[types.UID]*v1.Pod{}}
	r.ledger = NewLedger(r.nodes)
	r.ledger.fault = s.fault
	r.member = NewMember(MemberConfig{Self: name, Elected: true, FirstID: first, Fault: s.fault}, r)
	r.leader = NewLeader(LeaderConfig{Self: r.self, FirstAttempt: uint64(first), MayResign: true, Fault: s.fault})
	r.follower = &Follower{Self: name, Elected: true, Fault: s.fault}
	r.pending = NewPending()
	r.scheduler = &simScheduler{r: r, queue: map[types.UID]*simQueued{}}
	r.pods, r.nodeWatch = newSimWatch(r, false), newSimWatch(r, true)
	r.every(500*time.Millisecond, func() { r.report("") })
	r.every(time.Second, r.expire)
	r.every(30*time.Second, r.forgetNodes)
	r.soon(s.upTo(simRetry), r.elect)
}

// kill ends the process, and starts it again after some time.
func (r *simReplica) kill(why string) {
	if !r.alive {
		return
	}
	r.sim.note("%s is %s", r.self.Name, why)
	r.sim.stats.Kills++
	r.alive = false
	r.sim.after(300*time.Millisecond+r.sim.upTo(4*time.Second), r.start)
}

func (r *simReplica) pause(d time.Duration) {
	if !r.running() {
		return
	}
	r.sim.note("%s is suspended", r.self.Name)
	r.sim.stats.Pauses++
	r.paused = true
	instance := r.instance
	r.sim.after(d, func() {
		if r.instance == instance {
			r.resume()
		}
	})
}

func (r *simReplica) resume() {
	if !r.paused {
		return
	}
	r.paused = false
	backlog, instance := r.backlog, r.instance
	r.backlog = nil
	for _, do := range backlog {
		r.deliver(instance, do)
	}
}

func (r *simReplica) cutFromAPI(d time.Duration) {
	r.apiCutUntil = r.sim.now.Add(d)
	r.sim.after(d+r.sim.upTo(time.Second), r.deliverSoon)
}

func (r *simReplica) leads() bool { return r.leader.Term() > 0 }

// tenure returns why the process must not bind pods; nil if it may.
func (r *simReplica) tenure() error {
	if r.renewed.IsZero() || r.sim.now.Sub(r.renewed) >= simDeadline {
		return errors.New("another replica may lead")
	}
	return nil
}

// elect takes part in the leader election.
func (r *simReplica) elect() {
	defer r.soon(simRetry-200*time.Millisecond+r.sim.upTo(400*time.Millisecond), r.elect)
	api, now := r.sim.api, r.sim.now
	switch {
	case r.leads() && now.Sub(r.renewed) >= simDeadline:
		r.kill("not the leader any more")
	case !r.reachesAPI():
	case r.leads():
		sent := now
		held := api.renew(r.self.Name, r.term)
		r.soon(r.sim.delay(), func() {
			if !held {
				r.kill("replaced by another leader")
				return
			}
			r.renewed = sent
		})
	case api.renewals != r.seenRenewals:
		r.seenRenewals, r.seenAt = api.renewals, now
	case now.Sub(r.seenAt) >= simLease || api.holder == "":
		var known int64
		if a := r.member.Assignment(); a != nil {
			known = a.Term
		}
		if term := api.acquire(r.self.Name, r.seenRenewals, known); term > 0 {
			sent := now
			r.soon(r.sim.delay(), func() { r.lead(term, sent) })
		}
	}
}

// lead starts to lead.
func (r *simReplica) lead(term int64, sent time.Time) {
	r.renewed, r.term = sent, term
	r.follower.Believe(term)
	r.sim.note("%s leads for term %d", r.self.Name, term)
	r.leader.Begin(term, r.clock(), r.member.Assignment())
	r.tick()
	r.every(200*time.Millisecond, r.tick)
	r.every(5*time.Second, func() { r.carryLeader(r.leader.Renew()) })
	r.scheduler.run()
}

func (r *simReplica) tick() {
	for {
		out := r.leader.Tick(r.clock(), r.sim.members, r.sentReservations(), r)
		r.carryLeader(out)
		a := out.Assignment
		if a == nil || !r.alive {
			return
		}
		r.sim.stats.Assignments++
		r.adopt(a)
		if !r.alive {
			return
		}
		r.send(Message{Add: func(b *wire.Batch) { b.Assignments = append(b.Assignments, a) }})
		r.carryLeader(r.leader.Adopted(r.clock(), r))
		r.settleNodes()
	}
}

// sentReservations is Member.Reservations of package member.
func (r *simReplica) sentReservations() map[string]uint64 {
	sent := map[string]uint64{}
	for _, name := range senders(r.links) {
		if l := r.links[name]; !l.discarding && r.member.IsGreeted(name, l.connection) {
			sent[name] = l.reservations
			l.flush()
		}
	}
	return sent
}

// Assignment implements [View].
func (r *simReplica) Assignment() *wire.Assignment { return r.member.Assignment() }

// NodeOwner implements [View].
func (r *simReplica) NodeOwner(node string) string { return r.member.NodeOwner(node) }

// Listed implements [Environment].
func (r *simReplica) Listed() (nodes, pods bool) { return r.nodeWatch.synced(), r.pods.synced() }

// Progress implements [Environment].
func (r *simReplica) Progress() int64 { return r.nodeWatch.progress + r.pods.progress }

// Unreachable implements [Environment].
func (r *simReplica) Unreachable(name string) bool {
	l := r.links[name]
	return l != nil && l.discarding && r.sim.now.Sub(l.down) > UnreachableAfter
}

// carryLeader carries out the output of the leader.
func (r *simReplica) carryLeader(out Output) {
	for i := range out.Reservations {
		request := &out.Reservations[i]
		l := r.links[r.member.NodeOwner(request.Node)]
		if l == nil {
			r.carryLeader(r.leader.NoOwner(r.clock(), request))
			continue
		}
		l.add(Message{Add: func(b *wire.Batch) { b.Reservations = append(b.Reservations, *request) }})
	}
	for _, renewal := range out.Renewals {
		if l := r.links[r.member.NodeOwner(renewal.Node)]; l != nil {
			l.add(Message{Add: func(b *wire.Batch) { b.Kept = append(b.Kept, renewal.Renewal) }})
		}
	}
	if out.RetryAll {
		r.soon(0, func() { r.scheduler.retryAll() })
	}
	for _, pod := range out.Activate {
		r.scheduler.activate(pod.UID)
	}
	for _, uid := range out.First {
		r.scheduler.activate(uid)
	}
	if out.Wake && !r.ticking {
		r.ticking = true
		r.soon(0, func() { r.ticking = false; r.tick() })
	}
	if out.Resign {
		r.kill("isolated")
	}
}

// carry carries out the output of the member.
func (r *simReplica) carry(out MemberOutput) {
	for _, name := range out.Disconnect {
		if l := r.links[name]; l != nil {
			l.closed = true
			l.disconnect()
			delete(r.links, name)
		}
	}
	for _, member := range out.Connect {
		r.links[member.Name] = newSimLink(r, member.Name)
	}
	for _, message := range out.Messages {
		r.send(message)
	}
	for _, list := range out.Lists {
		if l := r.links[list.To]; l != nil {
			r.sim.stats.Lists++
			r.sendList(list, l)
		}
	}
	if out.DropPods {
		r.ledger.DropNodes(r.member.OwnsNode)
	}
	for _, uid := range slices.Sorted(maps.Keys(r.pods.pods)) {
		pod := r.pods.pods[uid]
		if slices.Contains(out.Resend, uid) || out.ResendOn[HashOf(pod.Spec.NodeName)] {
			r.carry(r.member.Pod(r.clock(), pod))
		}
	}
	if len(out.Senders) > 0 {
		r.member.Settle(out.Senders)
	}
}

// send adds a message to the next batch.
func (r *simReplica) send(message Message) {
	names := []string{message.To}
	if message.To == "" {
		names = senders(r.links)
	}
	for _, name := range names {
		if l := r.links[name]; l != nil {
			l.add(message)
		}
	}
}

// sendList sends a list of pods, in two parts.
func (r *simReplica) sendList(list *List, l *simLink) {
	l.add(list.Begin())
	list.SetVersion(r.pods.version())
	uids := slices.Sorted(maps.Keys(r.pods.pods))
	half := len(uids) / 2
	part := func(uids []types.UID) bool {
		if l.discarding || l.connection != list.Connection && r.sim.fault != ListOnNewConnection {
			return false
		}
		for _, uid := range uids {
			if pod := r.pods.pods[uid]; pod != nil && r.member.Covers(list, pod) {
				l.add(list.Item(pod))
			}
		}
		return true
	}
	r.soon(r.sim.upTo(30*time.Millisecond), func() {
		if !part(uids[:half]) {
			return
		}
		r.soon(r.sim.upTo(60*time.Millisecond), func() {
			if part(uids[half:]) {
				for _, message := range r.member.EndList(list).Messages {
					l.add(message)
				}
				r.carry(r.member.SendDue())
			}
		})
	})
}

// adopt is Member.Adopt of package member.
func (r *simReplica) adopt(a *wire.Assignment) {
	adoption := r.member.Followed(a, r.leader.Term())
	if adoption.Replaced {
		r.kill("replaced as the leader")
	}
	if !adoption.Later || adoption.Replaced {
		return
	}
	r.sim.record("%s follows %d/%d of %v, missed %t", r.self.Name, a.Term, a.Number, a.Owners, adoption.Missed)
	out := r.member.Adopt(r.clock(), a, adoption.NewTerm)
	late := out
	out.DropPods, out.Resend, out.ResendOn, out.Senders, out.Lists = false, nil, nil, nil, nil
	r.carry(out)
	if adoption.NewTerm {
		r.ledger.ForgetNominated()
	}
	r.ledger.ShortenOld(a.Term, r.clock())
	if adoption.Missed {
		lost, _ := r.nodeWatch.setSlots(nil)
		r.pods.setSlots(nil)
		r.carry(r.member.Cleared(lost))
		r.nodes.remove(lost)
		r.ledger.Clear()
	}
	start, slots := r.member.StartLists(), r.member.OwnSlots()
	lost, gained := r.nodeWatch.setSlots(slots)
	r.pods.setSlots(slots)
	r.carry(r.member.LostNodes(lost))
	r.ledger.DropNodes(r.member.OwnsNode)
	r.nodes.remove(lost)
	r.checkWatches(r.member.Applied(start, gained))
	r.carry(MemberOutput{DropPods: late.DropPods, Resend: late.Resend, ResendOn: late.ResendOn, Senders: late.Senders, Lists: late.Lists})
	r.releaseNodes()
	r.carry(r.member.SendDue())
}

// checkWatches sends a request on the connection of the watches until one succeeds. What the watches had to deliver has
// arrived then.
func (r *simReplica) checkWatches(stamp int64) {
	r.soon(r.sim.delay(), func() {
		if !r.reachesAPI() {
			r.soon(200*time.Millisecond, func() {
				if !r.member.Outdated(stamp) {
					r.checkWatches(stamp)
				}
			})
			return
		}
		r.nodeWatch.deliver()
		r.pods.deliver()
		r.member.Checked(stamp)
		r.listed()
	})
}

// listed is called after a list.
func (r *simReplica) listed() {
	r.carry(r.member.SendDue())
	r.report("")
}

func (r *simReplica) deliverSoon() {
	if r.alive {
		r.nodeWatch.deliverSoon()
		r.pods.deliverSoon()
	}
}

func (r *simReplica) report(to string) {
	counts := r.ledger.Counts()
	counts.Nodes = len(r.nodes.nodes)
	var term int64
	if a := r.member.Assignment(); a != nil {
		term = a.Term
	}
	r.carry(r.member.Report(r.clock(), to, counts, r.ledger.EarlierReservations(term), term))
}

// expire looks up the pods of overdue reservations.
func (r *simReplica) expire() {
	if !r.reachesAPI() {
		return
	}
	for _, pod := range r.ledger.Overdue(r.clock()) {
		state := PodGone
		if current := r.sim.api.pods[pod.UID]; current != nil && current.Spec.NodeName == pod.Spec.NodeName {
			state = PodBound
		} else if current != nil && current.Spec.NodeName == "" {
			state = PodPending
		}
		r.soon(r.sim.delay(), func() { r.ledger.Expire(pod.UID, r.clock(), state) })
	}
}

func (r *simReplica) forgetNodes() {
	old := r.member.OldGoneNodes(r.clock())
	for _, pod := range r.pods.pods {
		delete(old, HashOf(pod.Spec.NodeName))
	}
	out := r.member.ForgetNodes(r.clock(), old)
	r.carry(out)
	if len(out.Senders) > 0 {
		r.settleNodes()
	}
}

func (r *simReplica) releaseNodes() {
	for _, uid := range r.member.Due() {
		if node := r.nodeWatch.nodes[uid]; node != nil {
			use, out := r.member.Release(node)
			if use {
				r.nodes.change(nil, node)
			}
			r.carry(out)
		}
	}
}

func (r *simReplica) settleNodes() {
	for _, owner := range r.member.TakeSettled() {
		r.carryLeader(r.leader.NodesMoved(r.clock(), owner, r))
		r.carry(r.member.ConfirmSettled(owner))
		r.carry(r.member.SendDue())
	}
}

// connectedFrom handles a new connection from a replica.
func (r *simReplica) connectedFrom(from string, session int64) {
	r.sessions[from] = session
	r.ledger.Connected(from)
	r.member.Connected(from)
	r.pending.Connected(from)
	r.carryLeader(r.leader.Connected(from))
}

// receive handles a batch, in the order of Replica.Receive.
func (r *simReplica) receive(from string, session int64, b *wire.Batch) {
	if r.sessions[from] != session {
		return
	}
	for _, a := range b.Assignments {
		r.receiveAssignment(from, a)
		if !r.alive {
			return
		}
	}
	for i := range b.Refreshing {
		if err := errors.Join(r.ledger.BeginList(from, b.Refreshing[i].ID), r.pending.BeginList(from, b.Refreshing[i].ID)); err != nil {
			r.sim.fail("%s: %v", r.self.Name, err)
		}
	}
	if len(b.Nodes) > 0 {
		moved, out, err := r.member.Nodes(from, b.Nodes)
		if err != nil {
			r.sim.fail("%s: %v", r.self.Name, err)
		}
		r.carry(out)
		if moved {
			r.carryLeader(r.leader.NodesMoved(r.clock(), from, r))
		}
	}
	if b.Announced > 0 {
		r.carry(r.member.ConfirmNodes(from, b.Announced))
	}
	if len(b.GoneNodes) > 0 {
		out, err := r.member.GoneNodes(r.clock(), from, b.GoneNodes)
		if err != nil {
			r.sim.fail("%s: %v", r.self.Name, err)
		}
		r.carry(out)
	}
	r.settleNodes()
	for i := range b.Pods {
		r.receivePod(from, &b.Pods[i])
	}
	r.receivePending(from, b)
	for i := range b.Refreshed {
		r.receiveEnd(from, &b.Refreshed[i])
	}
	for i := range b.Listed {
		r.carry(r.member.Listed(r.clock(), from, &b.Listed[i]))
		r.carry(r.member.SendDue())
	}
	r.settleNodes()
	r.receiveReservations(from, b)
	if b.Confirmed > 0 {
		r.member.Confirmed(from, b.Confirmed)
		r.releaseNodes()
	}
	for _, ack := range b.Acks {
		if ack.Refused != "" {
			r.sim.stats.Refused++
		}
		r.sim.record("%s: %s answers for %s: %q", r.self.Name, from, ack.UID, ack.Refused)
		r.carryLeader(r.leader.Ack(r.clock(), from, ack, r))
	}
	if b.Status != nil {
		r.carryLeader(r.leader.Status(r.clock(), from, b.Status, r))
	}
}

// check asks the election whether a replica leads for a term.
func (r *simReplica) check(a *wire.Assignment) error {
	api := r.sim.api
	switch {
	case !r.reachesAPI():
		return errSimUnreadable
	case api.term > a.Term:
		return membership.ErrReplaced
	case api.holder != a.Leader.Name || api.term != a.Term:
		return membership.ErrNotElected
	}
	return nil
}

func (r *simReplica) receiveAssignment(from string, a *wire.Assignment) {
	current := r.member.Assignment()
	switch r.follower.Judge(from, a, current, r.leader.Term(), r.leader.Contested(a)) {
	case Follow:
		r.adopt(a)
	case Verify:
		follow, later, _ := r.follower.Verified(a, r.check(a))
		if later {
			r.verifyLater(a)
		}
		if follow {
			r.adopt(a)
		}
	}
	if r.alive {
		r.carry(r.member.Newer(from, a))
	}
}

func (r *simReplica) verifyLater(a *wire.Assignment) {
	r.soon(time.Second, func() {
		current := r.member.Assignment()
		if current.Term != a.Term || current.Leader.Name != a.Leader.Name {
			return
		}
		switch err := r.check(a); {
		case err == nil:
			r.follower.Believe(a.Term)
		case errors.Is(err, membership.ErrNotElected):
			r.kill("following a leader that was not elected")
		case errors.Is(err, errSimUnreadable):
			r.verifyLater(a)
		}
	})
}

func (r *simReplica) receivePod(from string, item *wire.Item) {
	r.sim.record("%s: %s sends %s, exists %t, trusted %t", r.self.Name, from, item.UID, len(item.Object) > 0, r.member.Trusts(from, item.UID))
	trusted := func() bool { return r.member.Trusts(from, item.UID) }
	if len(item.Object) == 0 {
		if before := r.ledger.RemovePod(item.UID, trusted); before != nil {
			r.carry(r.member.PodApplied(before, nil))
		}
		return
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(item.Object); err != nil {
		r.sim.fail("decoding a pod: %v", err)
		return
	}
	before, changed := r.ledger.SetPod(pod, trusted, func() bool { return r.member.OwnsNode(pod.Spec.NodeName) })
	if changed {
		r.carry(r.member.PodApplied(before, pod))
	}
}

func (r *simReplica) receivePending(from string, b *wire.Batch) {
	if !r.leads() {
		return
	}
	for i := range b.Pending {
		if item := &b.Pending[i]; r.member.Trusts(from, item.UID) {
			r.pendingItem(item)
		}
	}
	if len(b.Events) > 0 {
		r.scheduler.retryAll()
	}
}

func (r *simReplica) pendingItem(item *wire.Item) {
	pod, err := Decode(item)
	switch {
	case err != nil:
		r.sim.fail("decoding a pending pod: %v", err)
	case pod != nil:
		for _, change := range r.pending.Set(pod) {
			r.apply(change)
		}
	case r.pending.Has(item.UID):
		change, _ := r.pending.Remove(item.UID, item.Node)
		r.apply(change)
	case item.Node != "":
		r.carryLeader(r.leader.SettleBound(item.UID))
	default:
		r.carryLeader(r.leader.SettleDeleted(item.UID))
	}
}

// apply passes a change of a pending pod to the scheduler.
func (r *simReplica) apply(change PodChange) {
	switch before, after := change.Before, change.After; {
	case after != nil && after.Spec.NodeName == "":
		r.scheduler.add(after)
	case after == nil:
		r.carryLeader(r.leader.SettleDeleted(before.UID))
		r.scheduler.remove(before.UID)
		// Upstream's handler removes the pod from the cache, if it is assumed.
		r.carryLeader(r.leader.Forget(r.clock(), before.UID))
	default:
		r.scheduler.remove(before.UID)
		r.carryLeader(r.leader.Bound(after))
	}
}

func (r *simReplica) receiveEnd(from string, end *wire.Refresh) {
	slots := r.member.SlotsOf(from, end.Slots)
	for _, pod := range r.ledger.EndList(r.clock(), from, end.ID, slots, end.Version) {
		r.carry(r.member.PodApplied(pod, nil))
	}
	placed := func(uid types.UID) bool { return r.leader.NodeOf(uid) != "" || r.leader.Earlier(uid) != "" }
	deleted, unclear := r.pending.EndList(from, end.ID, slots, placed)
	for _, change := range deleted {
		r.apply(change)
	}
	for _, pod := range unclear {
		r.lookUp(pod.UID)
	}
	r.carry(r.member.Refreshed(from, end))
	r.report("")
}

// lookUp finds out what became of a pending pod that is missing from a list.
func (r *simReplica) lookUp(uid types.UID) {
	r.soon(r.sim.delay(), func() {
		current := r.sim.api.pods[uid]
		switch {
		case !r.pending.Has(uid):
		case !r.reachesAPI():
			r.soon(time.Second, func() { r.lookUp(uid) })
		case current != nil && current.Spec.NodeName == "":
		case current != nil:
			change, _ := r.pending.Remove(uid, current.Spec.NodeName)
			r.apply(change)
		default:
			change, _ := r.pending.Remove(uid, "")
			r.apply(change)
		}
	})
}

// receiveReservations is Member.HandleReservations of package member.
func (r *simReplica) receiveReservations(from string, b *wire.Batch) {
	if len(b.Reservations)+len(b.Kept) == 0 {
		return
	}
	leads, term := r.member.Leads(from)
	ready := r.member.Complete()
	var acks []wire.Ack
	for i := range b.Reservations {
		request := &b.Reservations[i]
		ack := wire.Ack{UID: request.UID, Attempt: request.Attempt, Refused: "another replica leads"}
		if leads {
			ack.Refused = r.ledger.Reserve(r.clock(), from, term, ready, request)
		} else {
			r.ledger.SkipReservation(from)
		}
		if len(request.Pod) > 0 {
			acks = append(acks, ack)
		}
	}
	if leads {
		acks = append(acks, r.ledger.Renew(r.clock(), b.Kept)...)
	}
	r.send(Message{To: from, Add: func(b *wire.Batch) { b.Acks = append(b.Acks, acks...) }})
}
