package storecluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
)

const (
	// putMeasurements is the number of measurements, of which the median counts.
	putMeasurements = 3
	warmUp          = 2 * time.Second
	// clientsPerConnection is the number of clients that share a connection.
	clientsPerConnection = 32
)

// puts measures the CPU of all members for a put of 1 KiB.
func (b *bench) puts(ctx context.Context) error {
	table := b.Result.Table("Puts of 1 KiB, saturated", "store", "members", "clients", "puts, /s", "p50, ms", "p99, ms", "CPU of all members, µs", "client's CPU, µs")
	cpu, operations := map[string]float64{}, 0
	err := b.each(ctx, "puts", func(ctx context.Context, store string, cluster *storemembers.Cluster) (string, error) {
		if _, _, err := b.measurePuts(ctx, cluster, warmUp); err != nil {
			return "", err
		}
		var micros []float64
		for range putMeasurements {
			report, used, err := b.measurePuts(ctx, cluster, b.options.Duration.D)
			if err != nil {
				return "", err
			}
			micros = append(micros, used)
			operations = int(report.Ops)
			l := report.LatencyMicros
			table.Add(store, len(cluster.Members), b.options.Clients, report.OpsPerSecond, float64(l.P50)/1000, float64(l.P99)/1000, used, report.ClientCPUMicrosPerOp)
		}
		slices.Sort(micros)
		cpu[store] = micros[putMeasurements/2]
		return fmt.Sprintf("%s µs of CPU of all members for a put", number.Text(cpu[store])), nil
	})
	if err != nil {
		return err
	}
	b.compare(experiment.Figure{Name: "CPU of all members for a put", Unit: "µs"}, cpu)
	if cpu[storemembers.MemEtcd] > 0 {
		b.judge(limitPut, cpu[storemembers.MemEtcd], operations, "")
	} else {
		b.judge(limitPut, 0, 0, b.notMeasured())
	}
	b.judgeRatio(limitPutRatio, storemembers.Etcd, storemembers.MemEtcd, cpu, operations)
	return nil
}

// measurePuts puts as much as the members can do. It returns the report of the load generator, and the CPU of all members
// for a put in microseconds.
func (b *bench) measurePuts(ctx context.Context, cluster *storemembers.Cluster, duration time.Duration) (report storeserver.Report, micros float64, err error) {
	before, err := cluster.CPU()
	if err != nil {
		return report, 0, err
	}
	connections := max(len(cluster.Members), b.options.Clients/clientsPerConnection)
	client, err := b.lab.BenchAt(ctx, cluster.Endpoints(), "put", "--clients", strconv.Itoa(b.options.Clients), "--connections", strconv.Itoa(connections),
		"--duration", duration.String(), "--val-size", "1024", "--key-space-size", "100000")
	if err != nil {
		return report, 0, err
	}
	if report, err = client.Report(ctx); err != nil {
		return report, 0, err
	}
	after, err := cluster.CPU()
	if err != nil {
		return report, 0, err
	}
	b.Result.Errors.AddMany(report.Ops+report.Errors, report.ErrorsByKind)
	return report, (after - before).Seconds() * 1e6 / float64(report.Ops), nil
}
