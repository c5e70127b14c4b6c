package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const config = `
- name: Basic
  labels: [performance]
  workloadTemplate:
  - opcode: createNodes
    countParam: $nodes
  workloads:
  - name: 5Nodes
    labels: [short]
    threshold: 10
    params: {nodes: 5}
  - name: 20000Nodes/1Init
    featureGates: {GenericWorkload: true}
    threshold:
      topic: 10
    params: {nodes: 20000}
`

func TestParseConfig(t *testing.T) {
	found, err := parseConfig("misc", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 || found[0].name() != "misc/Basic/5Nodes" || found[1].name() != "misc/Basic/20000Nodes/1Init" {
		t.Fatalf("found %+v", found)
	}
	if found[0].hasPodGroups || !found[1].hasPodGroups {
		t.Errorf("hasPodGroups is %v and %v; want false and true", found[0].hasPodGroups, found[1].hasPodGroups)
	}
	if got := strings.Join(found[0].Labels, " "); got != "performance short" {
		t.Errorf("the labels of the first workload are %q", got)
	}
	if found[0].Threshold != 10 || found[1].Threshold != 0 {
		t.Errorf("the thresholds are %g and %g; want 10 and 0", found[0].Threshold, found[1].Threshold)
	}
	second := string(found[1].config)
	if strings.Contains(second, "threshold") || strings.Contains(second, "5Nodes") || !strings.Contains(second, "nodes: 20000") {
		t.Errorf("the configuration of the second workload must contain only this workload, and no threshold:\n%s", second)
	}
}

func TestRead(t *testing.T) {
	folder := t.TempDir()
	items := `{"version": "v1", "dataItems": [
		{"labels": {"Metric": "SchedulingThroughput"}, "unit": "pods/s", "data": {"Average": 100, "Perc50": 1}},
		{"labels": {"Metric": "SchedulingThroughput"}, "unit": "pods/s", "data": {"Average": 200, "Perc50": 1}},
		{"labels": {"Metric": "SchedulingDuration"}, "unit": "s", "data": {"Duration": 3}}]}`
	if err := os.WriteFile(filepath.Join(folder, "BenchmarkPerfScheduling_benchmark_misc_1.json"), []byte(items), 0o644); err != nil {
		t.Fatal(err)
	}
	var one run
	if err := one.read(folder); err != nil || one.PodsPerSecond != 150 || one.Seconds != 3 {
		t.Errorf("read stored %+v, error %v; want 150 pods/s and 3 s", one, err)
	}
}

func TestRow(t *testing.T) {
	r := row{workload: workload{Package: "misc", Case: "Basic", Size: "5Nodes"}, Runs: []run{
		{Search: stock, PodsPerSecond: 10, Seconds: 30}, {Search: ours, PodsPerSecond: 40, Seconds: 8},
		{Search: stock, PodsPerSecond: 20, Seconds: 20}, {Search: ours, PodsPerSecond: 50, Seconds: 7},
	}}
	r.conclude()
	if r.Stock != 15 || r.Ours != 45 || r.Ratio != 3 || r.StockSeconds != 25 || r.OursSeconds != 7.5 {
		t.Errorf("conclude computed %+v; want medians of 15 and 45 pods/s, ratio 3, and 25 s and 7.5 s", r)
	}
	timedOut := row{workload: r.workload, Runs: []run{{Search: stock, Error: "timed out"}, {Search: ours, PodsPerSecond: 40}}}
	timedOut.conclude()
	var out bytes.Buffer
	result{Rows: []row{r, timedOut}}.print(&out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if got := strings.Fields(lines[1]); strings.Join(got, " ") != "misc/Basic/5Nodes 15.0 45.0 3.00 25.0 7.5" {
		t.Errorf("the first row of the table is %q", got)
	}
	if got := strings.Fields(lines[2]); strings.Join(got, " ") != "misc/Basic/5Nodes timed out 40.0 – 0.0 0.0" {
		t.Errorf("the row of a workload that timed out is %q", got)
	}
}
