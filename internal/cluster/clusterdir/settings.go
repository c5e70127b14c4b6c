// Package clusterdir holds what k1m knows of one cluster: its settings, where
// its files lie, the ports it serves on, and the locks that keep two k1m
// processes from working on it at once.
package clusterdir

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	StoreMemEtcd = "mem_etcd"
	StoreEtcd    = "etcd"

	// StoreExternal is one that somebody else runs.
	StoreExternal = "external"

	SchedulerKube = "kube-scheduler"
	SchedulerDist = "dist-scheduler"

	IntakeWatch   = "watch"
	IntakeWebhook = "webhook"

	WALNone     = "none"
	WALBuffered = "buffered"
	WALFsync    = "fsync"

	// What a recording keeps of values.
	TraceNone  = "none"
	TraceSizes = "sizes"
	TraceFull  = "full"

	DefaultName = "k1m"

	// One machine: more API servers than this only share the same cores.
	maxAPIServers = 16
	maxSchedulers = 64
)

// A name becomes a folder, a certificate subject and a kubeconfig context.
var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// Settings are what a user chooses with `k1m up`. They are remembered, so that
// a later `up` without flags brings back the same cluster.
type Settings struct {
	Nodes      int    `json:"nodes"`
	Zones      int    `json:"zones"`
	Store      string `json:"store"`
	WALMode    string `json:"walMode"`
	Scheduler  string `json:"scheduler"`
	APIServers int    `json:"apiservers"`
	// SchedulerReplicas share the nodes, if they are more than one; SchedulerRelays are
	// beside them, and own none.
	SchedulerReplicas int `json:"schedulerReplicas"`
	SchedulerRelays   int `json:"schedulerRelays,omitempty"`
	// SchedulerIntake is how pods come to dist-scheduler.
	SchedulerIntake string `json:"schedulerIntake"`

	// DataDir is empty for the default, a folder beside the other files.
	DataDir string `json:"dataDir,omitempty"`
	// APIServerPort is 0 for any free port; further API servers take free ones.
	APIServerPort int `json:"apiserverPort,omitempty"`

	// StoreAddress is the URL of a store that runs already; k1m then starts none.
	StoreAddress string `json:"storeAddress,omitempty"`
	StoreCAFile  string `json:"storeCAFile,omitempty"`
	StoreCert    string `json:"storeCertFile,omitempty"`
	StoreKey     string `json:"storeKeyFile,omitempty"`

	// Trace puts etcd-proxy between the API servers and the store; TraceFile is empty
	// for a recording in the cluster's own folder.
	Trace       bool   `json:"trace,omitempty"`
	TraceFile   string `json:"traceFile,omitempty"`
	TraceValues string `json:"traceValues,omitempty"`

	APIServerArgs         []string `json:"apiserverArgs,omitempty"`
	APIServerEnv          []string `json:"apiserverEnv,omitempty"`
	ControllerManagerArgs []string `json:"controllerManagerArgs,omitempty"`
	SchedulerArgs         []string `json:"schedulerArgs,omitempty"`
	SchedulerEnv          []string `json:"schedulerEnv,omitempty"`
	StoreArgs             []string `json:"storeArgs,omitempty"`
	KwokArgs              []string `json:"kwokArgs,omitempty"`

	// CPUs have a process or a program, and the CPUs it may run on, as NAME=LIST.
	CPUs []string `json:"cpus,omitempty"`
}

// DefaultSettings suit a first try on a laptop.
func DefaultSettings() Settings {
	return Settings{
		Nodes:      100,
		Zones:      3,
		Store:      StoreMemEtcd,
		Scheduler:  SchedulerKube,
		APIServers: 1,

		SchedulerReplicas: 1,
		SchedulerIntake:   IntakeWatch,
	}
}

