package storeserver

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

func TestParseBenchmarkReturnsRateOrError(t *testing.T) {
	const complete = "\nSummary:\n  Total:\t1.2 secs.\n  Slowest:\t0.1 secs.\n  Requests/sec:\t8123.4567\n"
	if rate, err := parseBenchmark(complete); err != nil || rate != 8123.4567 {
		t.Errorf("parseBenchmark() of complete output = %v, %v, want 8123.4567, nil", rate, err)
	}
	if _, err := parseBenchmark(complete + "\nError distribution:\n  [3]\tetcdserver: no space\n"); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("parseBenchmark() of output with errors = %v, want an error with %q", err, "no space")
	}
	if _, err := parseBenchmark("panic"); err == nil {
		t.Error("parseBenchmark() of output without a rate succeeded, want an error")
	}
}

// TestReportDistinguishesFailedOperations runs scripts in place of etcd-bench. The report of a run
// with failed operations is returned with ErrOperations, other failures with another error.
func TestReportDistinguishesFailedOperations(t *testing.T) {
	for _, c := range []struct {
		script           string
		operationsFailed bool
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
		if err == nil || errors.Is(err, ErrOperations) != c.operationsFailed || c.operationsFailed != (r.Errors == 10) {
			t.Errorf("Report() of %s = %+v, %v, want an error, ErrOperations and 10 errors: %v", c.script, r, err, c.operationsFailed)
		}
	}
}
