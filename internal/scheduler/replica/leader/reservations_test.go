package leader

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/holder"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/member"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/schedtest"
)

// TestEarlierReservationsEnd checks that pods are bound to the nodes that an earlier leader chose only until the
// binds of that leader cannot arrive any more.
func TestEarlierReservationsEnd(t *testing.T) {
	f := schedtest.NewScripted(t, schedtest.NewAPI())
	l := &Leader{member: &member.Member{}, sched: f.Sched, search: &Search{}}
	l.assumptions = newAssumptions(f.Sched.Cache, l.search, l)
	assumed := schedtest.PlainPod("assumed", "1")
	assumed.Spec.NodeName = "node"
	f.Must(l.assumptions.AssumePod(l.logger, assumed))
	l.termStart = time.Now()
	for after, want := range map[time.Duration]string{holder.LateBindLife - time.Second: "node", holder.LateBindLife + time.Second: ""} {
		l.earlier = map[types.UID]string{"pending": "node", assumed.UID: "node"}
		l.expireEarlier(l.termStart.Add(after))
		for _, uid := range []types.UID{"pending", assumed.UID} {
			if got := l.Earlier(uid); got != want {
				t.Errorf("%v after the term started: Earlier(%s) = %q, want %q", after, uid, got, want)
			}
		}
	}
}