// AddFlags binds the settings to flags; their present values are the defaults.
func (s *Settings) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&s.Nodes, "nodes", s.Nodes, "simulated nodes that exist when up returns; never deletes any")
	fs.IntVar(&s.Zones, "zones", s.Zones, "zones over which new nodes are spread evenly")
	fs.StringVar(&s.Store, "store", s.Store, "state store: mem_etcd|etcd")
	fs.StringVar(&s.WALMode, "wal-mode", s.WALMode, "durability of mem_etcd: none|buffered|fsync (default buffered; etcd always does fsync)")
	fs.StringVar(&s.Scheduler, "scheduler", s.Scheduler, "kube-scheduler|dist-scheduler")
	fs.IntVar(&s.SchedulerReplicas, "scheduler-replicas", s.SchedulerReplicas, "dist-scheduler processes that share the nodes")
	fs.IntVar(&s.SchedulerRelays, "scheduler-relays", s.SchedulerRelays, "further ones that own no nodes, and hand questions on")
	fs.StringVar(&s.SchedulerIntake, "scheduler-intake", s.SchedulerIntake, "how pods come to dist-scheduler: watch|webhook, which is earlier and has the watch beside it")
	fs.IntVar(&s.APIServers, "apiservers", s.APIServers, "kube-apiserver processes; clients are spread over them")
	fs.StringVar(&s.DataDir, "data-dir", s.DataDir, "where the store keeps its data (default: the cluster's own folder)")
	fs.IntVar(&s.APIServerPort, "apiserver-port", s.APIServerPort, "port of the first kube-apiserver (default: a free one)")
	fs.StringVar(&s.StoreAddress, "store-address", s.StoreAddress, "URL of a store that runs already, e.g. https://127.0.0.1:2379; none is started then")
	fs.StringVar(&s.StoreCAFile, "store-cafile", s.StoreCAFile, "CA that signed the certificate of --store-address")
	fs.StringVar(&s.StoreCert, "store-certfile", s.StoreCert, "client certificate for --store-address")
	fs.StringVar(&s.StoreKey, "store-keyfile", s.StoreKey, "key of --store-certfile")
	fs.BoolVar(&s.Trace, "trace", s.Trace, "record what the API servers ask of the store and what it answers; etcd-proxy stands between them")
	fs.StringVar(&s.TraceFile, "trace-file", s.TraceFile, "record to this file, which down leaves where it is (default: traces/ in the cluster's own folder)")
	fs.StringVar(&s.TraceValues, "trace-values", s.TraceValues, "what the recording keeps of values: none|sizes|full, which has the Secrets, too (default sizes)")
	fs.StringArrayVar(&s.APIServerArgs, "apiserver-arg", s.APIServerArgs, "further kube-apiserver flag, key=value; repeatable")
	fs.StringArrayVar(&s.APIServerEnv, "apiserver-env", s.APIServerEnv, "environment of kube-apiserver, KEY=VALUE; repeatable")
	fs.StringArrayVar(&s.ControllerManagerArgs, "controller-manager-arg", s.ControllerManagerArgs, "further kube-controller-manager flag, key=value; repeatable")
	fs.StringArrayVar(&s.SchedulerArgs, "scheduler-arg", s.SchedulerArgs, "further scheduler flag, key=value; repeatable")
	fs.StringArrayVar(&s.SchedulerEnv, "scheduler-env", s.SchedulerEnv, "environment of the schedulers, KEY=VALUE; repeatable")
	fs.StringArrayVar(&s.StoreArgs, "store-arg", s.StoreArgs, "further store flag, key=value; repeatable")
	fs.StringArrayVar(&s.KwokArgs, "kwok-arg", s.KwokArgs, "further kwok flag, key=value; repeatable")
	fs.StringArrayVar(&s.CPUs, "cpus", s.CPUs, "CPUs on which a process, or all of a program, may run, such as scheduler=0-3,8; repeatable (default: all)")
}

// Complete fills in what follows from other settings.
func (s *Settings) Complete() {
	if s.SchedulerReplicas == 0 {
		// A cluster that was made before there was a choice.
		s.SchedulerReplicas = 1
	}
	if s.SchedulerIntake == "" {
		// A cluster that was made before there was a choice.
		s.SchedulerIntake = IntakeWatch
	}
	if s.WALMode != "" {
		return
	}
	s.WALMode = WALBuffered
	if s.Store == StoreEtcd {
		s.WALMode = WALFsync
	}
}

// DescribeStore says where the state is, and what a crash may cost of it.
func (s *Settings) DescribeStore() string {
	if s.StoreAddress != "" {
		return "store " + s.StoreAddress
	}
	if mode := s.OwnWALMode(); mode != "" {
		return fmt.Sprintf("%s, wal-mode %s", s.Store, mode)
	}
	return s.Store
}

// StoreKind is the store that k1m runs, or StoreExternal.
func (s *Settings) StoreKind() string {
	if s.StoreAddress != "" {
		return StoreExternal
	}
	return s.Store
}

