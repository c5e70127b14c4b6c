package holder

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/core"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/refresh"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// newTestHolder returns a holder of one node with four CPUs.
func newTestHolder(t *testing.T) *Holder {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	cache := f.Sched.Cache.(*cache.Cache)
	cache.AddNode(klog.Logger{}, schedtest.PlainNode("node", "4"))
	return New(klog.Logger{}, f.Ranker, cache)
}

func podOnNode(name, cpu string) *v1.Pod {
	pod := schedtest.PlainPod(name, cpu)
	pod.Spec.NodeName = "node"
	return pod
}

// reserve requests a reservation for the leader of term 1, and returns why it is refused. granted
// tells whether the node's previous owner has granted the reservation.
func (h *Holder) reserve(t *testing.T, pod *v1.Pod, ready, granted bool) (refused string) {
	t.Helper()
	r := core.NewReservation(pod, wire.TermKeys{})
	r.Granted = granted
	return h.Reserve(t.Context(), "leader", 1, ready, &r)
}

// allSlots returns the numbers of all hash slots.
func allSlots() []int {
	return refresh.AllSlots().Of(make(membership.Table, membership.SlotCount), "")
}

func (h *Holder) checkCounts(t *testing.T, pods, reservations int) {
	t.Helper()
	if got := h.Counts(); got.Pods != pods || got.Reservations != reservations {
		t.Errorf("Counts() = %d pods and %d reservations, want %d and %d", got.Pods, got.Reservations, pods, reservations)
	}
}

// TestOverlappingListsKeepSentPods checks that a pod that was sent since the start of a list is
// kept at the end of the list, and that a pod that was not sent is removed, also if lists overlap.
func TestOverlappingListsKeepSentPods(t *testing.T) {
	h := newTestHolder(t)
	setPod(h, podOnNode("deleted", "1"))
	h.BeginList("a", 1)
	setPod(h, podOnNode("sent", "1"))
	h.BeginList("a", 2)
	h.EndList("a", 1, allSlots(), "")
	h.checkCounts(t, 1, 0)
	// The second list does not contain the pod, but it does not cover the pod's slot either.
	h.EndList("a", 2, []int{(membership.SlotOf("sent") + 1) % membership.SlotCount}, "")
	h.checkCounts(t, 1, 0)
	// The end of a list that was not started on this connection has no effect.
	h.BeginList("a", 3)
	h.Connected("a")
	h.EndList("a", 3, allSlots(), "")
	h.checkCounts(t, 1, 0)
}

// TestOpenListsAreBounded has a replica start lists without ending them.
func TestOpenListsAreBounded(t *testing.T) {
	h, started := newTestHolder(t), int64(0)
	for h.BeginList("a", started) == nil && started < 1000 {
		started++
	}
	if started == 1000 || h.BeginList("b", 1) != nil {
		t.Errorf("a replica starts %d lists; another one is refused: %t", started, h.BeginList("b", 2) != nil)
	}
	h.Connected("a")
	if err := h.BeginList("a", 1); err != nil {
		t.Errorf("BeginList() on a new connection = %v, want no error", err)
	}
}

// TestListOlderThanBindKeepsCapacity checks that a list of pods that is older than a bind does not free
// the capacity of the bound pod. The former watcher of a hash slot may have sent the pod before the new
// watcher received the bind.
func TestListOlderThanBindKeepsCapacity(t *testing.T) {
	h := newTestHolder(t)
	bound := podOnNode("pod", "3")
	bound.ResourceVersion = "20"
	setPod(h, bound)
	h.BeginList("b", 1)
	h.EndList("b", 1, allSlots(), "15")
	h.checkCounts(t, 0, 1)
	if refused := h.reserve(t, podOnNode("large", "2"), true, false); refused == "" {
		t.Error("Reserve() of 2 CPUs next to a bound pod with 3 of 4 CPUs succeeded, want it refused")
	}
	if earlier := h.EarlierReservations(7); len(earlier) != 0 {
		t.Errorf("EarlierReservations() = %v, want none for a bound pod", earlier)
	}
	elsewhere := podOnNode("pod", "3")
	elsewhere.Spec.NodeName = "another"
	if refused := h.reserve(t, elsewhere, true, true); refused == "" {
		t.Error("Reserve() of another node for a bound pod succeeded, want it refused")
	}
	setPod(h, bound)
	h.checkCounts(t, 1, 0)
	older := bound.DeepCopy()
	older.ResourceVersion = "18"
	setPod(h, older)
	h.BeginList("b", 2)
	h.EndList("b", 2, allSlots(), "19")
	h.checkCounts(t, 0, 1)
	setPod(h, bound)
	h.BeginList("b", 3)
	h.EndList("b", 3, allSlots(), "25")
	h.checkCounts(t, 0, 0)
}

