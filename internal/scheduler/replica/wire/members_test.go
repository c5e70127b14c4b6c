package wire

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// newLeaseServer is an API server in memory that, other than the fake, refuses to write what
// somebody else has written meanwhile.
func newLeaseServer() kubernetes.Interface {
	client := fake.NewClientset()
	var mu sync.Mutex
	version := 0
	client.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		writing, is := action.(clienttesting.UpdateAction)
		if !is || action.GetVerb() != "create" && action.GetVerb() != "update" {
			return false, nil, nil
		}
		lease := writing.GetObject().(*coordinationv1.Lease)
		there, err := client.Tracker().Get(action.GetResource(), action.GetNamespace(), lease.Name)
		if err == nil && there.(*coordinationv1.Lease).ResourceVersion != lease.ResourceVersion {
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), lease.Name, errors.New("it was written meanwhile"))
		}
		version++
		lease.ResourceVersion = strconv.Itoa(version)
		return false, nil, nil
	})
	return client
}

// run makes a replica known for a while, and returns how that ends, or nil if it does not.
func (l *Leases) run(t *testing.T) (ended <-chan error, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() { end <- l.Run(ctx) }()
	return end, cancel
}

func nothing(t *testing.T, what string, ended <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-ended:
		t.Fatalf("%s ends with %v", what, err)
	default:
	}
}

// TestTwoOfOneName: the later of two replicas with one name, at different addresses, is told
// so before it takes part, and the earlier one goes on.
func TestTwoOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newLeaseServer()
		first := NewLeases(server, "default", "group", Member{Name: "name", Address: "10.0.0.1:7000"})
		firstEnds, stop := first.run(t)
		time.Sleep(time.Second)
		secondEnds, _ := NewLeases(server, "default", "group", Member{Name: "name", Address: "10.0.0.2:7000"}).run(t)
		time.Sleep(claimPatience)
		if err := <-secondEnds; !errors.Is(err, ErrNameTaken) {
			t.Errorf("the later one ends with %v", err)
		}
		time.Sleep(time.Minute)
		nothing(t, "the earlier one", firstEnds)
		stop()
		if err := <-firstEnds; err != nil {
			t.Error(err)
		}
		if _, err := server.CoordinationV1().Leases("default").Get(context.Background(), first.name(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("its Lease is there still: %v", err)
		}
	})
}

// TestTwoOfOneNameAndAddress: the earlier one finds out, since the later one takes it for its
// predecessor; it leaves the Lease to that.
func TestTwoOfOneNameAndAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, self := newLeaseServer(), Member{Name: "name", Address: "127.0.0.1:7000"}
		firstEnds, _ := NewLeases(server, "default", "group", self).run(t)
		time.Sleep(time.Second)
		second := NewLeases(server, "default", "group", self)
		secondEnds, stop := second.run(t)
		time.Sleep(2 * leaseRenew)
		if err := <-firstEnds; !errors.Is(err, ErrNameTaken) {
			t.Errorf("the earlier one ends with %v", err)
		}
		nothing(t, "the later one", secondEnds)
		lease, err := server.CoordinationV1().Leases("default").Get(t.Context(), second.name(), metav1.GetOptions{})
		if err != nil || lease.Annotations[InstanceAnnotation] != second.instance {
			t.Errorf("the Lease is %v, %v", lease, err)
		}
		stop()
		<-secondEnds
	})
}

// TestSuccessorOfAName: who comes back elsewhere under the name of one that was killed has it
// as soon as that is known to be gone, and in its place at once.
func TestSuccessorOfAName(t *testing.T) {
	for address, patience := range map[string]time.Duration{"10.0.0.1:7000": time.Millisecond, "10.0.0.2:7000": claimPatience + claimEvery} {
		synctest.Test(t, func(t *testing.T) {
			server := newLeaseServer()
			killed := NewLeases(server, "default", "group", Member{Name: "name", Address: "10.0.0.1:7000"})
			if err := killed.renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			next := NewLeases(server, "default", "group", Member{Name: "name", Address: address})
			ended, stop := next.run(t)
			time.Sleep(patience)
			nothing(t, "the successor", ended)
			lease, err := server.CoordinationV1().Leases("default").Get(t.Context(), next.name(), metav1.GetOptions{})
			if err != nil || lease.Annotations[InstanceAnnotation] != next.instance || lease.Annotations[AddressAnnotation] != address {
				t.Errorf("the Lease is %v, %v", lease, err)
			}
			stop()
			<-ended
		})
	}
}
