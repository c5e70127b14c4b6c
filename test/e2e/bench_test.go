package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// benchResult is the part of an experiment's result that the tests check.
type benchResult struct {
	Name       string
	Command    string
	Machine    struct{ Cores int }
	Versions   map[string]string
	Parameters map[string]string
	Tables     []struct {
		Title   string
		Columns []struct{ Name, Unit string }
		Rows    [][]any
	}
	Series []struct {
		Plot, X, Unit string
		Points        [][2]float64
	}
	Markers  []struct{ Name string }
	Verdicts []struct {
		Name      string
		Of        int
		Must, Met bool
	}
	Errors struct {
		Operations int
		Rate       float64
	}
	Ratios  []struct{ Ratio float64 }
	Partial bool
}

// rows returns the rows of the table with a title.
func (r benchResult) rows(t *testing.T, title string) [][]any {
	t.Helper()
	for _, table := range r.Tables {
		if table.Title != title {
			continue
		}
		for _, row := range table.Rows {
			if len(row) != len(table.Columns) {
				t.Errorf("the table %q has %d columns and a row with %d values", title, len(table.Columns), len(row))
			}
		}
		return table.Rows
	}
	t.Fatalf("the result has no table %q", title)
	return nil
}

func readBench(t *testing.T, data []byte) (r benchResult) {
	t.Helper()
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatalf("decoding a benchmark result: %v in %s", err, data)
	}
	return r
}

func TestBenchList(t *testing.T) {
	w := newWorkspace(t)
	listed := w.succeed(t, "bench", "list").stdout
	for _, name := range []string{
		"nodes-and-pods", "slo", "pods-parallel", "watchers", "lists", "restart", "density", "limits", "gateway", "node-path", "ladder", "node-sim", "tess-io", "full-store", "kubelet-or-kwok",
		"store-put", "lease-flood", "store-watch", "store-range", "schedule", "schedule-million", "watch-or-webhook", "replica-simulation",
	} {
		if !strings.Contains(listed, "\n"+name+" ") && !strings.HasPrefix(listed, name+" ") {
			t.Errorf("bench list does not print %s:\n%s", name, listed)
		}
	}
	for _, invalid := range [][]string{
		{"slo", "--stores", "redis"}, {"slo", "--scale", "huge"}, {"store-put", "--stores", "etcd,etcd"}, {"limits", "--nodes", "0"},
		{"density", "--workload", "none"}, {"watchers", "--rate", "0"}, {"nodes-and-pods", "--max-error-rate", "2"}, {"all", "--only", "nothing"},
		{"node-path", "--only", "nothing"}, {"ladder", "--rung", "nothing"}, {"ladder", "--interval", "1ms"}, {"ladder", "--samples", "0"},
		{"node-sim", "--only", "nothing"}, {"node-sim", "--intervals", "1ms"}, {"tess-io", "--only", "nothing"}, {"full-store", "--steps", "0"},
		{"slo", "--node-simulator", "none"}, {"slo", "--node-mode", "wire"}, {"kubelet-or-kwok", "--only", "nothing"}, {"schedule", "--node-simulator", "none"},
	} {
		if r := w.k1m(t, append([]string{"bench"}, invalid...)...); r.code != 2 {
			t.Errorf("k1m bench %v: exit code %d, want 2: %s", invalid, r.code, r.stderr)
		}
	}
}

