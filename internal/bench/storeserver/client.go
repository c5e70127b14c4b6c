package storeserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
)

// The load generators, by the names of their programs: etcd-bench, and the benchmark tool of etcd.
const (
	etcdBench     = "etcd-bench"
	EtcdBenchmark = "etcd-benchmark"
)

// Report is the part of the JSON output of etcd-bench that this repository uses.
type Report struct {
	Ops                  int64            `json:"ops"`
	Errors               int64            `json:"errors"`
	Seconds              float64          `json:"seconds"`
	OpsPerSecond         float64          `json:"opsPerSecond"`
	ErrorsByKind         map[string]int64 `json:"errorsByKind"`
	LatencyMicros        Percentiles      `json:"latencyMicros"`
	ClientCPUMicrosPerOp float64          `json:"clientCpuMicrosPerOp"`
	ServerCPUMicrosPerOp float64          `json:"serverCpuMicrosPerOp"`
	Watch                struct {
		Events          int64   `json:"events"`
		EventsPerSecond float64 `json:"eventsPerSecond"`
		// Complete reports that every watcher received every event in time.
		Complete bool `json:"complete"`
	} `json:"watch"`
	FilledBytes int64 `json:"filledBytes"`
}

// Percentiles are latency percentiles in microseconds.
type Percentiles struct {
	P50  int64 `json:"p50"`
	P90  int64 `json:"p90"`
	P99  int64 `json:"p99"`
	P999 int64 `json:"p999"`
	Max  int64 `json:"max"`
}

// Details returns those values of the report that every load yields, by name.
func (r Report) Details() map[string]float64 {
	return map[string]float64{
		"opsPerSecond":         r.OpsPerSecond,
		"errors":               float64(r.Errors),
		"p50Micros":            float64(r.LatencyMicros.P50),
		"p99Micros":            float64(r.LatencyMicros.P99),
		"clientCpuMicrosPerOp": r.ClientCPUMicrosPerOp,
		"serverCpuMicrosPerOp": r.ServerCPUMicrosPerOp,
	}
}

// Client is a running load generator.
type Client struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	// stderr is the standard error, unless it is that of this process. It is shown only if the load generator fails.
	stderr bytes.Buffer
	// Command is the command line, with placeholders for the values that differ between runs.
	Command string
}

// Priority is the scheduling priority of a load generator on the cores of the clients.
type Priority bool

const (
	// NormalPriority is the default priority.
	NormalPriority Priority = false
	// IdlePriority lets the load generator run only while the core has nothing else to run (SCHED_IDLE).
	IdlePriority Priority = true
)

// prefix returns the start of a command line, which sets the cores and the priority.
func (l *Lab) prefix(priority Priority) []string {
	pinned := []string{"taskset", "-c", l.ClientCores}
	if priority == IdlePriority {
		return append([]string{"chrt", "--idle", "0"}, pinned...)
	}
	return pinned
}

// startClient starts a load generator on the cores of the clients.
func (l *Lab) startClient(ctx context.Context, s *Server, priority Priority, program string, args ...string) (*Client, error) {
	line := append(l.prefix(priority), l.Program(program))
	line = append(line, args...)
	c := newClient(ctx, line)
	if program != EtcdBenchmark {
		c.cmd.Stderr = os.Stderr
	}
	c.Command = s.withPlaceholders(append(append(l.prefix(priority), program), args...))
	return c, c.cmd.Start()
}

// newClient returns a load generator with a command line.
func newClient(ctx context.Context, line []string) *Client {
	c := &Client{cmd: exec.CommandContext(ctx, line[0], line[1:]...)}
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.stderr
	// Like the server, the load generator is killed when this process exits.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

// StartBench starts etcd-bench on a store that does not belong to a [Lab].
func StartBench(ctx context.Context, args ...string) (*Client, error) {
	program, err := component.FindBinary(etcdBench)
	if err != nil {
		return nil, err
	}
	c := newClient(ctx, append([]string{program}, args...))
	c.Command = etcdBench + " " + args[0]
	return c, c.cmd.Start()
}

// End waits for the load generator to exit. It returns an error if the load generator failed.
func (c *Client) End(ctx context.Context) error {
	err := c.cmd.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s%s", c.Command, err, c.output.String(), c.stderr.String())
	}
	return nil
}

