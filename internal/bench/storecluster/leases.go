package storecluster

import (
	"context"
	"fmt"
	"strconv"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
)

// leases measures the CPU of one member for a Lease update at constant rates.
func (b *bench) leases(ctx context.Context) error {
	table := b.Result.Table("Lease updates, one member", "store", "updates wanted, /s", "updates, /s", "p99, ms", "server's CPU per update, µs")
	for _, l := range limitLeaseRatio {
		cpu, operations := map[string]float64{}, 0
		for _, store := range b.options.Stores {
			report, err := b.measureLeases(ctx, store, l.rate)
			if err != nil {
				return fmt.Errorf("%s: %w", store, err)
			}
			table.Add(store, l.rate, report.OpsPerSecond, float64(report.LatencyMicros.P99)/1000, report.ServerCPUMicrosPerOp)
			cpu[store], operations = report.ServerCPUMicrosPerOp, int(report.Ops)
		}
		b.compare(experiment.Figure{Name: fmt.Sprintf("CPU of a Lease update at %d/s, one member", l.rate), Unit: "µs"}, cpu)
		b.judgeRatio(l.limit, storemembers.Etcd, storemembers.MemEtcd, cpu, operations)
	}
	return nil
}

func (b *bench) measureLeases(ctx context.Context, store string, rate int) (report storeserver.Report, err error) {
	task := b.Display.Task(store, 0)
	what := fmt.Sprintf("%d Lease updates a second", rate)
	task.Say(what)
	defer func() {
		if err != nil {
			progress.Fail(ctx, task, what)
			return
		}
		task.Done(fmt.Sprintf("%s: %s µs of CPU each", what, number.Text(report.ServerCPUMicrosPerOp)))
	}()
	server, err := b.lab.Fresh(ctx, store, b.options.Disk)
	if err != nil {
		return report, err
	}
	defer server.Discard()
	report, _, err = b.lab.Run(ctx, server, "lease-flood", "--clients", "50", "--connections", "2", "--leases", "20",
		"--rate", strconv.Itoa(rate), "--duration", b.options.Duration.D.String())
	b.Result.Errors.AddMany(report.Ops+report.Errors, report.ErrorsByKind)
	return report, err
}