func TestBenchCluster(t *testing.T) {
	w := newWorkspace(t)
	out := filepath.Join(t.TempDir(), "out")
	printed := w.succeed(t, "bench", "nodes-and-pods", "--nodes", "20", "--pods", "400", "--stores", "mem_etcd", "--timeout", upTimeout, "--out", out, "-o", "json")
	r := readBench(t, []byte(printed.stdout))
	if r.Name != "nodes-and-pods" || r.Partial || r.Machine.Cores < 1 || r.Versions["kube-apiserver"] == "" || r.Parameters["nodes"] != "20" {
		t.Errorf("the result is partial, or has wrong or missing metadata: %+v", r)
	}
	if nodes := r.rows(t, "Nodes"); len(nodes) != 1 || nodes[0][1] != 20.0 {
		t.Errorf("the rows of the table Nodes are %v, want one with 20 nodes", nodes)
	}
	if pods := r.rows(t, "Pods"); len(pods) != 1 || pods[0][1] != 400.0 {
		t.Errorf("the rows of the table Pods are %v, want one with 400 pods", pods)
	}
	if len(r.rows(t, "API calls during pod creation, on mem_etcd")) == 0 || len(r.Verdicts) != 4 || len(r.Markers) != 2 {
		t.Errorf("the result has no API calls, or not 4 verdicts and 2 markers: %+v", r)
	}
	if r.Errors.Operations != 420 || r.Errors.Rate != 0 {
		t.Errorf("the result counts %+v, want 420 operations without errors", r.Errors)
	}
	plots := map[string]bool{}
	for _, s := range r.Series {
		plots[s.Plot] = true
		if s.X == "" || s.Unit == "" || len(s.Points) == 0 {
			t.Errorf("a series has no points, unit or name of its x axis: %+v", s)
		}
	}
	for _, plot := range []string{"CPU", "memory", "store: requests", "scheduler: attempts", "kube-apiserver: requests by verb and resource"} {
		if !plots[plot+", on mem_etcd"] {
			t.Errorf("the result has no plot %q, only %v", plot, plots)
		}
	}
	page, err := os.ReadFile(filepath.Join(out, "index.html"))
	must(t, err)
	for _, part := range []string{`<div class="chart"><script type="application/json">`, "echarts", "first pod created", "Verdicts", "bench nodes-and-pods"} {
		if !bytes.Contains(page, []byte(part)) {
			t.Errorf("the page does not contain %q", part)
		}
	}
	// Remove the content of scripts, because the text of the chart library also contains such attributes.
	markup := regexp.MustCompile(`(?s)(<script[^>]*>).*?</script>`).ReplaceAll(page, []byte("$1"))
	if bytes.Contains(markup, []byte(`src="`)) || bytes.Contains(markup, []byte(`href="http`)) {
		t.Error("the page is not self-contained")
	}
	if _, err := os.Stat(w.clusterDir("bench")); !os.IsNotExist(err) {
		t.Errorf("the cluster still exists: %v", err)
	}
}

func TestBenchWatchers(t *testing.T) {
	w := newWorkspace(t)
	out := filepath.Join(t.TempDir(), "out")
	printed := w.succeed(t, "bench", "watchers", "--nodes", "5", "--pods", "20", "--watchers", "10", "--duration", "10s",
		"--stores", "mem_etcd", "--timeout", upTimeout, "--out", out, "-o", "json")
	rows := readBench(t, []byte(printed.stdout)).rows(t, "Updates with watchers")
	const watchers, updates, errors, ended, share = 1, 2, 3, 4, 6
	if len(rows) != 2 || rows[1][watchers] != 10.0 || rows[1][updates].(float64) <= 0 || rows[1][errors] != 0.0 {
		t.Fatalf("the table has the rows %v; want two, the second with 10 watchers, updates and no errors", rows)
	}
	// Every watcher receives all updates, but the last updates may still be in flight: those of some seconds on a busy machine.
	if sent := rows[1][share].(float64); rows[1][ended] == 0.0 && (sent < 50 || sent > 110) {
		t.Errorf("watchers received %.0f %% of the events", sent)
	}
}

func TestBenchInterrupted(t *testing.T) {
	w := newWorkspace(t)
	out := filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := w.command(ctx, "bench", "nodes-and-pods", "--nodes", "20", "--pods", "2000", "--stores", "mem_etcd", "--timeout", upTimeout, "--out", out)
	// Interrupt the command one second after the warm-up, while it creates pods.
	var stderr bytes.Buffer
	cmd.Stderr = &once{to: &stderr, when: "warming up               done", do: func() {
		time.AfterFunc(time.Second, func() { _ = cmd.Process.Signal(syscall.SIGINT) })
	}}
	err := cmd.Run()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), "interrupted") {
		t.Fatalf("the command was not interrupted: %v: %s", err, &stderr)
	}
	data, err := os.ReadFile(filepath.Join(out, "result.json"))
	must(t, err)
	r := readBench(t, data)
	if !r.Partial || len(r.rows(t, "Nodes")) != 1 || len(r.rows(t, "Pods")) != 0 || len(r.Series) == 0 {
		t.Errorf("the result is not partial, or is not that of a run which was interrupted during pod creation: %s", data)
	}
	if _, err := os.Stat(w.clusterDir("bench")); !os.IsNotExist(err) {
		t.Errorf("the cluster still exists: %v", err)
	}
}

