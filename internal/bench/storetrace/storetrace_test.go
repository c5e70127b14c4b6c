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
		t.Errorf("Validate() of the default options = %v, want nil", o.Validate())
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
			t.Errorf("Validate() with an invalid %s = %v, want a usage error that starts with the flag", name, err)
		}
	}
}

func TestClusterFlagsEnableRecording(t *testing.T) {
	o := DefaultOptions()
	flags, err := o.clusterFlags("/trace.zst")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"trace": "true", "trace-file": "/trace.zst", "nodes": "100"} {
		if flag := flags.Lookup(name); !flag.Changed || flag.Value.String() != value {
			t.Errorf("--%s = %s (set: %v), want %s", name, flag.Value, flag.Changed, value)
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
		t.Errorf("Err() of a complete recording = %v, want nil", err)
	}
	var printed strings.Builder
	r.Print(&printed)
	if !strings.Contains(printed.String(), "Status") || strings.Contains(printed.String(), "get(k)") {
		t.Errorf("Print() wrote\n%s\nwant the shape Status and not the shape get(k)", &printed)
	}
	r.Summary.Totals.MissingRecords = 1
	if err := r.Err(); !errors.Is(err, ErrIncomplete) {
		t.Errorf("Err() with a missing line = %v, want %v", err, ErrIncomplete)
	}
	r.Summary.Totals.MissingRecords, r.Summary.Totals.Calls = 0, 0
	if err := r.Err(); !errors.Is(err, ErrIncomplete) {
		t.Errorf("Err() without calls = %v, want %v", err, ErrIncomplete)
	}
}
