package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

const smallPath = "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases/" + smallObject

// The backends of the row cpu.
const (
	realBackend   = component.RoleAPIServer
	replayBackend = "replay"
)

// loads are the loads of the row cpu, in this order: as many requests as possible, and half as many.
var loads = []string{"highest", "half"}

// cpu measures the CPU time of the fronts for a small GET, with an API server and with a backend that
// costs less, at the highest rate and at half of it.
func (l *lab) cpu(ctx context.Context) error {
	table := l.Result.Table("CPU of the front for a small GET", "front", "backend", "load", "connections", "requests, /s",
		"CPU of the front, µs", "CPU of the load generator, µs", "p50, ms", "p99, ms")
	l.Result.Note("The backend %q repeats a recorded response of the API server, which costs less than executing the request. It runs in the load generator.", replayBackend)
	replay, err := l.replay(ctx)
	if err != nil {
		return err
	}
	defer replay.close()
	figures := map[string]getsResult{} // by front, backend and load
	for _, backend := range []string{realBackend, replayBackend} {
		t := l.target
		if backend == replayBackend {
			t.servers = []string{replay.address}
		}
		for _, name := range l.names(direct, haproxy, kubeGateway) {
			err := l.measureCPU(ctx, t, name, backend, func(load string, r getsResult) {
				table.Add(name, backend, load, l.options.Connections.N, r.perSecond, r.cpu, r.ownCPU, r.p50, r.p99)
				figures[name+backend+load] = r
			})
			if err != nil {
				return err
			}
		}
	}
	for _, load := range loads {
		ours := figures[kubeGateway+replayBackend+load]
		limit := limitCPU
		limit.Name += ", " + load + " load"
		l.Judge(limit, ours.cpu, ours.requests, "")
		for _, backend := range []string{realBackend, replayBackend} {
			name := fmt.Sprintf("CPU for a small GET, %s, %s load", backend, load)
			l.compare(experiment.Figure{Name: name, Unit: "µs"}, figures[kubeGateway+backend+load].cpu, figures[haproxy+backend+load].cpu)
		}
	}
	return nil
}

// compare appends the ratio of kube-gateway to HAProxy, if both were measured.
func (l *lab) compare(f experiment.Figure, ours, peers float64) {
	own, peer := f, f
	own.Value, peer.Value = ours, peers
	l.Result.Compare(kubeGateway, haproxy, []experiment.Figure{own}, []experiment.Figure{peer})
}

// replay starts the backend that repeats a response of the API server.
func (l *lab) replay(ctx context.Context) (*backend, error) {
	front := &front{name: direct, addresses: l.target.servers}
	c, err := dial(ctx, front, l.tls, 1)
	if err != nil {
		return nil, err
	}
	defer c.close()
	answer, err := record(ctx, c, smallPath)
	if err != nil {
		return nil, err
	}
	return startBackend(l.target.pki, answer)
}

// measureCPU measures small GETs through a front: first as many as possible, then half as many.
func (l *lab) measureCPU(ctx context.Context, t target, name, backend string, report func(load string, r getsResult)) error {
	return t.with(ctx, name, func(f *front) error {
		return l.withConnections(ctx, f, l.exempt, l.options.Connections.N, func(c *connections) error {
			g := gets{c: c, path: smallPath}
			for _, load := range loads {
				task := l.Display.Task(fmt.Sprintf("%s, %s, %s load", name, backend, load), 0)
				r, err := g.run(ctx, f, l.options.Duration.D)
				if err != nil {
					task.Interrupt()
					return err
				}
				task.Done(fmt.Sprintf("%.0f requests/s, %.1f µs", r.perSecond, r.cpu))
				l.Result.Errors.Merge(r.tally)
				report(load, r)
				g.rate = r.perSecond / 2
			}
			return nil
		})
	})
}

// withConnections opens connections to a front, calls use, and closes them.
func (l *lab) withConnections(ctx context.Context, f *front, credentials *tls.Config, count int, use func(*connections) error) error {
	c, err := dial(ctx, f, credentials, count)
	if err != nil {
		return err
	}
	defer c.close()
	return use(c)
}

// latency measures the latency of small GETs at half of the highest rate of direct connections. The fronts take
// turns, so that other load on the machine affects all of them.
func (l *lab) latency(ctx context.Context) error {
	names := l.names(direct, haproxy, kubeGateway)
	fronts, closeAll, err := l.connectAll(ctx, names, l.exempt, l.options.Connections.N)
	defer closeAll()
	if err != nil {
		return err
	}
	highest, err := gets{c: fronts[direct].c, path: smallPath}.run(ctx, fronts[direct].front, l.options.Duration.D)
	if err != nil {
		return err
	}
	rate := highest.perSecond / 2
	p50, p99, requests := map[string][]float64{}, map[string][]float64{}, 0
	table := l.Result.Table(fmt.Sprintf("Latency of a small GET at %.0f requests/s, half of the highest rate of direct connections", rate),
		"front", "round", "p50, ms", "p99, ms", "CPU of the front, µs")
	for round := range l.options.Rounds.N {
		for _, name := range names {
			task := l.Display.Task(fmt.Sprintf("%s, round %d", name, round+1), 0)
			r, err := gets{c: fronts[name].c, path: smallPath, rate: rate}.run(ctx, fronts[name].front, l.options.Duration.D)
			if err != nil {
				task.Interrupt()
				return err
			}
			task.Done(fmt.Sprintf("p50 %.2f ms, p99 %.2f ms", r.p50, r.p99))
			l.Result.Errors.Merge(r.tally)
			p50[name], p99[name] = append(p50[name], r.p50), append(p99[name], r.p99)
			requests += r.requests
			table.Add(name, round+1, r.p50, r.p99, r.cpu)
		}
	}
	added := func(figures map[string][]float64) float64 {
		return median(figures[kubeGateway]) - median(figures[direct])
	}
	l.Judge(limitP50, added(p50), requests, "")
	l.Judge(limitP99, added(p99), requests, "")
	l.compare(experiment.Figure{Name: "p50 of a small GET at half load", Unit: "ms"}, median(p50[kubeGateway]), median(p50[haproxy]))
	l.compare(experiment.Figure{Name: "p99 of a small GET at half load", Unit: "ms"}, median(p99[kubeGateway]), median(p99[haproxy]))
	return nil
}

// connected is a front with connections to it.
type connected struct {
	*front
	c *connections
}

// connectAll starts fronts, which share the CPUs of the clients, and opens connections to each. The caller
// must call closeAll, also after an error.
func (l *lab) connectAll(ctx context.Context, names []string, credentials *tls.Config, count int) (fronts map[string]connected, closeAll func(), err error) {
	fronts = map[string]connected{}
	unpin := pinClients(l.Result.Machine.Cores)
	closeAll = func() {
		for _, f := range fronts {
			if f.c != nil {
				f.c.close()
			}
			f.front.stop()
		}
		unpin()
	}
	t := l.target
	_, t.cpus = coreLists(l.Result.Machine.Cores)
	for _, name := range names {
		f, err := t.start(ctx, name)
		if err != nil {
			return fronts, closeAll, err
		}
		fronts[name] = connected{front: f}
		c, err := dial(ctx, f, credentials, count)
		if err != nil {
			return fronts, closeAll, err
		}
		fronts[name] = connected{f, c}
	}
	return fronts, closeAll, nil
}

// median returns the median of at least one value; 0 of none.
func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