// once is a writer that calls a function when the output contains a text for the first time.
type once struct {
	to   *bytes.Buffer
	when string
	do   func()
}

func (o *once) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if o.do != nil && strings.Contains(o.to.String(), o.when) {
		o.do()
		o.do = nil
	}
	return n, err
}

func TestBenchStore(t *testing.T) {
	w := newWorkspace(t)
	out := filepath.Join(t.TempDir(), "out")
	printed := w.succeed(t, "bench", "store-put", "--clients", "4", "--duration", "1s", "--stores", "mem_etcd-none,etcd", "--out", out, "-o", "json")
	r := readBench(t, []byte(printed.stdout))
	// Each store is measured with 1 and with 4 clients.
	if rows := r.rows(t, "Throughput and latency by clients"); len(rows) != 4 || len(r.Ratios) != 3 || r.Errors.Operations == 0 {
		t.Errorf("the result does not have 4 rows, 3 ratios and operations: %+v", r)
	}
}

// TestBenchLadder climbs the lowest and the highest rung with few nodes: all settings of their profiles are accepted,
// heartbeats arrive, and stopped nodes are noticed.
func TestBenchLadder(t *testing.T) {
	w := newWorkspace(t)
	out := filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	printed := finish(t, w.command(ctx, "bench", "ladder", "--rung", "20000,1000000", "--nodes", "200", "--interval", "10s", "--hold", "15s", "--grace", "30s",
		"--pods", "50", "--replicas", "20", "--stopped", "3", "--samples", "3", "--kubectl", "2", "--out", out, "-o", "json"))
	if printed.code != 0 {
		t.Fatalf("the ladder does not hold: exit code %d\n%s%s", printed.code, printed.stdout, printed.stderr)
	}
	r := readBench(t, []byte(printed.stdout))
	holds := r.rows(t, "Heartbeats while the cluster is held")
	if len(holds) != 2 || holds[0][1] != 200.0 || holds[0][12] != 200.0 || holds[0][13] != 0.0 {
		t.Errorf("the rows of heartbeats are %v, want two with 200 nodes that stay Ready", holds)
	}
	musts := 0
	for _, v := range r.Verdicts {
		if v.Must {
			musts++
		}
		if v.Must && !v.Met || v.Of == 0 {
			t.Errorf("the objective is not met or not measured: %+v", v)
		}
	}
	if musts != 2*9 {
		t.Errorf("the result has %d objectives that must be met, want 9 for each rung: %+v", musts, r.Verdicts)
	}
	for _, title := range []string{"Start", "Processes while the cluster is held", "What users see", "What gives first", "Settings of the profiles, and why"} {
		if len(r.rows(t, title)) < 2 {
			t.Errorf("the table %q has no rows", title)
		}
	}
	if _, err := os.Stat(w.clusterDir("bench")); !os.IsNotExist(err) {
		t.Errorf("the cluster of the benchmark still exists: %v", err)
	}
}

// benchWith runs an experiment with few nodes and returns its result. The run must succeed and remove its cluster.
func benchWith(t *testing.T, args ...string) benchResult {
	t.Helper()
	w := newWorkspace(t)
	printed := w.succeed(t, append(append([]string{"bench"}, args...), "--timeout", upTimeout, "--out", filepath.Join(t.TempDir(), "out"), "-o", "json")...)
	if _, err := os.Stat(w.clusterDir("bench")); !os.IsNotExist(err) {
		t.Errorf("the cluster of the benchmark still exists: %v", err)
	}
	return readBench(t, []byte(printed.stdout))
}