// TestSetPodReportsChanges checks for which versions of a pod [Holder.SetPod] reports a change: an event to the leader
// makes it retry pods.
func TestSetPodReportsChanges(t *testing.T) {
	h := newTestHolder(t)
	h.reserve(t, podOnNode("reserved", "1"), true, false)
	h.reserve(t, podOnNode("relabeled", "1"), true, false)
	elsewhere := podOnNode("elsewhere", "1")
	elsewhere.Spec.NodeName = "another"
	h.reserve(t, elsewhere, true, true)
	for _, step := range []struct {
		what, uid, version, label string
		known, changed            bool
	}{
		{"a new pod", "new", "5", "", false, true},
		{"the same version", "new", "5", "", true, false},
		{"another status", "new", "6", "", true, false},
		{"another label", "new", "7", "x", true, true},
		{"an older version", "new", "5", "", true, false},
		{"a reserved pod", "reserved", "5", "", true, false},
		{"a reserved pod with another label", "relabeled", "5", "x", true, true},
		{"a pod that is reserved on another node", "elsewhere", "5", "", false, true},
	} {
		pod := podOnNode(step.uid, "1")
		pod.ResourceVersion = step.version
		if step.label != "" {
			pod.Labels = map[string]string{"label": step.label}
		}
		if before, changed := setPod(h, pod); (before != nil) != step.known || changed != step.changed {
			t.Errorf("SetPod() of %s = %v, %v, want known %v and changed %v", step.what, before, changed, step.known, step.changed)
		}
	}
	h.checkCounts(t, 4, 0)
}

// TestDeletedPodOfOlderListIsRemoved checks that the capacity that is kept for a bound pod (see
// [TestListOlderThanBindKeepsCapacity]) is freed when the pod is deleted.
func TestDeletedPodOfOlderListIsRemoved(t *testing.T) {
	h := newTestHolder(t)
	bound := podOnNode("pod", "3")
	bound.ResourceVersion = "20"
	setPod(h, bound)
	h.BeginList("b", 1)
	h.EndList("b", 1, allSlots(), "15")
	h.RemovePod("pod", yes)
	h.checkCounts(t, 0, 0)
	if refused := h.reserve(t, podOnNode("large", "4"), true, false); refused != "" {
		t.Errorf("Reserve() of all CPUs of an empty node was refused: %s", refused)
	}
}

// TestReservationRequiresReadinessAndCapacity checks that a holder that is not ready accepts only
// reservations that were granted earlier, that it reserves no more capacity than the node has, and
// that a reservation is released only for its own node.
func TestReservationRequiresReadinessAndCapacity(t *testing.T) {
	h := newTestHolder(t)
	if refused := h.reserve(t, podOnNode("new", "1"), false, false); refused == "" {
		t.Error("Reserve() by a holder that is not ready succeeded, want it refused")
	}
	if refused := h.reserve(t, podOnNode("granted", "3"), false, true); refused != "" {
		t.Errorf("Reserve() for a reservation that was granted earlier was refused: %s", refused)
	}
	if refused := h.reserve(t, podOnNode("large", "2"), true, false); refused == "" {
		t.Error("Reserve() of 2 CPUs with 1 CPU free succeeded, want it refused")
	}
	h.Reserve(t.Context(), "leader", 1, true, &wire.Reservation{UID: "granted", Node: "another"})
	h.checkCounts(t, 0, 1)
	if acks := h.Renew([]wire.Renewal{{UID: "granted", Attempt: 1}, {UID: "large", Attempt: 2}}); acks[0].Refused != "" || acks[0].Attempt != 1 || acks[1].Refused == "" || acks[1].Attempt != 2 {
		t.Errorf("Renew() = %v, want the first renewed and the second refused", acks)
	}
	setPod(h, podOnNode("granted", "3"))
	h.checkCounts(t, 1, 0)
	h.RemovePod("granted", yes)
	h.checkCounts(t, 0, 0)
	if refused := h.reserve(t, podOnNode("large", "4"), true, false); refused != "" {
		t.Errorf("Reserve() of all CPUs of an empty node was refused: %s", refused)
	}
}

