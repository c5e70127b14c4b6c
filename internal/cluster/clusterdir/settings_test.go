package clusterdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

func TestDefaultsAreValid(t *testing.T) {
	s := DefaultSettings()
	s.Complete()
	if err := s.Validate(); err != nil {
		t.Fatalf("Validate() of the default settings = %v, want nil", err)
	}
	if s.WALMode != WALBuffered {
		t.Errorf("default WAL mode = %q, want %q", s.WALMode, WALBuffered)
	}
}

func TestInvalidSettingsAreUsageErrors(t *testing.T) {
	changes := map[string]func(*Settings){
		"negative number of nodes":            func(s *Settings) { s.Nodes = -1 },
		"no zones":                            func(s *Settings) { s.Zones = 0 },
		"too many API servers":                func(s *Settings) { s.APIServers = 17 },
		"negative port":                       func(s *Settings) { s.APIServerPort = -1 },
		"unknown store":                       func(s *Settings) { s.Store = "x" },
		"WAL mode of etcd":                    func(s *Settings) { s.Store, s.WALMode = StoreEtcd, WALBuffered },
		"unknown scheduler":                   func(s *Settings) { s.Scheduler = "x" },
		"unknown intake":                      func(s *Settings) { s.Scheduler, s.SchedulerIntake = SchedulerDist, "both" },
		"webhook intake of kube-scheduler":    func(s *Settings) { s.SchedulerIntake = IntakeWebhook },
		"unknown scheme of the store address": func(s *Settings) { s.StoreAddress = "ftp://x:1" },
		"certificate without key":             func(s *Settings) { s.StoreAddress, s.StoreCert = "https://x:1", "cert" },
		"CA without address":                  func(s *Settings) { s.StoreCAFile = "ca" },
		"unknown node simulator":              func(s *Settings) { s.NodeSimulator = "kubemark" },
		"mode of kwok":                        func(s *Settings) { s.NodeMode = NodesWire },
		"unknown node mode":                   func(s *Settings) { s.NodeSimulator, s.NodeMode = SimulatorNodeSim, "own" },
		"mode mixed without a number":         func(s *Settings) { s.NodeSimulator, s.NodeMode = SimulatorNodeSim, NodesMixed },
		"number without mode mixed":           func(s *Settings) { s.NodeSimulator, s.WireNodes = SimulatorNodeSim, 3 },
		"without the store":                   func(s *Settings) { s.Without = []string{"store"} },
		"too many controller managers":        func(s *Settings) { s.ControllerManagers = 9 },
		"unknown standby":                     func(s *Settings) { s.ControllerManagers, s.Standby = 2, "hot" },
		"warm standby of nobody":              func(s *Settings) { s.Standby = StandbyWarm },
		"controller managers that do not run": func(s *Settings) { s.ControllerManagers, s.Without = 2, []string{ControllerManager} },
		"several kwoks":                       func(s *Settings) { s.NodeSims = 2 },
		"argument without name":               func(s *Settings) { s.KwokArgs = []string{"--=x"} },
		"CPUs of an unknown process":          func(s *Settings) { s.CPUs = []string{"kube-proxy=0"} },
		"malformed CPU list":                  func(s *Settings) { s.CPUs = []string{"kwok=0-"} },
		"CPU that does not exist":             func(s *Settings) { s.CPUs = []string{"kwok=0-99999"} },
		"WAL mode none with a data directory": func(s *Settings) { s.WALMode, s.DataDir = WALNone, "/data" },
	}
	for name, change := range changes {
		s := DefaultSettings()
		change(&s)
		if err := s.Validate(); !errors.Is(err, usage.Err) {
			t.Errorf("%s: Validate() = %v, want a usage error", name, err)
		}
	}
}

func TestLastMatchingCPUsEntryWins(t *testing.T) {
	s := overlay(t, DefaultSettings(), "--cpus", "kube-apiserver=0", "--cpus", "kube-apiserver-1=0-0,0", "--cpus", "kwok=0", "--apiservers", "2")
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	for process, want := range map[string]string{"kube-apiserver": "0", "kube-apiserver-1": "0-0,0"} {
		if got := s.CPUsOf(process, "kube-apiserver"); got != want {
			t.Errorf("CPUsOf(%q, %q) = %q, want %q", process, "kube-apiserver", got, want)
		}
	}
	if got := s.CPUsOf("store", "mem_etcd"); got != "" {
		t.Errorf("CPUsOf(%q, %q) = %q, want none", "store", "mem_etcd", got)
	}
}

func TestClusterNamesAreValidated(t *testing.T) {
	for name, valid := range map[string]bool{
		"k1m": true, "a": true, "a-b-9": true,
		"": false, "-a": false, "a-": false, "A": false, "a/b": false, "..": false, "a.b": false,
		"12345678901234567890123456789012345678901": false,
	} {
		if err := ValidateName(name); (err == nil) != valid {
			t.Errorf("ValidateName(%q) = %v, want valid: %v", name, err, valid)
		}
	}
}

