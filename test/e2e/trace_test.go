package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestTraceIsComplete checks that the trace of a cluster misses no records and contains the requests for the
// cluster's objects.
func TestTraceIsComplete(t *testing.T) {
	w := newWorkspace(t)
	const name = "traced"
	file := filepath.Join(t.TempDir(), "trace.jsonl.zst")
	t.Cleanup(func() { w.k1m(t, "down", "--name", name) })
	w.succeed(t, "up", "--name", name, "--nodes", "3", "--store", storeKind(), "--trace", "--trace-file", file)
	w.succeed(t, "pods", "create", "--name", name, "--count", "2")
	w.succeed(t, "down", "--name", name)

	r := finish(t, exec.Command(filepath.Join(w.bin, "etcd-proxy"), "report", file, "--output", "json"))
	if r.code != 0 {
		t.Fatalf("etcd-proxy report: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	var report struct {
		Totals struct{ Calls, MissingRecords, TruncatedFiles int }
		Kinds  []struct {
			Kind          string
			Writes        int
			Watches       int
			RequestBytes  int
			ResponseBytes int
		}
	}
	must(t, json.Unmarshal([]byte(r.stdout), &report))
	if report.Totals.Calls == 0 || report.Totals.MissingRecords != 0 || report.Totals.TruncatedFiles != 0 {
		t.Errorf("the trace has no calls, missing records or truncated files: %+v", report.Totals)
	}
	// minWrites counts the creation, bind and status of each pod, and the creation of each node and Lease.
	minWrites := map[string]int{"pods": 2 * 3, "minions": 3, "leases": 3}
	for _, kind := range report.Kinds {
		if writes, expected := minWrites[kind.Kind]; expected {
			delete(minWrites, kind.Kind)
			if kind.Writes < writes || kind.Watches == 0 || kind.RequestBytes == 0 || kind.ResponseBytes == 0 {
				t.Errorf("the trace has too few requests of a kind: %+v", kind)
			}
		}
	}
	if len(minWrites) > 0 {
		t.Errorf("the trace has no requests of the kinds %v", minWrites)
	}
}