// TestReservationsExpire checks that a reservation expires if it is not renewed, and sooner if
// another replica leads, but not if the pod is bound.
func TestReservationsExpire(t *testing.T) {
	h := newTestHolder(t)
	h.reserve(t, podOnNode("pod", "3"), true, false)
	now := time.Now()
	late := now.Add(core.EarlierLeaderReservationLife + time.Second)
	h.ShortenOld(1, now)
	if overdue := h.Overdue(late); len(overdue) != 0 {
		t.Errorf("Overdue() = %d pods after ShortenOld() with the reservation's term, want 0", len(overdue))
	}
	h.ShortenOld(2, now)
	if overdue := h.Overdue(late); len(overdue) != 1 {
		t.Fatalf("Overdue() = %d pods after ShortenOld() with a later term, want 1", len(overdue))
	}
	h.Expire("pod", late, PodBound)
	h.checkCounts(t, 0, 1)
	if overdue := h.Overdue(late); len(overdue) != 0 {
		t.Errorf("Overdue() = %d pods after Expire() of a bound pod, want 0", len(overdue))
	}
	late = late.Add(core.ReservationLife + time.Second)
	h.Expire("pod", late, PodGone)
	h.checkCounts(t, 0, 0)
	if got := h.Counts(); got.Expired != 1 {
		t.Errorf("Counts() = %d expired reservations, want 1", got.Expired)
	}
	if refused := h.reserve(t, podOnNode("other", "4"), true, false); refused != "" {
		t.Errorf("Reserve() of the freed capacity was refused: %s", refused)
	}
}

// TestEarlierReservationWaitsForTheBind checks that a reservation of an earlier leader remains while its pod is
// pending, because the bind of that leader may still arrive, and that it is released once the pod is gone or after
// core.LateBindLife. A new leader that completes the placement does not change that.
func TestEarlierReservationWaitsForTheBind(t *testing.T) {
	for name, c := range map[string]struct {
		state     PodState
		after     time.Duration
		completed bool
		want      int
	}{
		"pending":                            {PodPending, core.EarlierLeaderReservationLife, false, 1},
		"pending for long":                   {PodPending, core.LateBindLife, false, 0},
		"gone":                               {PodGone, core.EarlierLeaderReservationLife, false, 0},
		"bound":                              {PodBound, core.LateBindLife, false, 1},
		"pending after the bind failed":      {PodPending, core.LateBindLife - 2*time.Second, true, 1},
		"pending for long, the bind failed":  {PodPending, core.LateBindLife, true, 0},
		"gone after the bind has failed too": {PodGone, core.ReservationLife, true, 0},
	} {
		h, now := newTestHolder(t), time.Now()
		h.reserve(t, podOnNode("pod", "3"), true, false)
		h.ShortenOld(2, now)
		if c.completed {
			r := core.NewReservation(podOnNode("pod", "3"), wire.TermKeys{})
			if refused := h.Reserve(t.Context(), "next", 2, true, &r); refused != "" {
				t.Fatalf("%s: the next leader's Reserve() was refused: %s", name, refused)
			}
		}
		later := now.Add(c.after + time.Second)
		if overdue := h.Overdue(later); len(overdue) != 1 {
			t.Errorf("%s: Overdue() = %d pods, want 1", name, len(overdue))
		}
		h.Expire("pod", later, c.state)
		if got := h.Counts().Reservations; got != c.want {
			t.Errorf("%s: %d reservations after Expire(), want %d", name, got, c.want)
		}
	}
}