func TestOverlayOverridesSavedSettingsWithGivenFlags(t *testing.T) {
	saved := DefaultSettings()
	saved.Nodes, saved.Store, saved.APIServerArgs = 7, StoreEtcd, []string{"v=2", "a=b"}
	saved.Complete()

	merged := overlay(t, saved, "--zones", "5", "--apiserver-arg", "event-ttl=1m,2m", "--apiserver-arg", "v=4")
	if merged.Nodes != 7 || merged.Zones != 5 || merged.WALMode != WALFsync {
		t.Errorf("Overlay() = %+v, want 7 nodes as saved, 5 zones and WAL mode %s", merged, WALFsync)
	}
	if got := merged.APIServerArgs; len(got) != 2 || got[0] != "event-ttl=1m,2m" || got[1] != "v=4" {
		t.Errorf("Overlay() = arguments %q, want those of the flags", got)
	}
	if saved.APIServerArgs[0] != "v=2" || saved.Zones != 3 {
		t.Errorf("Overlay() changed the saved settings to %+v", saved)
	}
}

func TestOverlayResetsStandbyOfASingleControllerManager(t *testing.T) {
	saved := DefaultSettings()
	saved.ControllerManagers, saved.Standby = 2, StandbyWarm
	given := pflag.NewFlagSet("up", pflag.ContinueOnError)
	flags := DefaultSettings()
	flags.AddFlags(given)
	if err := given.Parse([]string{"--controller-managers", "1"}); err != nil {
		t.Fatal(err)
	}
	merged, err := Overlay(saved, given)
	if err != nil || merged.Standby != StandbyCold || merged.Validate() != nil {
		t.Errorf("Overlay() = standby %q, %v; want cold", merged.Standby, err)
	}
}

func TestOverlayResetsWALModeWhenStoreChanges(t *testing.T) {
	saved := DefaultSettings()
	saved.Store = StoreEtcd
	saved.Complete()
	merged := overlay(t, saved, "--store", StoreMemEtcd)
	merged.Complete()
	if merged.WALMode != WALBuffered {
		t.Errorf("WAL mode after a change to mem_etcd = %q, want %q", merged.WALMode, WALBuffered)
	}
}

func TestTraceFlagsRequireTrace(t *testing.T) {
	saved := overlay(t, DefaultSettings(), "--trace", "--trace-file", "f.jsonl.zst", "--trace-values", "full")
	if err := saved.Validate(); err != nil {
		t.Errorf("Validate() with --trace = %v, want nil", err)
	}
	if off := overlay(t, saved, "--trace=false"); off.TraceFile != "" || off.Validate() != nil {
		t.Errorf("settings after --trace=false = %+v, Validate() = %v, want no trace file, nil", off, off.Validate())
	}
	for _, args := range [][]string{{"--trace-file", "f"}, {"--trace-values", "none"}, {"--trace", "--trace-values", "all"}} {
		if settings := overlay(t, DefaultSettings(), args...); settings.Validate() == nil {
			t.Errorf("Validate() with %q succeeded, want an error", args)
		}
	}
}

func TestTraceFilesEndAtFirstMissingNumber(t *testing.T) {
	t.Setenv("K1M_HOME", t.TempDir())
	dir, err := NewDir("test")
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Create(); err != nil {
		t.Fatal(err)
	}
	config := NewConfig("test", DefaultSettings())
	for _, name := range []string{"trace.jsonl.zst", "trace-2.jsonl.zst", "trace-4.jsonl.zst"} {
		if err := os.WriteFile(filepath.Join(dir.Traces(), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := config.TraceFiles(dir)
	if len(files) != 2 || filepath.Base(files[1]) != "trace-2.jsonl.zst" {
		t.Errorf("TraceFiles() = %q, want trace.jsonl.zst and trace-2.jsonl.zst", files)
	}
}

// overlay returns saved settings, changed by the flags of a command line.
func overlay(t *testing.T, saved Settings, args ...string) Settings {
	t.Helper()
	given := DefaultSettings()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	given.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	merged, err := Overlay(saved, fs)
	if err != nil {
		t.Fatal(err)
	}
	return merged
}

func TestEtcdPrefixIsThatOfTheAPIServers(t *testing.T) {
	for prefix, args := range map[string][]string{
		"/registry": {"v=2"}, "/other": {"--etcd-prefix=/x", "etcd-prefix=other/"},
	} {
		s := Settings{APIServerArgs: args}
		if got := s.EtcdPrefix(); got != prefix {
			t.Errorf("EtcdPrefix() with %q = %q, want %q", args, got, prefix)
		}
	}
}
