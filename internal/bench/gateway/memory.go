package gateway

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

// memory measures the memory of a front for each idle connection with a watch.
func (l *lab) memory(ctx context.Context) error {
	table := l.Result.Table("Memory of a front with idle connections, each with a watch", "front", "connections", "memory before, MiB", "after, MiB",
		"per connection, KiB", "CPU for opening a connection and its watch, µs")
	perConnection := map[string]float64{}
	for _, name := range l.names(haproxy, kubeGateway) {
		task := l.Display.Task(name+": idle connections with a watch", 0)
		err := l.target.with(ctx, name, func(f *front) error {
			m, err := l.measureMemory(ctx, f)
			if err != nil {
				return err
			}
			count := l.options.Idle.N
			perConnection[name] = float64(m.after-m.before) / kibibyte / float64(count)
			task.Done(fmt.Sprintf("%.1f KiB each", perConnection[name]))
			table.Add(name, count, float64(m.before)/mebibyte, float64(m.after)/mebibyte, perConnection[name], float64(m.cpu.Microseconds())/float64(count))
			return nil
		})
		if err != nil {
			task.Interrupt()
			return err
		}
	}
	l.Result.Note("The memory of a connection is resident memory of the front. Buffers of the kernel are not included.")
	l.Judge(limitConnection, perConnection[kubeGateway], l.options.Idle.N, "")
	l.compare(experiment.Figure{Name: "memory of a connection with a watch", Unit: "KiB"}, perConnection[kubeGateway], perConnection[haproxy])
	return nil
}

// frontMemory is the memory of a front in bytes before and after connections were opened, and the CPU time
// for that.
type frontMemory struct {
	before, after int64
	cpu           time.Duration
}

// measureMemory opens connections with a watch each, and waits until the memory of the front is stable.
func (l *lab) measureMemory(ctx context.Context, f *front) (m frontMemory, err error) {
	if m.before, err = f.id.SettledMemory(ctx); err != nil {
		return m, err
	}
	cpu, err := f.cpu()
	if err != nil {
		return m, err
	}
	err = l.withConnections(ctx, f, l.tls, l.options.Idle.N, func(c *connections) error {
		watching, stop := context.WithCancel(ctx)
		var group sync.WaitGroup
		defer group.Wait()
		defer stop()
		var events, opened, closed atomic.Int64
		path := "/api/v1/namespaces/" + namespace + "/configmaps?watch=1&resourceVersion=0"
		for i := range l.options.Idle.N {
			group.Go(func() {
				_ = c.watch(watching, i, path, func() { opened.Add(1) }, &events)
				closed.Add(1)
			})
		}
		if err := l.await(ctx, "watches opened", l.options.Idle.N, func() int { return int(opened.Load()) }); err != nil {
			return err
		}
		after, err := f.cpu()
		if err != nil {
			return err
		}
		m.cpu = after - cpu
		m.after, err = f.id.SettledMemory(ctx)
		if ended := closed.Load(); ended > 0 {
			return fmt.Errorf("%d of %d watches ended", ended, l.options.Idle.N)
		}
		return err
	})
	return m, err
}