// TestSecondChangeOfLeaderKeepsReservation changes the leader twice, the second time later than core.LateBindLife after
// the first. The reservation waits for the late bind of the second leader, but only once: further assignments of
// the third leader, and later leaders that do not request it, do not extend it.
func TestSecondChangeOfLeaderKeepsReservation(t *testing.T) {
	h, now := newTestHolder(t), time.Now()
	h.reserve(t, podOnNode("pod", "3"), true, false)
	h.ShortenOld(2, now)
	r := core.NewReservation(podOnNode("pod", "3"), wire.TermKeys{})
	if refused := h.Reserve(t.Context(), "second", 2, true, &r); refused != "" {
		t.Fatal(refused)
	}
	third := now.Add(core.LateBindLife + time.Minute)
	h.ShortenOld(3, third)
	h.Expire("pod", third.Add(core.EarlierLeaderReservationLife+time.Second), PodPending)
	h.checkCounts(t, 0, 1)
	h.ShortenOld(3, third.Add(time.Minute))
	h.ShortenOld(4, third.Add(time.Minute))
	h.Expire("pod", third.Add(core.LateBindLife+time.Second), PodPending)
	h.checkCounts(t, 0, 0)
}

// TestAnswerWithoutOwnReservation checks that the answer to a query for a pod with a reservation of an earlier
// leader does not count this reservation, and that other queries and reservations do.
func TestAnswerWithoutOwnReservation(t *testing.T) {
	h := newTestHolder(t)
	h.reserve(t, podOnNode("pod", "3"), true, false)
	for _, reserved := range []types.UID{"pod", "", "pod"} {
		query := &wire.Query{Pod: wire.MarshalObject(schedtest.PlainPod("pod", "3")), Profile: v1.DefaultSchedulerName, Offers: 1, Steps: 1, Node: "node", Reserved: reserved}
		answer, err := h.Answer(t.Context(), "leader", &wire.Request{Query: query}, "self")
		if err != nil {
			t.Fatal(err)
		}
		if fits := len(answer.Names) > 0; fits != (reserved != "") {
			t.Errorf("Answer() to a query with Reserved %q offers a node: %t", reserved, fits)
		}
		h.checkCounts(t, 0, 1)
	}
	if refused := h.reserve(t, podOnNode("large", "2"), true, false); refused == "" {
		t.Error("Reserve() of 2 CPUs with 1 CPU free succeeded, want it refused")
	}
}

// endingContext is a context that ends after its error was read a number of times.
type endingContext struct {
	context.Context
	left, reads int
}

