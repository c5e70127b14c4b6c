package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// Programs that make load: ours, and etcd's own.
const (
	etcdBench     = "etcd-bench"
	etcdBenchmark = "etcd-benchmark"
)

// report is the part of etcd-bench's JSON that is used here.
type report struct {
	Ops           int64   `json:"ops"`
	Errors        int64   `json:"errors"`
	Seconds       float64 `json:"seconds"`
	OpsPerSecond  float64 `json:"opsPerSecond"`
	LatencyMicros struct {
		P50 int64 `json:"p50"`
		P99 int64 `json:"p99"`
		Max int64 `json:"max"`
	} `json:"latencyMicros"`
	ClientCPUMicrosPerOp float64 `json:"clientCpuMicrosPerOp"`
	ServerCPUMicrosPerOp float64 `json:"serverCpuMicrosPerOp"`
	Watch                struct {
		Events int64 `json:"events"`
	} `json:"watch"`
	FilledBytes int64 `json:"filledBytes"`
}

// details that every report has.
func (r report) details() map[string]float64 {
	return map[string]float64{
		"opsPerSecond":         r.OpsPerSecond,
		"errors":               float64(r.Errors),
		"p50Micros":            float64(r.LatencyMicros.P50),
		"p99Micros":            float64(r.LatencyMicros.P99),
		"clientCpuMicrosPerOp": r.ClientCPUMicrosPerOp,
		"serverCpuMicrosPerOp": r.ServerCPUMicrosPerOp,
	}
}

// client is a load under way.
type client struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	// chatter of one that says more on its standard error than concerns anybody,
	// as long as it does not fail.
	chatter bytes.Buffer
	command string
}

// How a client shares its core with others.
var (
	alone = []string{"taskset", "-c", clientCore}
	// Gives way at once to a client that measures.
	givingWay = []string{"chrt", "--idle", "0", "taskset", "-c", clientCore}
)

// begin starts a program on the client's core.
func (l *lab) begin(ctx context.Context, s *server, how []string, program string, args ...string) (*client, error) {
	line := append(append([]string{}, how...), l.program(program))
	line = append(line, args...)
	c := &client{cmd: exec.CommandContext(ctx, line[0], line[1:]...)}
	c.cmd.Stdout = &c.output
	c.cmd.Stderr = os.Stderr
	if program == etcdBenchmark {
		c.cmd.Stderr = &c.chatter
	}
	// Like the server: nothing outlives this process.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.command = s.shown(append(append(append([]string{}, how...), program), args...))
	return c, c.cmd.Start()
}

// end waits for it.
func (c *client) end(ctx context.Context) error {
	err := c.cmd.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s%s", c.command, err, c.output.String(), c.chatter.String())
	}
	return nil
}

// report waits for an etcd-bench and reads what it says.
func (c *client) report(ctx context.Context) (r report, err error) {
	if err := c.end(ctx); err != nil {
		return r, err
	}
	if err := json.Unmarshal(c.output.Bytes(), &r); err != nil {
		return r, fmt.Errorf("%s: %w", c.command, err)
	}
	return r, nil
}

// bench starts an etcd-bench.
func (l *lab) bench(ctx context.Context, s *server, how []string, args ...string) (*client, error) {
	return l.begin(ctx, s, how, etcdBench, benchArgs(s, args)...)
}

// run runs an etcd-bench to its end.
func (l *lab) run(ctx context.Context, s *server, args ...string) (report, string, error) {
	c, err := l.bench(ctx, s, alone, args...)
	if err != nil {
		return report{}, "", err
	}
	r, err := c.report(ctx)
	return r, c.command, err
}

func benchArgs(s *server, args []string) []string {
	return append(append([]string{}, args...), "--endpoints", s.url, "--output", "json",
		"--server-pid", strconv.Itoa(s.process.Process.Pid))
}

// runBenchmark runs etcd's own benchmark to its end; puts a second.
func (l *lab) runBenchmark(ctx context.Context, s *server, args ...string) (float64, string, error) {
	c, err := l.begin(ctx, s, alone, etcdBenchmark, append([]string{"--endpoints", s.url}, args...)...)
	if err != nil {
		return 0, "", err
	}
	if err := c.end(ctx); err != nil {
		return 0, c.command, err
	}
	rate, err := parseBenchmark(c.output.String())
	return rate, c.command, err
}

var requestsPerSecond = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)

// parseBenchmark reads puts a second out of what etcd's benchmark prints, and
// fails if some of them did.
func parseBenchmark(output string) (float64, error) {
	if _, errors, found := strings.Cut(output, "Error distribution:"); found {
		return 0, fmt.Errorf("etcd's benchmark had errors: %s", strings.TrimSpace(errors))
	}
	match := requestsPerSecond.FindStringSubmatch(output)
	if match == nil {
		return 0, fmt.Errorf("etcd's benchmark said no Requests/sec: %q", output)
	}
	return strconv.ParseFloat(match[1], 64)
}
