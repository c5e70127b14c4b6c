// Command proxybench measures the latency that etcd-proxy adds. It applies the same load to a store
// directly, through a proxy, and through a proxy that records a trace, one after the other.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"
)

const (
	// maxRatio is the maximum ratio of a median latency through the proxy to the direct median latency.
	maxRatio     = 2.0
	startTimeout = 20 * time.Second
)

// load is a load that etcd-bench generates: its name in the output, and the arguments.
type load struct {
	name string
	args []string
}

// loads returns the loads. total is the number of operations of the largest ones.
func loads(total int) []load {
	count := func(n int) string { return strconv.Itoa(n) }
	return []load{
		{"put, 1 client", []string{"put", "--total", count(total / 10)}},
		{"put, 50 clients", []string{"put", "--clients", "50", "--connections", "10", "--total", count(total)}},
		{"put at 5,000/s", []string{"put", "--clients", "50", "--connections", "10", "--rate", "5000", "--total", count(total / 4)}},
		{"Lease update, 50 clients", []string{"lease-flood", "--clients", "50", "--connections", "10", "--total", count(total)}},
		{"watch, 10 watchers", []string{"watch", "--watchers", "10", "--clients", "10", "--total", count(total / 10)}},
	}
}

// paths are the ways from the client to the store. The first is the baseline.
var paths = []string{"direct", "proxy", "recording"}

// sample contains those values of an etcd-bench report that are compared.
type sample struct {
	OpsPerSecond  float64
	LatencyMicros struct{ P50, P99 float64 }
}

func main() {
	total := flag.Int("total", 100_000, "operations of the largest loads; other loads have a quarter or a tenth of them")
	rounds := flag.Int("rounds", 3, "number of measurements of each load and path")
	flag.Parse()
	if *total < 1000 || *rounds < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "proxybench: --total must be at least 1000 and --rounds at least 1; arguments are not accepted")
		os.Exit(2)
	}
	if err := run(*total, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "proxybench:", err)
		os.Exit(1)
	}
}

func run(total, rounds int) error {
	bench, err := newBench()
	if err != nil {
		return err
	}
	defer bench.close()
	fmt.Printf("medians of %d rounds, with the ratio to the direct median in brackets\n", rounds)
	fmt.Printf("%-26s %-10s %12s %20s %20s\n", "load", "path", "ops/s", "p50 µs", "p99 µs")
	var slow []string
	for _, l := range loads(total) {
		samples := map[string][]sample{}
		for range rounds {
			for _, path := range paths {
				s, err := bench.measure(l, path)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", l.name, path, err)
				}
				samples[path] = append(samples[path], s)
			}
		}
		for _, path := range paths {
			if ratio := printRow(l, path, samples); ratio > maxRatio {
				slow = append(slow, fmt.Sprintf("%s, %s: %.2f", l.name, path, ratio))
			}
		}
	}
	missing, err := bench.metric("etcd_proxy_records_missing_total")
	if err != nil {
		return err
	}
	written, err := bench.metric("etcd_proxy_records_written_total")
	if err != nil {
		return err
	}
	fmt.Printf("recorded: %d records, %d missing\n", written, missing)
	if len(slow) > 0 {
		return fmt.Errorf("these median latencies are more than %.0f times the direct median latency: %v", maxRatio, slow)
	}
	return nil
}

// printRow prints the row of a load and path, and returns the ratio of its median p50 latency to the
// direct one.
func printRow(l load, path string, samples map[string][]sample) float64 {
	median := func(path string, of func(sample) float64) float64 {
		var values []float64
		for _, s := range samples[path] {
			values = append(values, of(s))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	rate := func(s sample) float64 { return s.OpsPerSecond }
	p50 := func(s sample) float64 { return s.LatencyMicros.P50 }
	p99 := func(s sample) float64 { return s.LatencyMicros.P99 }
	ratio := func(of func(sample) float64) float64 { return median(path, of) / median(paths[0], of) }
	cell := func(of func(sample) float64) string { return fmt.Sprintf("%.0f (%.2f)", median(path, of), ratio(of)) }
	fmt.Printf("%-26s %-10s %12.0f %20s %20s\n", l.name, path, median(path, rate), cell(p50), cell(p99))
	return ratio(p50)
}

// bench is a store with two proxies in front of it.
type bench struct {
	processes []*exec.Cmd
	scratch   string
	// endpoints are the URLs for clients, by path.
	endpoints map[string]string
	// pages is the URL of the metrics of the proxy that records.
	pages string
}

// newBench starts the store and the proxies.
func newBench() (*bench, error) {
	scratch, err := os.MkdirTemp("", "proxybench-")
	if err != nil {
		return nil, err
	}
	b := &bench{scratch: scratch, endpoints: map[string]string{}}
	url := func() string { return "http://" + freeAddress() }
	store, proxy, recording := url(), url(), url()
	b.endpoints["direct"], b.endpoints["proxy"], b.endpoints["recording"] = store, proxy, recording
	b.pages = url()
	err = errors.Join(
		b.start(store, "mem_etcd", "--wal-mode", "none", "--listen-client-urls", store),
		b.start(proxy, "etcd-proxy", "--listen", proxy, "--endpoints", store),
		b.start(recording, "etcd-proxy", "--listen", recording, "--endpoints", store, "--listen-metrics-urls", b.pages,
			"--record", filepath.Join(scratch, "trace.jsonl.zst")),
	)
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// freeAddress returns a loopback address whose port was free when it was called.
func freeAddress() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "127.0.0.1:0"
	}
	defer listener.Close()
	return listener.Addr().String()
}

// start starts a program and waits until it is healthy.
func (b *bench) start(url, program string, args ...string) error {
	cmd := exec.Command(filepath.Join("bin", program), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w; run `make build` first, in the root of the repository", err)
	}
	b.processes = append(b.processes, cmd)
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if response, err := http.Get(url + "/health"); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
	}
	return fmt.Errorf("%s was not healthy after %s", program, startTimeout)
}

// measure runs etcd-bench with a load over a path.
func (b *bench) measure(l load, path string) (s sample, err error) {
	args := append(slices.Clone(l.args), "--endpoints", b.endpoints[path], "--output", "json")
	cmd := exec.Command(filepath.Join("bin", "etcd-bench"), args...)
	output, err := cmd.Output()
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(output, &s)
}

// metric reads an integer metric of the proxy that records.
func (b *bench) metric(name string) (int, error) {
	response, err := http.Get(b.pages + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(`(?m)^` + name + ` (\d+)$`).FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("metric %s not found", name)
	}
	return strconv.Atoi(string(found[1]))
}

// close kills the processes and removes their files.
func (b *bench) close() {
	for _, cmd := range b.processes {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	os.RemoveAll(b.scratch)
}
