package main

import (
	"context"
	"fmt"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"slices"
	"strconv"
)

const gibibyte = 1 << 30

// rows returns the rows of the table in the order of their measurement. The last three rows use the same large
// store: they measure its memory, its restart after a kill, and its longest pause.
func rows(l *lab) []row {
	both, alone := []string{ours, etcd}, []string{ours}
	keys := l.largeStore().title
	return []row{
		{
			ID: "put-client", Title: "put 1 KiB with etcd's benchmark tool, 500 clients",
			Unit: "µs CPU per put", Stores: both, Sample: benchmarkPut,
			FigureName: "etcd ÷ mem_etcd", Figure: etcdOverOurs, Limits: atLeast(5, 8),
		},
		{
			ID: "put", Title: "put 1 KiB at saturation, 500 clients",
			Unit: "µs CPU per put", Stores: both, Sample: cpuPerOp(l.saturating("put")...),
			FigureName: "µs", Figure: oursAlone, Limits: atMost(16, 8),
		},
		{
			ID: "lease", Title: "Lease update as Kubernetes does it, 500 clients",
			Unit: "µs CPU per update", Stores: both, Sample: cpuPerOp(l.saturating("lease-flood", "--leases", "20")...),
			FigureName: "µs", Figure: oursAlone, Limits: atMost(18, 9),
		},
		{
			ID: "fsync", Title: "put 1 KiB, fsync compared with buffered, 1,000 clients, on " + l.diskName,
			Unit: "fraction of throughput", Stores: both, Sample: fsyncShare,
			FigureName: "fsync ÷ buffered", Figure: oursAlone, Limits: atLeast(0.6, 0.85),
		},
		{
			ID: "watch", Title: "100 watchers of one prefix, 1 KiB values",
			Unit: "events per CPU second", Stores: both, Sample: eventsPerCPUSecond,
			FigureName: "mem_etcd ÷ etcd", Figure: oursOverEtcd, Limits: atLeast(5, 15),
		},
		{
			ID: "range-paged", Title: "range of " + thousands(l.scale(100_000)) + " × 1.5 KiB, in pages of 10,000",
			Unit: "s per read", Stores: both, Sample: secondsPerRead(l, "--page", "10000"),
			FigureName: "etcd ÷ mem_etcd", Figure: etcdOverOurs, Limits: atLeast(2, 4),
		},
		{
			ID: "range-stream", Title: "range of " + thousands(l.scale(100_000)) + " × 1.5 KiB, streamed",
			Unit: "s per read", Stores: both, Sample: secondsPerRead(l, "--stream"),
			FigureName: "etcd ÷ mem_etcd", Figure: etcdOverOurs, Limits: atLeast(2, 4),
		},
		{
			ID: "count", Title: "count of " + thousands(l.scale(1_000_000)) + " keys at saturation, 100 clients",
			Unit: "µs CPU per count", Stores: both, Once: true, Sample: readsOfPods("--count-only", "--clients", "100"),
			FigureName: "µs", Figure: oursAlone, Limits: atMost(20, 10),
		},
		{
			ID: "page", Title: "first page of 500 × 0.5 KiB of " + thousands(l.scale(1_000_000)) + " keys",
			Unit: "µs CPU per page", Stores: both, Once: true, Sample: readsOfPods("--page", "500", "--pages", "1", "--clients", "10"),
			FigureName: "etcd ÷ mem_etcd", Figure: etcdOverOurs, Limits: atLeast(4, 20),
		},
		{
			ID: "shared", Title: "p99 of puts that share a connection with a busy watch",
			Unit: "× p99 without the watch", Stores: both, Sample: sharedConnection,
			FigureName: "with ÷ without", Figure: oursAlone, Limits: atMost(3, 1.5),
		},
		{
			ID: "overhead", Title: "memory beyond key and value, " + thousands(l.scale(1_000_000)) + " keys of 48 B with 100–1000 B",
			Unit: "bytes per key", Stores: alone, Once: true, Sample: overhead,
			FigureName: "bytes", Figure: oursAlone, Limits: atMost(200, 120),
		},
		{
			ID: "resident", Title: "resident memory of " + keys,
			Unit: "GiB", Stores: alone, Once: true, Sample: residentGiB,
			FigureName: "GiB", Figure: oursAlone, Limits: atMost(5.5, 4.5),
		},
		{
			ID: "restart", Title: "restart after kill -9 with " + keys,
			Unit: "s", Stores: alone, Sample: restartSeconds,
			FigureName: "s", Figure: oursAlone, Limits: atMost(20, 8),
		},
		{
			ID: "pause", Title: "longest pause of writes with " + keys,
			Unit: "ms above idle", Stores: alone, Sample: longestPause,
			FigureName: "ms", Figure: oursAlone, Limits: atMost(10, 2),
		},
	}
}

