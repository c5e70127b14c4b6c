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
)

// Programs that make load: ours, and etcd's own.
const (
	etcdBench     = "etcd-bench"
	EtcdBenchmark = "etcd-benchmark"
)

// Report is the part of etcd-bench's JSON that is used here.
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
		// Complete: every watcher was told of every write in time.
		Complete bool `json:"complete"`
	} `json:"watch"`
	FilledBytes int64 `json:"filledBytes"`
}

// Percentiles of latencies.
type Percentiles struct {
	P50  int64 `json:"p50"`
	P90  int64 `json:"p90"`
	P99  int64 `json:"p99"`
	P999 int64 `json:"p999"`
	Max  int64 `json:"max"`
}

// Details that every report has.
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

// Client is a load under way.
type Client struct {
	cmd    *exec.Cmd
	output bytes.Buffer
	// chatter of one that says more on its standard error than concerns anybody,
	// as long as it does not fail.
	chatter bytes.Buffer
	Command string
}

// How a client shares its core with others.
type How bool

const (
	Alone How = false
	// GivingWay at once to a client that measures.
	GivingWay How = true
)

// prefix of its command line.
func (l *Lab) prefix(how How) []string {
	pinned := []string{"taskset", "-c", l.ClientCores}
	if how == GivingWay {
		return append([]string{"chrt", "--idle", "0"}, pinned...)
	}
	return pinned
}

// begin starts a program on the client's core.
func (l *Lab) begin(ctx context.Context, s *Server, how How, program string, args ...string) (*Client, error) {
	line := append(l.prefix(how), l.Program(program))
	line = append(line, args...)
	c := &Client{cmd: exec.CommandContext(ctx, line[0], line[1:]...)}
	c.cmd.Stdout = &c.output
	c.cmd.Stderr = os.Stderr
	if program == EtcdBenchmark {
		c.cmd.Stderr = &c.chatter
	}
	// Like the server: nothing outlives this process.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.Command = s.shown(append(append(l.prefix(how), program), args...))
	return c, c.cmd.Start()
}

// End waits for it.
func (c *Client) End(ctx context.Context) error {
	err := c.cmd.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s%s", c.Command, err, c.output.String(), c.chatter.String())
	}
	return nil
}

// Stop asks an etcd-bench to end and to report what it has.
func (c *Client) Stop() error { return c.cmd.Process.Signal(syscall.SIGINT) }

// ErrOperations says that more of the operations failed than etcd-bench lets pass. The
// report that comes with it is whole, and says how many, and why.
var ErrOperations = errors.New("operations failed")

// Report waits for an etcd-bench and reads what it says.
func (c *Client) Report(ctx context.Context) (r Report, err error) {
	err = c.End(ctx)
	if unread := json.Unmarshal(c.output.Bytes(), &r); err == nil && unread != nil {
		err = fmt.Errorf("%s: %w", c.Command, unread)
	}
	if exit := new(exec.ExitError); errors.As(err, &exit) && r.Errors > 0 {
		return r, fmt.Errorf("%s: %w: %d of %d: %v", c.Command, ErrOperations, r.Errors, r.Ops+r.Errors, r.ErrorsByKind)
	}
	return r, err
}

// Bench starts an etcd-bench.
func (l *Lab) Bench(ctx context.Context, s *Server, how How, args ...string) (*Client, error) {
	return l.begin(ctx, s, how, etcdBench, benchArgs(s, args)...)
}

// Run runs an etcd-bench to its end.
func (l *Lab) Run(ctx context.Context, s *Server, args ...string) (Report, string, error) {
	c, err := l.Bench(ctx, s, Alone, args...)
	if err != nil {
		return Report{}, "", err
	}
	r, err := c.Report(ctx)
	return r, c.Command, err
}

func benchArgs(s *Server, args []string) []string {
	return append(append([]string{}, args...), "--endpoints", s.URL, "--output", "json",
		"--server-pid", strconv.Itoa(s.process.Process.Pid))
}

// RunBenchmark runs etcd's own benchmark to its end; puts a second.
func (l *Lab) RunBenchmark(ctx context.Context, s *Server, args ...string) (float64, string, error) {
	c, err := l.begin(ctx, s, Alone, EtcdBenchmark, append([]string{"--endpoints", s.URL}, args...)...)
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

// parseBenchmark reads puts a second out of what etcd's benchmark prints, and
// fails if some of them did.
func parseBenchmark(output string) (float64, error) {
	if _, distribution, found := strings.Cut(output, "Error distribution:"); found {
		return 0, fmt.Errorf("etcd's benchmark had errors: %s", strings.TrimSpace(distribution))
	}
	match := requestsPerSecond.FindStringSubmatch(output)
	if match == nil {
		return 0, fmt.Errorf("etcd's benchmark said no Requests/sec: %q", output)
	}
	return strconv.ParseFloat(match[1], 64)
}
