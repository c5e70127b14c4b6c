package membership

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

// newLeaseServer returns a fake API server that, unlike the fake of client-go, refuses
// writes of Leases whose resource version is outdated.
func newLeaseServer() kubernetes.Interface {
	client := fake.NewClientset()
	var mu sync.Mutex
	version := 0
	client.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		write, ok := action.(clienttesting.UpdateAction)
		if !ok || action.GetVerb() != "create" && action.GetVerb() != "update" {
			return false, nil, nil
		}
		lease := write.GetObject().(*coordinationv1.Lease)
		stored, err := client.Tracker().Get(action.GetResource(), action.GetNamespace(), lease.Name)
		if err == nil && stored.(*coordinationv1.Lease).ResourceVersion != lease.ResourceVersion {
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), lease.Name, errors.New("the object has been modified"))
		}
		version++
		lease.ResourceVersion = strconv.Itoa(version)
		return false, nil, nil
	})
	return client
}

// run starts Run and returns its result and a function that stops it.
func (l *Leases) run(t *testing.T) (ended <-chan error, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() { end <- l.Run(ctx) }()
	return end, cancel
}

// stillRunning fails the test if a replica has returned.
func stillRunning(t *testing.T, replica string, ended <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-ended:
		t.Fatalf("%s returned %v", replica, err)
	default:
	}
}

// TestDuplicateNameOtherAddress checks that of two replicas with one name at different
// addresses the later one fails before it joins, and the earlier one continues.
func TestDuplicateNameOtherAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newLeaseServer()
		first := NewLeases(server, "default", "group", Member{Name: "name", Address: "10.0.0.1:7000"})
		firstEnds, stop := first.run(t)
		time.Sleep(time.Second)
		secondEnds, _ := NewLeases(server, "default", "group", Member{Name: "name", Address: "10.0.0.2:7000"}).run(t)
		time.Sleep(claimTimeout)
		if err := <-secondEnds; !errors.Is(err, ErrNameTaken) {
			t.Errorf("the later replica returned %v", err)
		}
		time.Sleep(time.Minute)
		stillRunning(t, "the earlier replica", firstEnds)
		stop()
		if err := <-firstEnds; err != nil {
			t.Error(err)
		}
		if _, err := server.CoordinationV1().Leases("default").Get(context.Background(), first.name(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("its Lease still exists: %v", err)
		}
	})
}

// TestDuplicateNameSameAddress checks that of two processes with one name and address the
// earlier one fails, as the later one takes it for its predecessor, and leaves the Lease.
func TestDuplicateNameSameAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, self := newLeaseServer(), Member{Name: "name", Address: "127.0.0.1:7000"}
		firstEnds, _ := NewLeases(server, "default", "group", self).run(t)
		time.Sleep(time.Second)
		second := NewLeases(server, "default", "group", self)
		secondEnds, stop := second.run(t)
		time.Sleep(2 * leaseRenewInterval)
		if err := <-firstEnds; !errors.Is(err, ErrNameTaken) {
			t.Errorf("the earlier replica returned %v", err)
		}
		stillRunning(t, "the later replica", secondEnds)
		lease, err := server.CoordinationV1().Leases("default").Get(t.Context(), second.name(), metav1.GetOptions{})
		if err != nil || lease.Annotations[InstanceAnnotation] != second.instance {
			t.Errorf("Lease %v, error %v", lease, err)
		}
		stop()
		<-secondEnds
	})
}

// TestRestartUnderSameName checks that a replica that was killed can restart under its name:
// at once at the same address, after claimTimeout at another address.
func TestRestartUnderSameName(t *testing.T) {
	for address, patience := range map[string]time.Duration{"10.0.0.1:7000": time.Millisecond, "10.0.0.2:7000": claimTimeout + claimPollInterval} {
		synctest.Test(t, func(t *testing.T) {
			server := newLeaseServer()
			killed := NewLeases(server, "default", "group", Member{Name: "name", Address: "10.0.0.1:7000"})
			if err := killed.renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			next := NewLeases(server, "default", "group", Member{Name: "name", Address: address})
			ended, stop := next.run(t)
			time.Sleep(patience)
			stillRunning(t, "the successor", ended)
			lease, err := server.CoordinationV1().Leases("default").Get(t.Context(), next.name(), metav1.GetOptions{})
			if err != nil || lease.Annotations[InstanceAnnotation] != next.instance || lease.Annotations[AddressAnnotation] != address {
				t.Errorf("Lease %v, error %v", lease, err)
			}
			stop()
			<-ended
		})
	}
}