// Stop interrupts etcd-bench, which then reports what it has measured so far.
func (c *Client) Stop() error { return c.cmd.Process.Signal(syscall.SIGINT) }

// ErrOperations means that etcd-bench ran to its end and then failed because of failed operations. The
// report that is returned with this error is complete. It contains the number of errors by kind.
var ErrOperations = errors.New("operations failed")

// Report waits for etcd-bench to exit, and parses its report.
func (c *Client) Report(ctx context.Context) (r Report, err error) {
	err = c.End(ctx)
	if invalid := json.Unmarshal(c.output.Bytes(), &r); err == nil && invalid != nil {
		err = fmt.Errorf("%s: invalid report: %w", c.Command, invalid)
	}
	if exit := new(exec.ExitError); errors.As(err, &exit) && r.Errors > 0 {
		return r, fmt.Errorf("%s: %w: %d of %d: %v", c.Command, ErrOperations, r.Errors, r.Ops+r.Errors, r.ErrorsByKind)
	}
	return r, err
}

// Bench starts etcd-bench.
func (l *Lab) Bench(ctx context.Context, s *Server, priority Priority, args ...string) (*Client, error) {
	return l.startClient(ctx, s, priority, etcdBench, benchArgs(s, args)...)
}

// Run runs etcd-bench until it exits. It returns the report and the command line.
func (l *Lab) Run(ctx context.Context, s *Server, args ...string) (Report, string, error) {
	c, err := l.Bench(ctx, s, NormalPriority, args...)
	if err != nil {
		return Report{}, "", err
	}
	r, err := c.Report(ctx)
	return r, c.Command, err
}

// BenchAt starts etcd-bench on the cores of the clients, for stores that do not belong to the lab. Its connections are
// distributed over the endpoints.
func (l *Lab) BenchAt(ctx context.Context, endpoints []string, args ...string) (*Client, error) {
	line := append(l.prefix(NormalPriority), l.Program(etcdBench))
	c := newClient(ctx, append(append(line, args...), "--endpoints", strings.Join(endpoints, ","), "--output", "json"))
	c.Command = etcdBench + " " + args[0]
	return c, c.cmd.Start()
}

func benchArgs(s *Server, args []string) []string {
	return append(append([]string{}, args...), "--endpoints", s.URL, "--output", "json",
		"--server-pid", strconv.Itoa(s.process.Process.Pid))
}

// RunBenchmark runs the benchmark tool of etcd. It returns the puts per second and the command line.
func (l *Lab) RunBenchmark(ctx context.Context, s *Server, args ...string) (float64, string, error) {
	c, err := l.startClient(ctx, s, NormalPriority, EtcdBenchmark, append([]string{"--endpoints", s.URL}, args...)...)
	if err != nil {
		return 0, "", err
	}
	if err := c.End(ctx); err != nil {
		return 0, c.Command, err
	}
	rate, err := parseBenchmark(c.output.String())
	return rate, c.Command, err
}

var requestsPerSecond = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)

// parseBenchmark parses the puts per second from the output of the benchmark tool of etcd. It returns an
// error if operations failed.
func parseBenchmark(output string) (float64, error) {
	if _, distribution, found := strings.Cut(output, "Error distribution:"); found {
		return 0, fmt.Errorf("etcd's benchmark had errors: %s", strings.TrimSpace(distribution))
	}
	match := requestsPerSecond.FindStringSubmatch(output)
	if match == nil {
		return 0, fmt.Errorf("etcd's benchmark printed no Requests/sec: %q", output)
	}
	return strconv.ParseFloat(match[1], 64)
}