// saturating returns the arguments of a workload with 500 clients, which saturate the store.
func (l *lab) saturating(workload string, more ...string) []string {
	return append([]string{workload, "--clients", "500", "--connections", "10", "--total", l.count(200_000)}, more...)
}

// count returns the scaled number of operations or keys as an argument of etcd-bench.
func (l *lab) count(full int) string { return strconv.Itoa(l.scale(full)) }

// scale returns a number of operations or keys, reduced to a tenth in a short run.
func (l *lab) scale(full int) int {
	if l.quick {
		return full / 10
	}
	return full
}

// thousands formats a multiple of 1000, such as 100k.
func thousands(count int) string { return fmt.Sprintf("%dk", count/1000) }

// benchmarkPut measures the CPU time of the store per put, with etcd's benchmark tool as the client.
func benchmarkPut(ctx context.Context, l *lab, store string) (sample, error) {
	s, err := l.Fresh(ctx, store, memory)
	if err != nil {
		return sample{}, err
	}
	defer s.Discard()
	before, err := s.CPU()
	if err != nil {
		return sample{}, err
	}
	// Short runs use the same number of puts. With fewer puts, most of the CPU time would be spent on
	// opening connections.
	const total = 100_000
	rate, command, err := l.RunBenchmark(ctx, s, "--conns", "10", "--clients", "500", "put",
		"--key-size", "48", "--val-size", "1024", "--sequential-keys",
		"--key-space-size", strconv.Itoa(total), "--total", strconv.Itoa(total))
	if err != nil {
		return sample{}, err
	}
	after, err := s.CPU()
	micros := (after - before).Seconds() * 1e6 / float64(total)
	return sample{
		Value: micros, Details: map[string]float64{"opsPerSecond": rate},
		Commands: []string{s.Command, command},
	}, err
}

// onFresh measures one run of etcd-bench on an empty store.
func onFresh(value func(storeserver.Report) float64, args ...string) sampler {
	return func(ctx context.Context, l *lab, store string) (sample, error) {
		s, err := l.Fresh(ctx, store, memory)
		if err != nil {
			return sample{}, err
		}
		defer s.Discard()
		r, command, err := l.Run(ctx, s, args...)
		return sample{Value: value(r), Details: r.Details(), Commands: []string{s.Command, command}}, err
	}
}

// cpuPerOp measures the CPU time of the server per operation, in microseconds.
func cpuPerOp(args ...string) sampler {
	return onFresh(func(r storeserver.Report) float64 { return r.ServerCPUMicrosPerOp }, args...)
}

// eventsPerCPUSecond measures how many watch events the server delivers per second of its CPU time.
func eventsPerCPUSecond(ctx context.Context, l *lab, store string) (sample, error) {
	perSecond := func(r storeserver.Report) float64 {
		return float64(r.Watch.Events) / (r.ServerCPUMicrosPerOp * float64(r.Ops) / 1e6)
	}
	watch := onFresh(perSecond, "watch", "--watchers", "100", "--clients", "10",
		"--total", l.count(10_000), "--key-space-size", "1000", "--val-size", "1024")
	return watch(ctx, l, store)
}

// secondsPerRead measures the median duration of a read of all keys, in seconds.
func secondsPerRead(l *lab, more ...string) sampler {
	args := []string{"range", "--key-space-size", l.count(100_000), "--val-size", "1536", "--total", "11"}
	perRead := func(r storeserver.Report) float64 { return float64(r.LatencyMicros.P50) / 1e6 }
	return onFresh(perRead, append(args, more...)...)
}

