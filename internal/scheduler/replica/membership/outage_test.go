package membership

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// names returns the sorted names of members.
func names(members []Member) string {
	var names []string
	for _, member := range members {
		names = append(names, member.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestOutageOfAPIServerHidesNoReplica stops the API server for longer than leaseDuration. A replica that runs is
// discovered all the time. One that was killed long before the outage stays hidden, and one that was killed just before
// it is hidden leaseDuration after the API server works again.
func TestOutageOfAPIServerHidesNoReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newLeaseServer()
		var down atomic.Bool
		server.(*fake.Clientset).PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, errors.New("connection refused")
		})
		replica := func(name string) *Leases {
			return NewLeases(server, "default", "group", Member{Name: name, Address: name + ":7000"})
		}
		renewOnce := func(l *Leases) {
			if err := l.renew(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		observer := replica("observer")
		// check checks each second which replicas are discovered.
		check := func(when, want string, seconds int) {
			t.Helper()
			for second := range seconds {
				time.Sleep(time.Second)
				synctest.Wait()
				if got := names(observer.Members()); got != want {
					t.Fatalf("%s, after %d s: replicas %q are discovered, want %q", when, second+1, got, want)
				}
			}
		}
		observerResult, stopObserver := observer.start(t)
		time.Sleep(time.Second)
		otherResult, stopOther := replica("other").start(t)
		renewOnce(replica("early"))
		check("before the outage", "early observer other", int(leaseDuration/time.Second)-1)
		time.Sleep(leaseDuration)
		renewOnce(replica("late"))
		check("before the outage, without the first killed replica", "late observer other", 1)
		down.Store(true)
		check("during the outage", "late observer other", 60)
		down.Store(false)
		check("after the outage", "late observer other", int(leaseDuration/time.Second))
		time.Sleep(leaseRenewInterval)
		check("long after the outage", "observer other", 60)
		stopObserver()
		stopOther()
		<-observerResult
		<-otherResult
	})
}

// TestInterruptedWatchHidesNoReplica checks that Leases do not age while a replica observes no renewal of its own Lease,
// and that the others have leaseDuration for a renewal once it observes one again.
func TestInterruptedWatchHidesNoReplica(t *testing.T) {
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	r := newRenewals("own", start)
	renew := func(name string, second int) { r.observe(name, Member{Name: name}, at(second), at(second)) }
	renew("dead", 0)
	for second := 0; second <= 20; second += 5 {
		renew("own", second)
		renew("other", second)
	}
	for _, step := range []struct {
		second      int
		renew, want string
	}{
		{25, "", "other"},
		{80, "", "other"},
		// The list after the interruption may have the Lease of the other replica unchanged.
		{81, "own", "other"},
		{86, "own", "other"},
		{91, "own", "other"},
		{95, "own", "other"},
		{97, "own", ""},
		{98, "other", "other"},
	} {
		if step.renew != "" {
			renew(step.renew, step.second)
		}
		if got := names(r.others(at(step.second))); got != step.want {
			t.Errorf("after %d s: replicas %q are discovered, want %q", step.second, got, step.want)
		}
	}
}
