package controllermanager

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/k8s-1m/k8s-1m/internal/controllermanager/fence"
)

// leaseInMemory is a lock object that no server holds.
type leaseInMemory struct {
	resourcelock.Interface
	record  resourcelock.LeaderElectionRecord
	failing error
	updates int
}

func (l *leaseInMemory) Identity() string { return "own" }
func (l *leaseInMemory) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record := l.record
	return &record, nil, nil
}

func (l *leaseInMemory) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	if l.failing != nil {
		return l.failing
	}
	l.record = record
	l.updates++
	return nil
}

func (l *leaseInMemory) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

func newTestLock(mayLead func() error) (*lock, *leaseInMemory) {
	lease := &leaseInMemory{}
	return &lock{Interface: lease, fence: fence.New(), renewDeadline: time.Hour, mayLead: mayLead, lost: make(chan struct{})}, lease
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestLockOpensFence(t *testing.T) {
	notYet := errNotWarm
	l, lease := newTestLock(func() error { return notYet })
	ctx, own := context.Background(), resourcelock.LeaderElectionRecord{HolderIdentity: "own"}
	if err := l.Update(ctx, own); !errors.Is(err, errNotWarm) || lease.updates != 0 {
		t.Fatalf("a process that is not warm acquired the lease: %v", err)
	}
	notYet = nil
	lease.failing = errors.New("conflict")
	if err := l.Create(ctx, own); err == nil || l.fence.Opened() {
		t.Fatalf("the fence is open without the lease: %v", err)
	}
	lease.failing = nil
	if err := l.Update(ctx, own); err != nil || !l.fence.Opened() {
		t.Fatalf("the fence is closed with the lease: %v", err)
	}
	notYet = errNotWarm
	if err := l.Update(ctx, own); err != nil {
		t.Fatalf("the leader cannot renew the lease: %v", err)
	}
}

func TestLockNoticesAnotherHolder(t *testing.T) {
	l, lease := newTestLock(func() error { return nil })
	ctx := context.Background()
	lease.record.HolderIdentity = "other"
	if _, _, err := l.Get(ctx); err != nil || isClosed(l.lost) {
		t.Fatalf("a standby lost the lease: %v", err)
	}
	if err := l.Update(ctx, resourcelock.LeaderElectionRecord{HolderIdentity: "own"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Get(ctx); err != nil || isClosed(l.lost) {
		t.Fatalf("the leader lost its own lease: %v", err)
	}
	lease.record.HolderIdentity = "other"
	for range 2 {
		if _, _, err := l.Get(ctx); err != nil || !isClosed(l.lost) {
			t.Fatalf("the leader did not notice the other holder: %v", err)
		}
	}
}

func TestReleaseLeavesTheLeaseOfOthers(t *testing.T) {
	l, lease := newTestLock(func() error { return nil })
	lease.record.HolderIdentity = "other"
	if err := l.release(context.Background()); err != nil || lease.record.HolderIdentity != "other" {
		t.Fatalf("released the lease of another process: %v, %+v", err, lease.record)
	}
	lease.record.HolderIdentity = "own"
	if err := l.release(context.Background()); err != nil || lease.record.HolderIdentity != "" || lease.record.LeaseDurationSeconds != 1 {
		t.Fatalf("the lease is not released: %v, %+v", err, lease.record)
	}
}
