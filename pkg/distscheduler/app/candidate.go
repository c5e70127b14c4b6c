package app

import (
	"context"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// candidate is a leader election lock. A replica acquires or renews it only while it may lead.
type candidate struct {
	resourcelock.Interface
	// mayLead returns an error if this replica must not lead.
	mayLead func(context.Context) error
	// transitions returns the smallest number of transitions of the lock object. It counts the terms of
	// the leaders, and must not decrease if the object was deleted.
	transitions func() int64
	// tenure is extended with each write that acquires or renews the lock.
	tenure *membership.Tenure
}

func (c candidate) counted(record resourcelock.LeaderElectionRecord) resourcelock.LeaderElectionRecord {
	record.LeaderTransitions = max(record.LeaderTransitions, int(c.transitions()))
	return record
}

// Create creates the lock object and acquires it.
func (c candidate) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := c.mayLead(ctx); err != nil {
		return err
	}
	sent := time.Now()
	err := c.Interface.Create(ctx, c.counted(record))
	if err == nil {
		c.tenure.Renewed(sent)
	}
	return err
}

// Update acquires, renews or releases the lock. It can always release the lock.
func (c candidate) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity != c.Identity() {
		c.tenure.End()
		return c.Interface.Update(ctx, c.counted(record))
	}
	if err := c.mayLead(ctx); err != nil {
		return err
	}
	sent := time.Now()
	err := c.Interface.Update(ctx, c.counted(record))
	if err == nil {
		c.tenure.Renewed(sent)
	}
	return err
}
