package storemembers

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	dialTimeout  = 5 * time.Second
	probeTimeout = 5 * time.Second
	pollInterval = 20 * time.Millisecond
)

// Status is the answer of a member about itself.
type Status struct {
	ID, Leader, Term uint64
	Learner          bool
}

// Status asks a member for its state.
func (m *Member) Status(ctx context.Context) (Status, error) {
	client, err := Dial(ctx, m.ClientURL)
	if err != nil {
		return Status{}, err
	}
	defer client.Close()
	return m.status(ctx, client)
}

func (m *Member) status(ctx context.Context, client *clientv3.Client) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	answer, err := client.Status(ctx, m.ClientURL)
	if err != nil {
		return Status{}, err
	}
	return Status{ID: answer.Header.MemberId, Leader: answer.Leader, Term: answer.RaftTerm, Learner: answer.IsLearner}, nil
}

// healthy returns nil if a member is a voter and answers a linearizable read, which a member does only if it has
// applied what the leader has committed.
func (m *Member) healthy(ctx context.Context) error {
	client, err := Dial(ctx, m.ClientURL)
	if err != nil {
		return err
	}
	defer client.Close()
	status, err := m.status(ctx, client)
	switch {
	case err != nil:
		return err
	case status.Learner:
		return fmt.Errorf("%s is a learner", m.Name)
	case status.Leader == 0:
		return fmt.Errorf("%s knows no leader", m.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err = client.Get(ctx, "health")
	return err
}

// AwaitHealthy waits until each member serves linearizable reads. The error names the member that does not, and its log.
func (c *Cluster) AwaitHealthy(ctx context.Context) error {
	for _, m := range c.Members {
		if err := m.AwaitHealthy(ctx); err != nil {
			return err
		}
	}
	return nil
}

// AwaitHealthy waits until the member serves linearizable reads.
func (m *Member) AwaitHealthy(ctx context.Context) error {
	for {
		if !m.Running() {
			return fmt.Errorf("%s has ended; its log is %s", m.Name, m.LogFile())
		}
		err := m.healthy(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w; its log is %s", m.Name, err, m.LogFile())
		case <-time.After(pollInterval):
		}
	}
}

// Leader returns the member that leads. It waits until one does that calls itself the leader.
func (c *Cluster) Leader(ctx context.Context) (*Member, error) {
	for {
		for _, m := range c.Members {
			if !m.Running() || m.paused {
				continue
			}
			if status, err := m.Status(ctx); err == nil && status.Leader != 0 && status.Leader == status.ID {
				return m, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no member leads: %w", context.Cause(ctx))
		case <-time.After(pollInterval):
		}
	}
}

// CPU returns the CPU time of the processes of all members.
func (c *Cluster) CPU() (sum time.Duration, err error) {
	for _, m := range c.Members {
		used, err := m.CPU()
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}