// readsOfPods measures the CPU time of the server per read, in microseconds. The reads are of the keys of a
// million pods, which are written first.
func readsOfPods(how ...string) sampler {
	return func(ctx context.Context, l *lab, store string) (sample, error) {
		s, err := l.Fresh(ctx, store, memory)
		if err != nil {
			return sample{}, err
		}
		defer s.Discard()
		_, fill, err := l.Run(ctx, s, fillArgs(group(pods, l.scale(1_000_000), 512))...)
		if err != nil {
			return sample{}, err
		}
		args := []string{"range", "--prefix", pods, "--connections", "10", "--total", readsOf(store)}
		r, command, err := l.Run(ctx, s, append(args, how...)...)
		return sample{Value: r.ServerCPUMicrosPerOp, Details: r.Details(), Commands: []string{s.Command, fill, command}}, err
	}
}

// readsOf returns the number of reads in [readsOfPods]. etcd takes milliseconds for each.
func readsOf(store string) string {
	if store == etcd {
		return "200"
	}
	return "20000"
}

// fsyncShare measures the throughput with fsync as a fraction of the throughput without fsync.
func fsyncShare(ctx context.Context, l *lab, store string) (sample, error) {
	fsyncArgs, bufferedArgs := []string{"--wal-mode", "fsync"}, []string{"--wal-mode", "buffered"}
	if store == etcd {
		fsyncArgs, bufferedArgs = nil, []string{"--unsafe-no-fsync"}
	}
	duration := "5s"
	if l.quick {
		duration = "1s"
	}
	var reports [2]storeserver.Report
	var commands []string
	for i, args := range [][]string{bufferedArgs, fsyncArgs} {
		s, err := l.Fresh(ctx, store, l.disk, args...)
		if err != nil {
			return sample{}, err
		}
		r, command, err := l.Run(ctx, s, "put", "--clients", "1000", "--connections", "10", "--duration", duration)
		s.Discard()
		if err != nil {
			return sample{}, err
		}
		reports[i] = r
		commands = append(commands, s.Command, command)
	}
	buffered, fsync := reports[0], reports[1]
	return sample{
		Value: fsync.OpsPerSecond / buffered.OpsPerSecond,
		Details: map[string]float64{
			"bufferedPerSecond": buffered.OpsPerSecond, "bufferedClientCpuMicrosPerOp": buffered.ClientCPUMicrosPerOp,
			"fsyncPerSecond": fsync.OpsPerSecond, "fsyncServerCpuMicrosPerOp": fsync.ServerCPUMicrosPerOp,
		},
		Commands: commands,
	}, nil
}

// sharedRounds is the number of measurements with watchers, and also the number without watchers. The lowest
// p99 of each kind is used, because other load on the machine can only increase a latency.
const sharedRounds = 5

// sharedConnection measures the p99 latency of 1,000 puts/s on a connection that also carries the events of 50
// watchers, divided by the p99 latency without watchers.
func sharedConnection(ctx context.Context, l *lab, store string) (sample, error) {
	s, err := l.Fresh(ctx, store, memory)
	if err != nil {
		return sample{}, err
	}
	defer s.Discard()
	load := []string{"--connections", "1", "--clients", "100", "--rate", "1000", "--total", l.count(3_000), "--val-size", "1024"}
	quiet := append([]string{"put"}, load...)
	busy := append([]string{"watch", "--shared", "--watchers", "50"}, load...)
	p99s := map[bool][]float64{}
	commands := []string{s.Command}
	for i := range 2 * sharedRounds {
		args, watched := quiet, i%2 == 1
		if watched {
			args = busy
		}
		r, command, err := l.Run(ctx, s, args...)
		if err != nil {
			return sample{}, err
		}
		p99s[watched] = append(p99s[watched], float64(r.LatencyMicros.P99))
		commands = append(commands, command)
	}
	without, with := slices.Min(p99s[false]), slices.Min(p99s[true])
	return sample{
		Value:    with / without,
		Note:     fmt.Sprintf("p99 in µs: %.0f without watchers, %.0f with watchers", without, with),
		Details:  map[string]float64{"p99WithoutMicros": without, "p99WithMicros": with},
		Commands: commands,
	}, nil
}
