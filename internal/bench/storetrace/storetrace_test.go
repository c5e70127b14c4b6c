package storetrace

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func TestInvalidOptionsAreUsageErrors(t *testing.T) {
	if o := DefaultOptions(); o.Validate() != nil {
		t.Errorf("the default options are invalid: %v", o.Validate())
	}
	for name, change := range map[string]func(*Options){
		"--nodes":    func(o *Options) { o.Nodes = 0 },
		"--replicas": func(o *Options) { o.Replicas = 1 },
		"--objects":  func(o *Options) { o.Objects = 0 },
		"--store":    func(o *Options) { o.Store = "redis" },
		"--timeout":  func(o *Options) { o.Timeout = 0 },
		"--out":      func(o *Options) { o.Out = "" },
	} {
		o := DefaultOptions()
		change(&o)
		if err := o.Validate(); !errors.Is(err, usage.Err) || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("with invalid %s, Validate returned %v, not a usage error that starts with the flag", name, err)
		}
	}
}

func TestClusterFlagsEnableTrace(t *testing.T) {
	o := DefaultOptions()
	flags, err := o.clusterFlags("/trace.zst")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"trace": "true", "trace-file": "/trace.zst", "nodes": "100"} {
		if flag := flags.Lookup(name); !flag.Changed || flag.Value.String() != value {
			t.Errorf("--%s is %q, want %q", name, flag.Value, value)
		}
	}
}

func TestMissingRecordsAreAnError(t *testing.T) {
	const text = `{"totals": {"calls": 3, "streams": 1, "missingRecords": 0},
		"classes": [{"class": "other", "count": 2, "shapes": 1}],
		"shapes": [{"shape": "Range: get(k)", "class": "get", "count": 7}, {"shape": "Status", "class": "other", "count": 2}]}`
	var r Result
	if err := json.Unmarshal([]byte(text), &r.Summary); err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); err != nil {
		t.Errorf("a complete trace returned the error %v", err)
	}
	var printed strings.Builder
	r.Print(&printed)
	if !strings.Contains(printed.String(), "Status") || strings.Contains(printed.String(), "get(k)") {
		t.Errorf("Print must list requests of class other only; it printed\n%s", &printed)
	}
	r.Summary.Totals.MissingRecords = 1
	if err := r.Err(); !errors.Is(err, ErrIncomplete) {
		t.Errorf("with a missing record, Err returned %v, not ErrIncomplete", err)
	}
	r.Summary.Totals.MissingRecords, r.Summary.Totals.Calls = 0, 0
	if err := r.Err(); !errors.Is(err, ErrIncomplete) {
		t.Errorf("without a call, Err returned %v, not ErrIncomplete", err)
	}
}