// OwnWALMode is empty for stores that know no such modes.
func (s *Settings) OwnWALMode() string {
	if s.StoreKind() != StoreMemEtcd {
		return ""
	}
	return s.WALMode
}

// KeepsData says whether a store of ours writes to a data directory.
func (s *Settings) KeepsData() bool {
	return s.StoreAddress == "" && s.WALMode != WALNone
}

// Validate reports the first setting that cannot be, and what to do about it.
func (s *Settings) Validate() error {
	for _, check := range []func() error{s.validateShape, s.validateStore, s.validateTrace, s.validateScheduler, s.validatePassThrough, s.validateCPUs} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Settings) validateShape() error {
	switch {
	case s.Nodes < 0:
		return usage.Errorf("--nodes %d: a cluster cannot have fewer than 0 nodes; use --nodes 0 for none", s.Nodes)
	case s.Zones < 1:
		return usage.Errorf("--zones %d: nodes need at least one zone; use --zones 1", s.Zones)
	case s.APIServers < 1 || s.APIServers > maxAPIServers:
		return usage.Errorf("--apiservers %d: choose 1 to %d", s.APIServers, maxAPIServers)
	case s.APIServerPort < 0 || s.APIServerPort > 65535:
		return usage.Errorf("--apiserver-port %d: ports go from 1 to 65535; leave the flag out for a free one", s.APIServerPort)
	}
	return nil
}

func (s *Settings) validateStore() error {
	switch {
	case s.Store != StoreMemEtcd && s.Store != StoreEtcd:
		return usage.Errorf("--store %q: no such store; choose mem_etcd or etcd", s.Store)
	case s.WALMode != "" && !slices.Contains([]string{WALNone, WALBuffered, WALFsync}, s.WALMode):
		return usage.Errorf("--wal-mode %q: no such mode; choose none, buffered or fsync", s.WALMode)
	case s.Store == StoreEtcd && s.WALMode != "" && s.WALMode != WALFsync:
		return usage.Errorf("--wal-mode %s: etcd always does fsync; leave the flag out or use --store mem_etcd", s.WALMode)
	case s.WALMode == WALNone && s.DataDir != "":
		return usage.Errorf("--wal-mode none keeps nothing, so it takes no --data-dir; leave one of them out")
	case s.StoreAddress == "":
		if s.StoreCAFile+s.StoreCert+s.StoreKey != "" {
			return usage.Errorf("--store-cafile, --store-certfile and --store-keyfile need --store-address")
		}
		return nil
	}
	return s.validateStoreAddress()
}

func (s *Settings) validateStoreAddress() error {
	u, err := url.Parse(s.StoreAddress)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Port() == "" {
		return usage.Errorf("--store-address %q: not a URL with a port; write it like https://127.0.0.1:2379", s.StoreAddress)
	}
	if (s.StoreCert == "") != (s.StoreKey == "") {
		return usage.Errorf("--store-certfile and --store-keyfile go together; give both or none")
	}
	return nil
}

func (s *Settings) validateTrace() error {
	switch {
	case !s.Trace && s.TraceFile+s.TraceValues != "":
		return usage.Errorf("--trace-file and --trace-values need --trace; add it")
	case s.TraceValues != "" && !slices.Contains([]string{TraceNone, TraceSizes, TraceFull}, s.TraceValues):
		return usage.Errorf("--trace-values %q: choose none, sizes or full", s.TraceValues)
	}
	return nil
}

func (s *Settings) validateScheduler() error {
	if s.Scheduler != SchedulerKube && s.Scheduler != SchedulerDist {
		return usage.Errorf("--scheduler %q: no such scheduler; choose kube-scheduler or dist-scheduler", s.Scheduler)
	}
	if err := s.validateReplicas(); err != nil {
		return err
	}
	return s.validateIntake()
}

func (s *Settings) validateReplicas() error {
	switch {
	case s.SchedulerReplicas < 1 || s.SchedulerReplicas > maxSchedulers:
		return usage.Errorf("--scheduler-replicas %d: choose 1 to %d", s.SchedulerReplicas, maxSchedulers)
	case s.SchedulerRelays < 0 || s.SchedulerRelays > maxSchedulers:
		return usage.Errorf("--scheduler-relays %d: choose 0 to %d", s.SchedulerRelays, maxSchedulers)
	case s.Scheduler != SchedulerDist && s.SchedulerReplicas+s.SchedulerRelays > 1:
		return usage.Errorf("--scheduler-replicas and --scheduler-relays: %s shares no nodes; add --scheduler dist-scheduler", s.Scheduler)
	}
	return nil
}