// Err returns an error if it was read often enough before.
func (c *endingContext) Err() error {
	c.reads++
	if c.left--; c.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// TestWalkEndsAtItsDeadline ends the context of a query while its nodes are evaluated one by one. The evaluation ends,
// because the leader does not wait for it any more, and reservations have to wait for its end.
func TestWalkEndsAtItsDeadline(t *testing.T) {
	h := newTestHolder(t)
	const nodes = 1000
	for i := range nodes {
		h.ChangeNode(nil, schedtest.PlainNode(fmt.Sprint("node-", i), "4"))
	}
	query := &wire.Request{Query: &wire.Query{
		Pod: wire.MarshalObject(schedtest.PlainPod("pod", "1")), Profile: v1.DefaultSchedulerName, NodeByNode: true, Offers: 1,
	}}
	ctx := &endingContext{Context: t.Context(), left: nodes / 2}
	if answer, err := h.Answer(ctx, "leader", query, "self"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Answer() = %v, error %v, want error %v", answer, err, context.DeadlineExceeded)
	}
	if ctx.reads > nodes*3/4 {
		t.Errorf("the context was read %d times, want the walk to end after %d", ctx.reads, nodes/2)
	}
	answer, err := h.Answer(t.Context(), "leader", query, "self")
	if err != nil || answer.Summary.Nodes != nodes+1 {
		t.Errorf("Answer() = %+v, error %v, want %d nodes", answer, err, nodes+1)
	}
}

func yes() bool { return true }

// setPod stores a pod from a replica that is trusted, on a node that the holder owns.
func setPod(h *Holder, pod *v1.Pod) (before *v1.Pod, changed bool) { return h.SetPod(pod, yes, yes) }

// TestPodOfAnEarlierAssignment has pods arrive that their sender does not watch any more, or on a node that another replica
// owns now.
func TestPodOfAnEarlierAssignment(t *testing.T) {
	h := newTestHolder(t)
	no := func() bool { return false }
	pod := podOnNode("pod", "1")
	h.SetPod(pod, no, yes)
	if n := h.Counts().Pods; n != 0 {
		t.Errorf("%d pods after a pod of a replica that does not watch it, want 0", n)
	}
	setPod(h, pod)
	h.RemovePod(pod.UID, no)
	h.SetPod(pod, no, no)
	if n := h.Counts().Pods; n != 1 {
		t.Errorf("%d pods after messages of a replica that does not watch the pod, want 1", n)
	}
	h.SetPod(pod, yes, no)
	if n := h.Counts().Pods; n != 0 {
		t.Errorf("%d pods after a pod on a node of another replica, want 0", n)
	}
}

// TestReservationOutlivesTheEarlierPodOfItsName sends a deleted pod, late, to the owner of a node on which the pod that has
// replaced it has a reservation. A newer pod replaces the reservation: the reserved one was deleted.
func TestReservationOutlivesTheEarlierPodOfItsName(t *testing.T) {
	h := newTestHolder(t)
	version := func(uid, version, cpu string) *v1.Pod {
		pod := podOnNode("pod", cpu)
		pod.UID, pod.ResourceVersion = types.UID(uid), version
		return pod
	}
	reserved, deleted := version("second", "20", "3"), version("first", "10", "1")
	if refused := h.reserve(t, reserved, true, false); refused != "" {
		t.Fatalf("Reserve() = %q, want it accepted", refused)
	}
	setPod(h, deleted)
	h.RemovePod(deleted.UID, yes)
	h.checkCounts(t, 0, 1)
	if refused := h.reserve(t, podOnNode("large", "2"), true, false); refused == "" {
		t.Error("Reserve() of 2 CPUs next to a reservation of 3 of 4 CPUs succeeded, want it refused")
	}
	setPod(h, version("third", "30", "1"))
	if refused := h.reserve(t, podOnNode("large", "3"), true, false); refused != "" {
		t.Errorf("Reserve() of 3 CPUs next to 1 of 4 CPUs = %q, want it accepted", refused)
	}
}

// TestPortOfTwoPods has two pods count on a node that use one host port. When one of them is removed, the port is still used.
func TestPortOfTwoPods(t *testing.T) {
	h := newTestHolder(t)
	withPort := func(name string) *v1.Pod {
		pod := podOnNode(name, "1")
		pod.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 9090, Protocol: v1.ProtocolTCP}}
		return pod
	}
	first, second := withPort("first"), withPort("second")
	setPod(h, first)
	// The earlier owner of the node has granted it. That the pod was deleted meanwhile is not known yet.
	if refused := h.reserve(t, second, true, true); refused != "" {
		t.Fatalf("a reservation that was granted before is refused: %s", refused)
	}
	h.Reserve(t.Context(), "leader", 1, true, &wire.Reservation{UID: second.UID, Node: "node"})
	if refused := h.reserve(t, withPort("third"), true, false); refused == "" {
		t.Error("a pod with the host port of the first one gets a reservation, want it refused")
	}
	h.RemovePod(first.UID, yes)
	if refused := h.reserve(t, withPort("fourth"), true, false); refused != "" {
		t.Errorf("a pod is refused although nobody uses its host port: %s", refused)
	}
}
