// Command proxybench measures what etcd-proxy costs: the same load on one store,
// directly, through the proxy, and through the proxy while it records, in turn.
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
	// A proxy may take as long again as the store.
	allowedRatio = 2.0
	startTimeout = 20 * time.Second
)

// load is what etcd-bench does.
type load struct {
	name string
	args []string
}

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

// ways are how the load gets to the store.
var ways = []string{"direct", "proxy", "recording"}

// sample is of what etcd-bench reports what is compared.
type sample struct {
	OpsPerSecond  float64
	LatencyMicros struct{ P50, P99 float64 }
}

func main() {
	total := flag.Int("total", 100_000, "operations of a load")
	rounds := flag.Int("rounds", 3, "times that each is measured")
	flag.Parse()
	if *total < 1000 || *rounds < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "proxybench: --total is at least 1000, --rounds at least 1, and there is nothing else")
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
	fmt.Printf("medians of %d rounds; in brackets the ratio to direct\n", rounds)
	fmt.Printf("%-26s %-10s %12s %20s %20s\n", "load", "way", "ops/s", "p50 µs", "p99 µs")
	var slow []string
	for _, l := range loads(total) {
		samples := map[string][]sample{}
		for range rounds {
			for _, way := range ways {
				s, err := bench.measure(l, way)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", l.name, way, err)
				}
				samples[way] = append(samples[way], s)
			}
		}
		for _, way := range ways {
			if ratio := show(l, way, samples); ratio > allowedRatio {
				slow = append(slow, fmt.Sprintf("%s, %s: %.2f", l.name, way, ratio))
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
	fmt.Printf("recorded: %d lines, %d missing\n", written, missing)
	if len(slow) > 0 {
		return fmt.Errorf("more than %.0f times the median latency: %v", allowedRatio, slow)
	}
	return nil
}

// show prints a row, and returns the ratio of median latencies.
func show(l load, way string, samples map[string][]sample) float64 {
	median := func(way string, of func(sample) float64) float64 {
		var values []float64
		for _, s := range samples[way] {
			values = append(values, of(s))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	rate := func(s sample) float64 { return s.OpsPerSecond }
	p50 := func(s sample) float64 { return s.LatencyMicros.P50 }
	p99 := func(s sample) float64 { return s.LatencyMicros.P99 }
	ratio := func(of func(sample) float64) float64 { return median(way, of) / median(ways[0], of) }
	cell := func(of func(sample) float64) string { return fmt.Sprintf("%.0f (%.2f)", median(way, of), ratio(of)) }
	fmt.Printf("%-26s %-10s %12.0f %20s %20s\n", l.name, way, median(way, rate), cell(p50), cell(p99))
	return ratio(p50)
}

// bench is a store and two proxies before it.
type bench struct {
	processes []*exec.Cmd
	scratch   string
	endpoints map[string]string
	pages     string
}

func newBench() (*bench, error) {
	scratch, err := os.MkdirTemp("", "proxybench-")
	if err != nil {
		return nil, err
	}
	b := &bench{scratch: scratch, endpoints: map[string]string{}}
	url := func() string { return "http://" + freeAddress() }
	store, plain, recording := url(), url(), url()
	b.endpoints["direct"], b.endpoints["proxy"], b.endpoints["recording"] = store, plain, recording
	b.pages = url()
	err = errors.Join(
		b.start(store, "mem_etcd", "--wal-mode", "none", "--listen-client-urls", store),
		b.start(plain, "etcd-proxy", "--listen", plain, "--endpoints", store),
		b.start(recording, "etcd-proxy", "--listen", recording, "--endpoints", store, "--listen-metrics-urls", b.pages,
			"--record", filepath.Join(scratch, "trace.jsonl.zst")),
	)
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func freeAddress() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "127.0.0.1:0"
	}
	defer listener.Close()
	return listener.Addr().String()
}

// start runs a program and waits until the store answers through it.
func (b *bench) start(url, program string, args ...string) error {
	cmd := exec.Command(filepath.Join("bin", program), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w; run `make build` first, here", err)
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
	return fmt.Errorf("%s did not get ready in %s", program, startTimeout)
}

func (b *bench) measure(l load, way string) (s sample, err error) {
	args := append(slices.Clone(l.args), "--endpoints", b.endpoints[way], "--output", "json")
	cmd := exec.Command(filepath.Join("bin", "etcd-bench"), args...)
	output, err := cmd.Output()
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(output, &s)
}

// metric reads a number of the proxy that records.
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
		return 0, fmt.Errorf("there is no metric %s", name)
	}
	return strconv.Atoi(string(found[1]))
}

func (b *bench) close() {
	for _, cmd := range b.processes {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	os.RemoveAll(b.scratch)
}
