// Command bench runs etcd-bench against mem_etcd and etcd, one after the other
// in one run, and compares what an operation costs each of them.
//
// Server and client are pinned to a core each; both stores keep their data in
// memory-backed files, so that what is compared is processor time and not disks.
// CPU is what the operating system counted for the server's process. Results go
// to results/<UTC>_store/: result.json and an index.html with a plot.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// workload is one row of the table.
type workload struct {
	Name string
	// Args of etcd-bench.
	Args []string
	// PerEvent counts what watchers were told, and not operations.
	PerEvent bool
}

func workloads(quick bool) []workload {
	total := "100000"
	if quick {
		total = "10000"
	}
	many := []string{"--clients", "500", "--connections", "10", "--total", total}
	scan := []string{"range", "--key-space-size", "100000", "--val-size", "1536", "--total", "3"}
	if quick {
		scan = []string{"range", "--key-space-size", "10000", "--val-size", "1536", "--total", "3"}
	}
	return []workload{
		{Name: "put", Args: append([]string{"put"}, many...)},
		{Name: "txn-put", Args: append([]string{"txn-put"}, many...)},
		{Name: "lease-flood", Args: append([]string{"lease-flood", "--leases", "20"}, many...)},
		{Name: "mixed", Args: append([]string{"mixed"}, many...)},
		{Name: "watch", Args: []string{"watch", "--watchers", "100", "--clients", "10", "--total", "2000", "--key-space-size", "1000"}, PerEvent: true},
		{Name: "range-paged", Args: append(scan, "--page", "10000")},
		{Name: "range-stream", Args: append(scan, "--stream")},
	}
}

// measurement is one workload on one store.
type measurement struct {
	Store                string  `json:"store"`
	Workload             string  `json:"workload"`
	Ops                  int64   `json:"ops"`
	Errors               int64   `json:"errors"`
	OpsPerSecond         float64 `json:"opsPerSecond"`
	P99Micros            int64   `json:"p99Micros"`
	ServerCPUMicrosPerOp float64 `json:"serverCpuMicrosPerOp"`
	ClientCPUMicrosPerOp float64 `json:"clientCpuMicrosPerOp"`
	ServerResidentBytes  int64   `json:"serverResidentBytes"`
	EventsDelivered      int64   `json:"eventsDelivered,omitempty"`
	SecondsPerRead       float64 `json:"secondsPerRead,omitempty"`
}

// result is everything that one run found.
type result struct {
	Time         time.Time     `json:"time"`
	Machine      string        `json:"machine"`
	Measurements []measurement `json:"measurements"`
}

func main() {
	quick := flag.Bool("quick", false, "a tenth of the operations, to see that it works")
	bin := flag.String("bin", "bin", "where the programs are")
	out := flag.String("out", filepath.Join("results", time.Now().UTC().Format("20060102T150405Z")+"_store"), "where the result goes")
	flag.Parse()
	if err := run(*bin, *out, *quick); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(bin, out string, quick bool) error {
	r := result{Time: time.Now().UTC(), Machine: machine()}
	for _, w := range workloads(quick) {
		for _, store := range []string{"mem_etcd", "etcd"} {
			fmt.Fprintf(os.Stderr, "==> %s on %s\n", w.Name, store)
			m, err := measure(bin, store, w)
			if err != nil {
				return fmt.Errorf("%s on %s: %w", w.Name, store, err)
			}
			r.Measurements = append(r.Measurements, m)
			// What there is stays, even if a later workload fails.
			if err := save(out, r); err != nil {
				return err
			}
		}
	}
	printTable(r)
	fmt.Printf("\n%s\n", filepath.Join(out, "index.html"))
	return nil
}

func save(out string, r result) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "result.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return writePage(filepath.Join(out, "index.html"), r)
}

// pairs are the two stores' measurements of each workload.
func pairs(r result) (rows [][2]measurement) {
	for i := 0; i+1 < len(r.Measurements); i += 2 {
		rows = append(rows, [2]measurement{r.Measurements[i], r.Measurements[i+1]})
	}
	return rows
}

// ratio is how much more an operation costs etcd: its server's CPU, or for reads
// of everything its time.
func ratio(ours, etcd measurement) float64 {
	if ours.SecondsPerRead > 0 {
		return etcd.SecondsPerRead / ours.SecondsPerRead
	}
	return etcd.ServerCPUMicrosPerOp / ours.ServerCPUMicrosPerOp
}

func printTable(r result) {
	fmt.Println(r.Machine)
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "workload\tmem_etcd\tetcd\tetcd ÷ mem_etcd\tmem_etcd/s\tetcd/s\t")
	for _, row := range pairs(r) {
		ours, etcd := row[0], row[1]
		fmt.Fprintf(w, "%s\t%s\t%s\t%.1f\t%.0f\t%.0f\t\n", ours.Workload, cost(ours), cost(etcd), ratio(ours, etcd), ours.OpsPerSecond, etcd.OpsPerSecond)
	}
	w.Flush()
}

func cost(m measurement) string {
	if m.SecondsPerRead > 0 {
		return fmt.Sprintf("%.2f s", m.SecondsPerRead)
	}
	return fmt.Sprintf("%.1f µs CPU", m.ServerCPUMicrosPerOp)
}

func machine() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown machine"
	}
	for line := range strings.Lines(string(text)) {
		if name, found := strings.CutPrefix(line, "model name"); found {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return "unknown machine"
}
