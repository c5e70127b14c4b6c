package storecluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
)

const (
	// probeInterval is the time between two puts of a prober. Each put is sent whether or not earlier ones were answered,
	// so that a request that was lost with a leader does not look like a store that does not write.
	probeInterval = 5 * time.Millisecond
	// settledAcks is the number of acknowledged puts after which a store is regarded as writing again.
	settledAcks = 50
)

// prober puts keys at a constant rate, and records the longest time without an acknowledged put.
type prober struct {
	clients []*clientv3.Client
	cancel  context.CancelFunc
	group   sync.WaitGroup

	mu      sync.Mutex
	last    time.Time
	longest time.Duration
	// acks is the number of acknowledged puts that were sent after the mark.
	acks int
	mark time.Time
}

// startProber starts a prober that puts at these members in turn, and waits until the store writes.
func startProber(ctx context.Context, members []*storemembers.Member) (*prober, error) {
	p := &prober{}
	for _, m := range members {
		client, err := storemembers.Dial(ctx, m.ClientURL)
		if err != nil {
			p.close()
			return nil, err
		}
		p.clients = append(p.clients, client)
	}
	probing, cancel := context.WithCancel(ctx)
	p.cancel = cancel
	p.begin()
	p.group.Go(func() { p.run(probing) })
	if err := p.await(ctx, settledAcks); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// run sends puts until ctx is done.
func (p *prober) run(ctx context.Context) {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		client := p.clients[n%len(p.clients)]
		p.group.Go(func() {
			sent := time.Now()
			if _, err := client.Put(ctx, fmt.Sprint("probe-", n%100), "x"); err == nil {
				p.acknowledged(sent, time.Now())
			}
		})
	}
}

func (p *prober) acknowledged(sent, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.longest = max(p.longest, at.Sub(p.last))
	p.last = at
	if sent.After(p.mark) {
		p.acks++
	}
}

// begin starts the recording: what was before is forgotten.
func (p *prober) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.longest = time.Now(), 0
	p.acks, p.mark = 0, p.last
}

// await waits until a number of puts was acknowledged that were sent after this call.
func (p *prober) await(ctx context.Context, acks int) error {
	p.mu.Lock()
	p.acks, p.mark = 0, time.Now()
	p.mu.Unlock()
	for {
		p.mu.Lock()
		done := p.acks >= acks
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no writes were acknowledged: %w", context.Cause(ctx))
		case <-time.After(probeInterval):
		}
	}
}

// pause returns the longest time without an acknowledged put since begin.
func (p *prober) pause() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.longest
}

// close stops the prober.
func (p *prober) close() {
	if p.cancel != nil {
		p.cancel()
		p.group.Wait()
	}
	for _, client := range p.clients {
		_ = client.Close()
	}
}
