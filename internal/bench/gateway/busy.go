package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

const (
	busyClients = 60
	busyRate    = 300.0
)

// busy replaces one of three API servers by a server that is ready and answers every request with 429. It
// measures how many requests through a front get this answer at first and at the end.
func (l *lab) busy(ctx context.Context) error {
	table := l.Result.Table("One of three API servers answers every request with 429", "front", "clients", "requests, /s", "answered 429 in the first quarter, %", "in the last quarter, %", "p99 at first, ms", "at last, ms", "connections at last")
	busy, err := startBackend(l.target.pki, tooManyRequests)
	if err != nil {
		return err
	}
	defer busy.close()
	t := l.target
	t.servers = slices.Clone(t.servers)
	t.servers[victim] = busy.address
	for _, name := range l.names(haproxy, kubeGateway) {
		task := l.Display.Task(name+": one of three answers 429", 0)
		err := t.with(ctx, name, func(f *front) error {
			quarters, connections, err := l.measureBusy(ctx, f)
			if err != nil {
				return err
			}
			first, last := quarters[0], quarters[len(quarters)-1]
			table.Add(name, busyClients, busyRate, 100*first.Tally.Rate(), 100*last.Tally.Rate(), first.Latencies.Millis(99), last.Latencies.Millis(99), connections)
			task.Done(fmt.Sprintf("%.1f %%, then %.1f %%", 100*first.Tally.Rate(), 100*last.Tally.Rate()))
			return nil
		})
		if err != nil {
			task.Interrupt()
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// measureBusy sends requests through a front. It returns the load of each quarter of the time, and the
// connections at the end, before the clients close them.
func (l *lab) measureBusy(ctx context.Context, f *front) ([]experiment.Load, string, error) {
	clients, err := dial(ctx, f, l.tls, busyClients)
	if err != nil {
		return nil, "", err
	}
	defer clients.close()
	quarters := make([]experiment.Load, 4)
	for i := range quarters {
		quarter, end := context.WithTimeout(ctx, l.options.Settle.D/4)
		quarters[i] = experiment.Load{
			Workers: busyClients, Rate: busyRate, Kind: kindOf429, Latencies: experiment.NewLatencies(), Tally: experiment.NewTally(1),
			Do: func(ctx context.Context, _, worker int) error {
				_, err := clients.get(ctx, worker, smallPath, protobuf)
				return err
			},
		}
		quarters[i].Run(quarter)
		end()
	}
	return quarters, f.connections(), ctx.Err()
}

// kindOf429 counts only answers 429 as errors. Reads that fail because their connection moves are repeated by
// client-go.
func kindOf429(err error) string {
	if errors.Is(err, statusError(http.StatusTooManyRequests)) {
		return "429"
	}
	return ""
}

// connections returns the number of connections of a gateway by API server, as text.
func (f *front) connections() string {
	if f.page == "" {
		return ""
	}
	byServer, err := f.metric("kube_gateway_server_connections")
	if err != nil {
		return ""
	}
	all := values(byServer)
	slices.Sort(all)
	return fmt.Sprint(all)
}