// TestBenchNodeSim measures few nodes and pods in node-sim and in kwok: everything is measured, and judged.
func TestBenchNodeSim(t *testing.T) {
	r := benchWith(t, "node-sim", "--scale", "small", "--shared-nodes", "100", "--wire-nodes", "20", "--kwok-nodes", "50", "--intervals", "2s",
		"--duration", "6s", "--pod-nodes", "5", "--pods", "50")
	heartbeats, pods := r.rows(t, "Heartbeats"), r.rows(t, "Life of a pod, from its binding until it is gone")
	if len(heartbeats) != 3 || len(pods) != 3 {
		t.Fatalf("the tables have the rows %v and %v, want 3 each: node-sim in two modes, and kwok", heartbeats, pods)
	}
	const nodes, failed = 1, 4
	for i, want := range []float64{100, 20, 50} {
		if row := heartbeats[i]; row[nodes] != want || row[3].(float64) <= 0 || row[failed] != 0.0 || row[5].(float64) <= 0 || row[8].(float64) <= 0 {
			t.Errorf("heartbeats of %v: want those of %v nodes, none failed, with their cost", row, want)
		}
		if row := pods[i]; row[2] != 50.0 || row[5].(float64) <= 0 {
			t.Errorf("pods of %v: want 50 with their cost", row)
		}
	}
	// A limit and an aim for CPU and memory of two modes, and for pods of two modes.
	if len(r.Verdicts) != 12 {
		t.Errorf("the result has %d verdicts, want 12: %+v", len(r.Verdicts), r.Verdicts)
	}
	for _, v := range r.Verdicts {
		if v.Of == 0 {
			t.Errorf("the objective was not measured: %+v", v)
		}
	}
}

// TestBenchTessIO runs all parts of the experiment with few nodes of node-sim, behind a gateway.
func TestBenchTessIO(t *testing.T) {
	r := benchWith(t, "tess-io", "--nodes", "20", "--pods", "200", "--apiservers", "2", "--parallel", "10", "--repeat", "1", "--watchers", "10",
		"--lists", "6", "--clients", "20", "--duration", "5s")
	for title, want := range map[string]int{
		"Filling the cluster": 1, "Concurrent calls": 2, "Updates with watchers": 2, "Updates with concurrent lists": 2, "Recovery after all API servers were killed": 1,
	} {
		if rows := r.rows(t, title); len(rows) != want {
			t.Errorf("the table %q has the rows %v, want %d", title, rows, want)
		}
	}
	if rows := r.rows(t, "Published by eBay (2018: Kubernetes 1.9 and etcd on five masters), and this run"); len(rows) != 5 {
		t.Errorf("%d published figures are beside those of this run, want 5: %v", len(rows), rows)
	}
}

// TestBenchFullStore fills a small cluster of node-sim in two steps.
func TestBenchFullStore(t *testing.T) {
	r := benchWith(t, "full-store", "--nodes", "20", "--pods", "60", "--objects", "2000", "--steps", "2", "--startups", "10", "--duration", "3s")
	rows := r.rows(t, "A store that is filled")
	if len(rows) != 2 {
		t.Fatalf("the table has the rows %v, want 2", rows)
	}
	const objects, pods = 1, 2
	if rows[1][objects].(float64) < 2000 || rows[1][pods] != 60.0 || rows[0][objects].(float64) >= rows[1][objects].(float64) {
		t.Errorf("the steps have %v and %v objects, and %v pods at the end; want 2,000 and 60", rows[0][objects], rows[1][objects], rows[1][pods])
	}
	for _, row := range rows {
		for i, cell := range row[3:] {
			if value, isNumber := cell.(float64); !isNumber || value <= 0 {
				t.Errorf("nothing was measured in column %d of %v", i+3, row)
			}
		}
	}
}

// TestBenchNodes compares kwok with both modes of node-sim, without hollow kubelets.
func TestBenchNodes(t *testing.T) {
	r := benchWith(t, "kubelet-or-kwok", "--nodes", "4", "--hold", "12s", "--pods-per-node", "2", "--only", "kwok,node-sim-wire,node-sim-shared")
	watches := map[string]float64{}
	for _, row := range r.rows(t, "Cost of these requests") {
		if row[1] == "idle" {
			watches[row[0].(string)] = row[2].(float64)
		}
	}
	if len(watches) != 3 || watches["node-sim-wire"] < watches["node-sim-shared"]+4*6-2 {
		t.Errorf("the watches are %v; want six more for each of 4 nodes with a connection of its own", watches)
	}
}
