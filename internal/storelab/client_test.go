package storelab

import (
	"strings"
	"testing"
)

func TestParseBenchmark(t *testing.T) {
	const good = "\nSummary:\n  Total:\t1.2 secs.\n  Slowest:\t0.1 secs.\n  Requests/sec:\t8123.4567\n"
	if rate, err := parseBenchmark(good); err != nil || rate != 8123.4567 {
		t.Errorf("%v, %v", rate, err)
	}
	if _, err := parseBenchmark(good + "\nError distribution:\n  [3]\tetcdserver: no space\n"); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("errors were overlooked: %v", err)
	}
	if _, err := parseBenchmark("panic"); err == nil {
		t.Error("no rate, no error")
	}
}
