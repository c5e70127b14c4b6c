package network

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/agent"
	"github.com/k8s-1m/k8s-1m/internal/network/lab"
	"github.com/k8s-1m/k8s-1m/internal/network/probe"
)

const (
	// askers is the number of pods that ask at the same time.
	askers   = 64
	mebibyte = 1 << 20
)

// lab measures the row lab.
func (b *bench) lab(ctx context.Context) error {
	nodes, podsPerNode := b.options.Nodes.N, b.options.Pods.N
	timings := &lab.Timings{}
	begin := time.Now()
	return b.withLab(ctx, agent.ModeRouted, nodes, podsPerNode, timings, func(l *lab.Lab) error {
		took := time.Since(begin)
		reached, err := b.talk(ctx, l)
		if err != nil {
			return err
		}
		total := nodes * podsPerNode
		resident := agentMemory(l)
		b.Result.Table("Lab", "nodes", "pods", "reached", "time to build, s", "add a pod, median, ms", "add a pod, p99, ms", "memory of an agent, MiB").
			Add(nodes, total, reached, took.Seconds(), millis(timings.Quantile(0.5)), millis(timings.Quantile(0.99)), resident/mebibyte)
		b.Result.Errors.AddMany(int64(total), map[string]int64{"pod that does not reach another": int64(total - reached)})
		b.Judge(limitPods, float64(reached), total, "")
		b.Judge(limitAdd, millis(timings.Quantile(0.99)), total, "")
		return nil
	})
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// agentMemory returns the mean resident memory of the agents in bytes.
func agentMemory(l *lab.Lab) (mean float64) {
	nodes := l.Nodes()
	for _, n := range nodes {
		if usage, err := n.Agent.Usage(); err == nil {
			mean += float64(usage.Resident) / float64(len(nodes))
		}
	}
	return mean
}

// talk lets each pod ask a pod of the next node, and returns how many got an answer that has seen their own address.
func (b *bench) talk(ctx context.Context, l *lab.Lab) (reached int, err error) {
	nodes := l.Nodes()
	task := b.Display.Task("pods reach each other", len(nodes)*len(nodes[0].Pods))
	var servers []io.Closer
	defer func() {
		for _, s := range servers {
			_ = s.Close()
		}
	}()
	for _, n := range nodes {
		for _, pod := range n.Pods {
			server, err := probe.Serve(pod.NS, pod.Address)
			if err != nil {
				task.Fail(err.Error())
				return 0, err
			}
			servers = append(servers, server)
		}
	}
	var wait sync.WaitGroup
	var answered, asked atomic.Int64
	limit := make(chan struct{}, askers)
	for i, n := range nodes {
		next := nodes[(i+1)%len(nodes)].Pods
		for j, pod := range n.Pods {
			limit <- struct{}{}
			wait.Go(func() {
				defer func() { <-limit }()
				if ctx.Err() == nil && probe.Reach(pod.NS, pod.Address, next[j%len(next)].Address, b.options.Timeout) == nil {
					answered.Add(1)
				}
				task.Set(int(asked.Add(1)))
			})
		}
	}
	wait.Wait()
	task.Done(fmt.Sprintf("%d answers", answered.Load()))
	return int(answered.Load()), ctx.Err()
}
