package storeserver

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

func TestParseBenchmark(t *testing.T) {
	const good = "\nSummary:\n  Total:\t1.2 secs.\n  Slowest:\t0.1 secs.\n  Requests/sec:\t8123.4567\n"
	if rate, err := parseBenchmark(good); err != nil || rate != 8123.4567 {
		t.Errorf("parseBenchmark returned %v, %v; want 8123.4567", rate, err)
	}
	if _, err := parseBenchmark(good + "\nError distribution:\n  [3]\tetcdserver: no space\n"); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("for an output with failed operations, parseBenchmark returned %v", err)
	}
	if _, err := parseBenchmark("panic"); err == nil {
		t.Error("parseBenchmark accepted an output without a rate")
	}
}

func TestReportOfFailedOperations(t *testing.T) {
	for _, c := range []struct {
		script           string
		failedOperations bool
	}{
		{`echo '{"ops": 30, "errors": 10, "errorsByKind": {"too many requests": 10}}'; exit 1`, true},
		{`echo '{"ops": 30, "errors": 0, "watch": {"complete": false}}'; exit 1`, false},
		{`echo broken; exit 1`, false},
		{`echo broken`, false},
	} {
		client := &Client{cmd: exec.CommandContext(t.Context(), "sh", "-c", c.script), Command: "etcd-bench"}
		client.cmd.Stdout = &client.output
		if err := client.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		r, err := client.Report(t.Context())
		if err == nil || errors.Is(err, ErrOperations) != c.failedOperations || c.failedOperations != (r.Errors == 10) {
			t.Errorf("for the load generator %q, Report returned %+v, %v; want ErrOperations: %v",
				c.script, r, err, c.failedOperations)
		}
	}
}
