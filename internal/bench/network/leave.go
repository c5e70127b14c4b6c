package network

import (
	"context"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/agent"
	"github.com/k8s-1m/k8s-1m/internal/network/lab"
)

const (
	leaveNodes, leavePods = 5, 4
	leavePoll             = time.Millisecond
)

// leave measures the row leave.
func (b *bench) leave(ctx context.Context) error {
	table := b.Result.Table("A node leaves", "mode", "nodes that left", "traces before", "gone after, median, s", "gone after, longest, s")
	worst, worstMode, count := 0.0, "", 0
	for _, mode := range agent.Modes {
		err := b.withLab(ctx, mode, leaveNodes, leavePods, &lab.Timings{}, func(l *lab.Lab) error {
			var times []float64
			before := 0
			for i := range b.options.Leaves.N {
				traces, seconds, err := b.leaveOnce(ctx, l, leaveNodes+i)
				if err != nil {
					return err
				}
				times, before = append(times, seconds), max(before, traces)
			}
			middle := median(times)
			longest := times[len(times)-1]
			table.Add(mode, len(times), before, middle, longest)
			count += len(times)
			if longest >= worst {
				worst, worstMode = longest, mode
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.Judge(limitLeave, worst, count, worstMode)
	b.Result.Note("A node leaves as when its virtual machine is deleted: its agent is killed. The lab's provider then removes the port, the route and its router's neighbours of the node. " +
		"Traces are the port, and routes and neighbours of the node at the provider and at other nodes.")
	return nil
}

// leaveOnce lets all pods talk, so that tables are full, and deletes the last node. A new node takes its place.
func (b *bench) leaveOnce(ctx context.Context, l *lab.Lab, last int) (traces int, seconds float64, err error) {
	if _, err := b.talk(ctx, l); err != nil {
		return 0, 0, err
	}
	nodes := l.Nodes()
	leaving := nodes[len(nodes)-1]
	before, err := l.Traces(leaving.Number, leaving.Plan)
	if err != nil {
		return 0, 0, err
	}
	if len(before) == 0 {
		return 0, 0, fmt.Errorf("nothing knows %s before it leaves", leaving.Plan.Name)
	}
	start := time.Now()
	if err := l.RemoveNode(ctx, leaving); err != nil {
		return 0, 0, err
	}
	for {
		left, err := l.Traces(leaving.Number, leaving.Plan)
		if err != nil {
			return 0, 0, err
		}
		seconds = time.Since(start).Seconds()
		if len(left) == 0 {
			break
		}
		if seconds > b.options.Timeout.Seconds() {
			return 0, 0, fmt.Errorf("%s is still known after %.0f s: %v", leaving.Plan.Name, seconds, left)
		}
		time.Sleep(leavePoll)
	}
	next, err := l.AddNode(ctx, last+1)
	if err != nil {
		return 0, 0, err
	}
	for number := 1; number <= leavePods; number++ {
		if _, _, err := next.AddPod(ctx, number); err != nil {
			return 0, 0, err
		}
	}
	return len(before), seconds, nil
}
