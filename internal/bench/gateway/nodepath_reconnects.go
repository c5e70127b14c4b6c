package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

const (
	// reconnectTimeout bounds the time in which all kubelets must have their watches again.
	reconnectTimeout = 3 * time.Minute
	// filesPerKubelet are the open files of kube-gateway for a kubelet, and reservedFiles those for everything else.
	filesPerKubelet = 2
	reservedFiles   = 1000
)

// reconnection is what happened after the connections of all kubelets were closed.
type reconnection struct {
	kubelets, complete int
	// last is the time until all kubelets had their watches again; 0 if some never had.
	last     time.Duration
	p50, p99 float64 // seconds
	failures string
	// gateway, server and own are the CPU times of kube-gateway, kube-apiserver and this process.
	gateway, server, own time.Duration
	// event is the time until all kubelets received an event then.
	event time.Duration
}

// seconds returns the time until all kubelets had their watches again, or the time for which the run waited.
func (r reconnection) seconds() float64 {
	if r.complete < r.kubelets {
		return reconnectTimeout.Seconds()
	}
	return r.last.Seconds()
}

// raiseOpenFiles raises the limit on open files for so many kubelets, for this process and those that it starts. It returns
// how many kubelets are possible, which are fewer if the process may not raise the limit.
func raiseOpenFiles(kubelets int) (int, error) {
	needed := filesForKubelets(kubelets)
	limit, err := process.RaiseOpenFiles(needed)
	if err != nil || limit >= needed {
		return kubelets, err
	}
	return min(kubelets, kubeletsWithFiles(limit)), nil
}

// filesForKubelets returns how many open files kube-gateway needs for kubelets.
func filesForKubelets(kubelets int) uint64 { return uint64(filesPerKubelet*kubelets + reservedFiles) }

// kubeletsWithFiles returns how many kubelets are possible with a limit on open files; at least 1.
func kubeletsWithFiles(limit uint64) int {
	return int(max(limit, reservedFiles+filesPerKubelet)-reservedFiles) / filesPerKubelet
}

// reconnects closes the connections of all kubelets, and measures until all of them have their watches again.
func (p *nodePathLab) reconnects(ctx context.Context) error {
	table := p.table(&p.run.tables.reconnects, fmt.Sprintf("The connections of all kubelets are closed at once, and they open their %d watches again", len(kubeletResources)),
		"front", "kubelets", "with all watches", "p50, s", "p99, s", "last, s", "failed attempts", "then an event reached all after, s",
		"CPU of kube-gateway, s", "kube-apiserver, s", "k1m, s")
	m, err := p.measureReconnects(ctx)
	if err != nil && ctx.Err() == nil && !p.served() {
		// What kube-apiserver cannot do is a result. The limits are those of kube-gateway.
		p.Result.Note("Row reconnects, %s, %d kubelets: %v.", p.front.name, m.kubelets, err)
	} else if err != nil {
		return err
	}
	last, event, gateway := any(""), any(""), any("")
	if p.served() {
		gateway = m.gateway.Seconds()
	}
	if m.last > 0 {
		last = m.last.Seconds()
	}
	if m.event > 0 {
		event = m.event.Seconds()
	}
	p.run.reconnected[p.front.name] = m
	table.Add(p.front.name, m.kubelets, m.complete, m.p50, m.p99, last, m.failures, event,
		gateway, m.server.Seconds(), m.own.Seconds())
	return nil
}

// measureReconnects starts kubelets and closes their connections.
func (p *nodePathLab) measureReconnects(ctx context.Context) (m reconnection, err error) {
	m.kubelets = p.bounded("reconnects", p.run.own.Reconnects.N)
	service, err := p.newService(ctx, "reconnects")
	if err != nil {
		return m, err
	}
	// The first watches begin with the state of a cache, which costs the API servers least.
	g, err := p.startKubeletsServed(ctx, kubeletsOptions{prefix: "reconnecting", count: m.kubelets, version: "0", register: true})
	if err != nil {
		return m, err
	}
	defer g.stop()
	if err := p.AwaitQuiet(ctx); err != nil {
		return m, err
	}
	before, err := p.cpuTimes()
	if err != nil {
		return m, err
	}
	own := process.OwnCPUTime()
	p.mark("connections closed")
	g.disconnect()
	err = p.awaitReconnected(ctx, g)
	now := g.current()
	m.complete, m.last, m.failures = now.complete, now.last, now.failures.Describe()
	m.p50, m.p99, m.own = now.latencies.Seconds(50), now.latencies.Seconds(99), process.OwnCPUTime()-own
	after, failure := p.cpuTimes()
	if err = errors.Join(err, failure); err != nil {
		return m, err
	}
	m.gateway, m.server = after.gateway-before.gateway, after.server-before.server
	if m.last > 0 {
		m.event, err = p.deliver(ctx, service, g)
	}
	return m, err
}

// mark marks a moment in the charts of the front.
func (p *nodePathLab) mark(name string) {
	p.Result.Markers = append(p.Result.Markers, experiment.Marker{ChartSuffix: ", " + p.front.name, Name: name, Seconds: time.Since(p.Result.Time).Seconds()})
}

// awaitReconnected waits until all kubelets have their watches again. It is no error if some have not after
// [reconnectTimeout].
func (p *nodePathLab) awaitReconnected(ctx context.Context, g *kubelets) error {
	limited, stop := context.WithTimeout(ctx, reconnectTimeout)
	defer stop()
	err := p.await(limited, p.front.name+": kubelets with their watches again", len(g.all), g.complete)
	if ctx.Err() == nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, bulk.ErrStalled)) {
		p.Result.Note("Row reconnects, %s: %d of %d kubelets had their watches again after %s.", p.front.name, g.complete(), len(g.all), reconnectTimeout)
		return nil
	}
	return err
}

// deliver changes a Service, and returns the time until all kubelets have received the event.
func (p *nodePathLab) deliver(ctx context.Context, s watchedService, g *kubelets) (time.Duration, error) {
	received, begun := g.modified.Load(), time.Now()
	if err := s.change(ctx); err != nil {
		return 0, fmt.Errorf("changing a Service: %w", err)
	}
	err := p.await(ctx, p.front.name+": kubelets that received an event", len(g.all), func() int { return int(g.modified.Load() - received) })
	return time.Since(begun), err
}

// judgeReconnects appends the verdicts of the row reconnects.
func (r *nodePathRun) judgeReconnects() {
	m := r.reconnected[kubeGateway]
	r.Judge(limitReconnects, m.seconds(), m.kubelets, "")
	r.Result.Note("The kubelets of the row reconnects are simulated on the cores of the servers: the CPU of k1m, with the clients' part of TLS handshakes, prolongs the time. As client-go, they give up a handshake after %s.", handshakeTimeout)
}
