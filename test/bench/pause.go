package main

import (
	"context"
	"errors"
	"fmt"
	"github.com/k8s-1m/k8s-1m/internal/bench/storeserver"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// The probe starts one small put per millisecond, even if earlier puts have not returned yet.
	probeRate = "1000"
	// The probe starts this long before a disturbance and ends this long after it.
	probeMargin = time.Second
	// Maximum latency of the slowest put on the idle store in milliseconds. Pauses are measured relative to it. If
	// it is longer, the machine is too busy for the measurement.
	noiseLimitMillis = 10

	// Size of the log at which the store takes a snapshot in this row, and the time limit for the snapshot. The size
	// is small, so that a moderate load reaches it.
	snapshotLogBytes = 16 << 20
	snapshotTimeout  = 2 * time.Minute
)

// longestPause measures the latency of the slowest put while the store compacts, takes a snapshot, or returns
// a million keys. The result is the difference to the slowest put on the idle store.
func longestPause(ctx context.Context, l *lab, _ string) (sample, error) {
	p, err := l.filledLargeStore(ctx)
	if err != nil {
		return sample{}, err
	}
	// Writing the Leases again creates old versions, which the compaction removes.
	_, renewal, err := l.Run(ctx, p.server, fillArgs(p.leases())...)
	if err != nil {
		return sample{}, err
	}
	if err := p.restart(ctx, l, "--snapshot-log-bytes", strconv.Itoa(snapshotLogBytes)); err != nil {
		return sample{}, err
	}
	result := sample{Details: map[string]float64{}, Commands: append(p.commands, renewal, p.server.Command)}
	quiet := 0.0
	var longest []string
	for _, d := range disturbances(l) {
		millis, probe, err := l.probe(ctx, p.server, d.run)
		if err != nil {
			return sample{}, fmt.Errorf("%s: %w", d.name, err)
		}
		result.Details[d.name+"Millis"] = millis
		result.Commands = append(result.Commands, probe)
		longest = append(longest, fmt.Sprintf("%s %.1f", d.name, millis))
		if d.name == "quiet" {
			quiet = millis
		} else {
			result.Value = max(result.Value, millis-quiet)
		}
	}
	if quiet > noiseLimitMillis && !l.quick {
		return sample{}, fmt.Errorf("the machine is too busy: the slowest put on the idle store took %.1f ms", quiet)
	}
	result.Note = "slowest put in ms: " + strings.Join(longest, ", ")
	return result, nil
}

// disturbance is an operation that runs during the probe.
type disturbance struct {
	name string
	run  func(context.Context, *storeserver.Server) error
}

// disturbances returns the operations during which the slowest put is measured. The first is no operation.
func disturbances(l *lab) []disturbance {
	prefix := strings.TrimSuffix(nodes, "node-")
	quiet := 10 * time.Second
	if l.quick {
		quiet = 3 * time.Second
	}
	return []disturbance{
		{"quiet", func(ctx context.Context, _ *storeserver.Server) error { return sleep(ctx, quiet) }},
		{"range", func(ctx context.Context, s *storeserver.Server) error { return l.read(ctx, s, "--prefix", prefix) }},
		{"rangeStream", func(ctx context.Context, s *storeserver.Server) error {
			return l.read(ctx, s, "--prefix", prefix, "--stream")
		}},
		{"compaction", compact},
		{"snapshot", l.snapshot},
	}
}

// probe puts a key at probeRate while meanwhile runs. It returns the latency of the slowest put in
// milliseconds, and the command of the probe.
func (l *lab) probe(ctx context.Context, s *storeserver.Server, meanwhile func(context.Context, *storeserver.Server) error) (float64, string, error) {
	c, err := l.Bench(ctx, s, storeserver.NormalPriority, "put", "--rate", probeRate, "--clients", "100", "--connections", "1",
		"--key-space-size", "1", "--val-size", "16", "--duration", "1h")
	if err != nil {
		return 0, "", err
	}
	meanwhileErr := sleep(ctx, probeMargin)
	if meanwhileErr == nil {
		meanwhileErr = meanwhile(ctx, s)
	}
	if meanwhileErr == nil {
		meanwhileErr = sleep(ctx, probeMargin)
	}
	stopErr := c.Stop()
	r, err := c.Report(ctx)
	if err := errors.Join(meanwhileErr, stopErr, err); err != nil {
		return 0, "", err
	}
	return float64(r.LatencyMicros.Max) / 1000, c.Command, nil
}

// read runs etcd-bench range once with these arguments, at a lower priority than the probe.
func (l *lab) read(ctx context.Context, s *storeserver.Server, args ...string) error {
	c, err := l.Bench(ctx, s, storeserver.IdlePriority, append([]string{"range", "--total", "1"}, args...)...)
	if err != nil {
		return err
	}
	return c.End(ctx)
}

// snapshot writes until the store takes a snapshot, and waits until it is complete.
func (l *lab) snapshot(ctx context.Context, s *storeserver.Server) error {
	before, err := newestSnapshot(s)
	if err != nil {
		return err
	}
	const valueBytes = 4096
	keys := group("/grown/", snapshotLogBytes/valueBytes, valueBytes)
	c, err := l.Bench(ctx, s, storeserver.IdlePriority, "fill", "--rate", "2000", "--clients", "10", "--key-size", "8", "--keys", keys)
	if err != nil {
		return err
	}
	if err := c.End(ctx); err != nil {
		return err
	}
	for deadline := time.Now().Add(snapshotTimeout); time.Now().Before(deadline); {
		now, err := newestSnapshot(s)
		if err != nil || now != before {
			return err
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("the store completed no snapshot within %s", snapshotTimeout)
}

// newestSnapshot returns the name of the newest complete snapshot.
func newestSnapshot(s *storeserver.Server) (newest string, err error) {
	entries, err := os.ReadDir(filepath.Join(s.Folder, "data", "snap"))
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) == ".snap" {
			newest = max(newest, entry.Name())
		}
	}
	return newest, err
}

// sleep waits for the duration, or until ctx is done.
func sleep(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
		return nil
	}
}
