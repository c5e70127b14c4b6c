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
	"k8s.io/utils/ptr"
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

// start calls Run in the background. It returns a channel with the result of Run and a function
// that stops it.
func (l *Leases) start(t *testing.T) (result <-chan error, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	returned := make(chan error, 1)
	go func() { returned <- l.Run(ctx) }()
	return returned, cancel
}

// checkRunning fails the test if the Run of a replica has returned.
func checkRunning(t *testing.T, replica string, result <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-result:
		t.Fatalf("Run() of %s returned %v, want it running", replica, err)
	default:
	}
}

// TestDuplicateNameAtOtherAddressFailsLaterReplica starts two replicas with one name at different
// addresses. The later one fails before it joins, and the earlier one continues.
func TestDuplicateNameAtOtherAddressFailsLaterReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newLeaseServer()
		first := NewLeases(server, "default", "group", Member{Name: "name", Address: "10.0.0.1:7000"})
		firstResult, stop := first.start(t)
		time.Sleep(time.Second)
		secondResult, _ := NewLeases(server, "default", "group", Member{Name: "name", Address: "10.0.0.2:7000"}).start(t)
		time.Sleep(claimTimeout)
		if err := <-secondResult; !errors.Is(err, ErrNameTaken) {
			t.Errorf("Run() of the later replica = %v, want %v", err, ErrNameTaken)
		}
		time.Sleep(time.Minute)
		checkRunning(t, "the earlier replica", firstResult)
		stop()
		if err := <-firstResult; err != nil {
			t.Errorf("Run() of the earlier replica = %v after it was stopped, want nil", err)
		}
		if _, err := server.CoordinationV1().Leases("default").Get(context.Background(), first.name(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("getting the Lease of the stopped replica = %v, want not found", err)
		}
	})
}

// TestDuplicateNameAtSameAddressFailsEarlierReplica starts two processes with one name and address.
// The earlier one fails, because the later one takes it for its predecessor, and it does not delete
// the Lease.
func TestDuplicateNameAtSameAddressFailsEarlierReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, self := newLeaseServer(), Member{Name: "name", Address: "127.0.0.1:7000"}
		firstResult, _ := NewLeases(server, "default", "group", self).start(t)
		time.Sleep(time.Second)
		second := NewLeases(server, "default", "group", self)
		secondResult, stop := second.start(t)
		time.Sleep(2 * leaseRenewInterval)
		if err := <-firstResult; !errors.Is(err, ErrNameTaken) {
			t.Errorf("Run() of the earlier replica = %v, want %v", err, ErrNameTaken)
		}
		checkRunning(t, "the later replica", secondResult)
		lease, err := server.CoordinationV1().Leases("default").Get(t.Context(), second.name(), metav1.GetOptions{})
		if err != nil || lease.Annotations[InstanceAnnotation] != second.instance {
			t.Errorf("Lease = %v (error %v), want it with instance %s", lease, err, second.instance)
		}
		stop()
		<-secondResult
	})
}

// TestKilledReplicaRestartsUnderItsName checks that a replica that was killed can restart under its
// name: immediately at the same address, after claimTimeout at another address.
func TestKilledReplicaRestartsUnderItsName(t *testing.T) {
	for address, patience := range map[string]time.Duration{"10.0.0.1:7000": time.Millisecond, "10.0.0.2:7000": claimTimeout + claimPollInterval} {
		synctest.Test(t, func(t *testing.T) {
			server := newLeaseServer()
			killed := NewLeases(server, "default", "group", Member{Name: "name", Address: "10.0.0.1:7000"})
			if err := killed.renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			next := NewLeases(server, "default", "group", Member{Name: "name", Address: address})
			result, stop := next.start(t)
			time.Sleep(patience)
			checkRunning(t, "the restarted replica", result)
			lease, err := server.CoordinationV1().Leases("default").Get(t.Context(), next.name(), metav1.GetOptions{})
			if err != nil || lease.Annotations[InstanceAnnotation] != next.instance || lease.Annotations[AddressAnnotation] != address {
				t.Errorf("Lease = %v (error %v), want it with instance %s and address %s", lease, err, next.instance, address)
			}
			stop()
			<-result
		})
	}
}

// TestForeignLeaseIsNotOverwritten checks that a replica does not take or delete a Lease of its name
// that is not of its group.
func TestForeignLeaseIsNotOverwritten(t *testing.T) {
	for kind, foreignLabels := range map[string]map[string]string{"no labels": nil, "another group": {GroupLabel: "other"}} {
		synctest.Test(t, func(t *testing.T) {
			server := newLeaseServer()
			l := NewLeases(server, "default", "group", Member{Name: "name", Address: "10.0.0.1:7000"})
			foreign := &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: l.name(), Namespace: "default", Labels: foreignLabels},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("somebody")},
			}
			if _, err := server.CoordinationV1().Leases("default").Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			result, stop := l.start(t)
			defer stop()
			if err := <-result; !errors.Is(err, ErrNotOurLease) {
				t.Errorf("%s: Run() = %v, want %v", kind, err, ErrNotOurLease)
			}
			lease, err := server.CoordinationV1().Leases("default").Get(t.Context(), l.name(), metav1.GetOptions{})
			if err != nil || *lease.Spec.HolderIdentity != "somebody" {
				t.Errorf("%s: the Lease is %v (error %v), want it unchanged", kind, lease, err)
			}
		})
	}
}

// TestLeaseOfAnotherNameIsIgnored checks that a replica cannot announce another one: a Lease counts only
// for the replica after which it is named.
func TestLeaseOfAnotherNameIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newLeaseServer()
		honest := NewLeases(server, "default", "group", Member{Name: "honest", Address: "10.0.0.1:7000"})
		hostile := NewLeases(server, "default", "group", Member{Name: "hostile", Address: "10.0.0.2:7000"})
		honestResult, stopHonest := honest.start(t)
		hostileResult, stopHostile := hostile.start(t)
		time.Sleep(time.Second)
		lease, err := server.CoordinationV1().Leases("default").Get(t.Context(), hostile.name(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		lease.Name, lease.ResourceVersion, lease.Spec.HolderIdentity = "group-replica-forged", "", ptr.To("third")
		if _, err := server.CoordinationV1().Leases("default").Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if members := honest.Members(); len(members) != 2 || members[1].Name != "hostile" {
			t.Errorf("Members() = %v, want honest and hostile", members)
		}
		stopHonest()
		stopHostile()
		<-honestResult
		<-hostileResult
	})
}