func (s *Settings) validateIntake() error {
	switch {
	case s.SchedulerIntake == IntakeWatch:
	case s.SchedulerIntake == "both":
		return usage.Errorf("--scheduler-intake both: the watch is beside the webhook in any case; use --scheduler-intake webhook")
	case s.SchedulerIntake != IntakeWebhook:
		return usage.Errorf("--scheduler-intake %q: no such intake; choose watch or webhook", s.SchedulerIntake)
	case s.Scheduler != SchedulerDist:
		return usage.Errorf("--scheduler-intake webhook: %s has a watch only; add --scheduler dist-scheduler", s.Scheduler)
	}
	return nil
}

// SharesNodes says whether there are several schedulers that share the nodes.
func (s *Settings) SharesNodes() bool { return s.SchedulerReplicas+s.SchedulerRelays > 1 }

// Schedulers are the names of all schedulers, those that own no nodes last.
func (s *Settings) Schedulers() []string {
	names := []string{s.Scheduler}
	for i := 1; i < s.SchedulerReplicas; i++ {
		names = append(names, fmt.Sprintf("%s-%d", s.Scheduler, i))
	}
	for i := range s.SchedulerRelays {
		names = append(names, fmt.Sprintf("%s-relay-%d", s.Scheduler, i))
	}
	return names
}

// ReplicaPort is what the port of a scheduler is called at which others reach it.
func ReplicaPort(scheduler string) string { return scheduler + "-replica" }

// IntakePort is what the port of a scheduler is called at which API servers tell it of
// pods, while it leads.
func IntakePort(scheduler string) string { return scheduler + "-intake" }

func (s *Settings) validatePassThrough() error {
	lists := []struct {
		flag   string
		values []string
	}{
		{"--apiserver-arg", s.APIServerArgs},
		{"--apiserver-env", s.APIServerEnv},
		{"--controller-manager-arg", s.ControllerManagerArgs},
		{"--scheduler-arg", s.SchedulerArgs},
		{"--scheduler-env", s.SchedulerEnv},
		{"--store-arg", s.StoreArgs},
		{"--kwok-arg", s.KwokArgs},
	}
	for _, list := range lists {
		for _, value := range list.values {
			if key, _, found := strings.Cut(value, "="); !found || strings.TrimLeft(key, "-") == "" {
				return usage.Errorf("%s %q: not of the form key=value", list.flag, value)
			}
		}
	}
	return nil
}

// ValidateName reports why a name cannot be a cluster's.
func ValidateName(name string) error {
	if !validName.MatchString(name) {
		return usage.Errorf("--name %q: use 1 to 40 of a-z, 0-9 and '-', beginning and ending with a letter or digit", name)
	}
	return nil
}

// Overlay returns saved settings with the flags that were given on the command
// line put over them.
func Overlay(saved Settings, given *pflag.FlagSet) (Settings, error) {
	merged := saved
	fs := pflag.NewFlagSet("saved", pflag.ContinueOnError)
	merged.AddFlags(fs)
	var errs []error
	given.Visit(func(flag *pflag.Flag) {
		target := fs.Lookup(flag.Name)
		if target == nil {
			return
		}
		errs = append(errs, copyFlag(target.Value, flag.Value))
	})
	// Another store has another default durability.
	if merged.Store != saved.Store && !given.Changed("wal-mode") {
		merged.WALMode = ""
	}
	// And another scheduler may have a watch only.
	if merged.Scheduler != saved.Scheduler && !given.Changed("scheduler-intake") {
		merged.SchedulerIntake = IntakeWatch
	}
	// And what is not recorded has no file.
	if !merged.Trace && given.Changed("trace") {
		if !given.Changed("trace-file") {
			merged.TraceFile = ""
		}
		if !given.Changed("trace-values") {
			merged.TraceValues = ""
		}
	}
	return merged, errors.Join(errs...)
}

func copyFlag(to, from pflag.Value) error {
	if list, ok := from.(pflag.SliceValue); ok {
		return to.(pflag.SliceValue).Replace(list.GetSlice())
	}
	return to.Set(from.String())
}
