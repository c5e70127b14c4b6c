package clusterdir

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"
)

// AddFlags defines a flag for each setting. The current values are the defaults of the flags.
func (s *Settings) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&s.Nodes, "nodes", s.Nodes, "number of simulated nodes to create; existing nodes beyond this number are kept")
	fs.IntVar(&s.Zones, "zones", s.Zones, "number of topology zones; new nodes are spread evenly over the zones")
	fs.StringVar(&s.Store, "store", s.Store, "state store: mem_etcd|etcd")
	fs.StringVar(&s.WALMode, "wal-mode", s.WALMode, "durability of mem_etcd: none|buffered|fsync (default buffered; etcd always uses fsync)")
	fs.StringVar(&s.Scheduler, "scheduler", s.Scheduler, "scheduler program: kube-scheduler|dist-scheduler")
	fs.IntVar(&s.SchedulerReplicas, "scheduler-replicas", s.SchedulerReplicas, "number of dist-scheduler replicas, which divide the nodes among themselves")
	fs.IntVar(&s.SchedulerRelays, "scheduler-relays", s.SchedulerRelays, "number of additional dist-scheduler replicas that own no nodes and only relay queries")
	fs.StringVar(&s.SchedulerIntake, "scheduler-intake", s.SchedulerIntake, "how dist-scheduler receives new pods: watch|webhook; webhook adds an admission webhook to the watch and delivers pods earlier")
	fs.StringVar(&s.NodeSimulator, "node-simulator", s.NodeSimulator, "program that simulates the nodes: kwok|node-sim; node-sim sends the requests of kubelets and costs less")
	fs.StringVar(&s.NodeMode, "node-mode", s.NodeMode, "how node-sim connects the nodes: shared|wire|mixed; wire gives each node a connection, a certificate and the watches of a kubelet (default shared)")
	fs.IntVar(&s.WireNodes, "wire-nodes", s.WireNodes, "with --node-mode mixed, number of nodes that are connected as in mode wire")
	fs.IntVar(&s.NodeSims, "node-sims", s.NodeSims, "number of node-sim processes, which divide the nodes among themselves and are spread over the gateways")
	fs.IntVar(&s.ControllerManagers, "controller-managers", s.ControllerManagers, "number of controller managers; one leads, the others are its standby")
	fs.StringVar(&s.Standby, "standby", s.Standby, "standby of the leading controller manager: warm|cold; warm has the objects in memory (warm-controller-manager), cold reads them when it leads (kube-controller-manager)")
	fs.IntVar(&s.APIServers, "apiservers", s.APIServers, "number of kube-apiserver processes; clients are spread over them")
	fs.StringVar(&s.DataDir, "data-dir", s.DataDir, "data directory of the store (default: data/ in the cluster directory)")
	fs.IntVar(&s.APIServerPort, "apiserver-port", s.APIServerPort, "port of the first kube-apiserver (default: any free port)")
	fs.Var(optionalBool{&s.Gateway}, "gateway", "run kube-gateway in front of the API servers; all clients then connect to it (default false)")
	fs.Lookup("gateway").NoOptDefVal = "true"
	fs.IntVar(&s.Gateways, "gateways", s.Gateways, "number of kube-gateway processes; clients are spread over them")
	fs.StringVar(&s.GatewayConfig, "gateway-config", s.GatewayConfig, "YAML file with fields of kube-gateway's configuration, which override those that k1m writes")
	fs.IntVar(&s.StoreReplicas, "store-replicas", s.StoreReplicas, "number of members of the store: 1|3|5|7; each API server connects to all of them")
	fs.StringVar(&s.ReplicationLog, "replication-log", s.ReplicationLog, "with --store-replicas, what each member of mem_etcd keeps on the disk: fsync|buffered|memory (default buffered; etcd always uses fsync)")
	fs.BoolVar(&s.StoreFaults, "store-faults", s.StoreFaults, "with --store-replicas, forward the connections between members through the supervisor, so that members can be cut off (k1m store partition)")
	fs.StringArrayVar(&s.StoreFor, "store-for", s.StoreFor, "resources that get a store process of their own, RESOURCES=own, e.g. pods,events,leases=own; repeatable")
	fs.StringVar(&s.StoreAddress, "store-address", s.StoreAddress, "URL of a running store, e.g. https://127.0.0.1:2379; k1m then starts no store")
	fs.StringVar(&s.StoreCAFile, "store-cafile", s.StoreCAFile, "CA certificate that verifies the certificate of --store-address")
	fs.StringVar(&s.StoreCert, "store-certfile", s.StoreCert, "client certificate for --store-address")
	fs.StringVar(&s.StoreKey, "store-keyfile", s.StoreKey, "private key of --store-certfile")
	fs.BoolVar(&s.Trace, "trace", s.Trace, "run etcd-proxy between the API servers and the store, and record their requests and responses")
	fs.StringVar(&s.TraceFile, "trace-file", s.TraceFile, "trace file to write; `k1m down` does not remove it (default: in traces/ in the cluster directory)")
	fs.StringVar(&s.TraceValues, "trace-values", s.TraceValues, "how much of each value the trace contains: none|sizes|full; full includes the content of Secrets (default sizes)")
	fs.StringArrayVar(&s.APIServerArgs, "apiserver-arg", s.APIServerArgs, "additional kube-apiserver flag, key=value; repeatable")
	fs.StringArrayVar(&s.APIServerEnv, "apiserver-env", s.APIServerEnv, "environment variable of kube-apiserver, KEY=VALUE; repeatable")
	fs.StringArrayVar(&s.ControllerManagerArgs, "controller-manager-arg", s.ControllerManagerArgs, "additional kube-controller-manager flag, key=value; repeatable")
	fs.StringArrayVar(&s.ControllerManagerEnv, "controller-manager-env", s.ControllerManagerEnv, "environment variable of kube-controller-manager, KEY=VALUE; repeatable")
	fs.StringArrayVar(&s.SchedulerArgs, "scheduler-arg", s.SchedulerArgs, "additional scheduler flag, key=value; repeatable")
	fs.StringArrayVar(&s.SchedulerEnv, "scheduler-env", s.SchedulerEnv, "environment variable of the schedulers, KEY=VALUE; repeatable")
	fs.StringArrayVar(&s.StoreArgs, "store-arg", s.StoreArgs, "additional store flag, key=value; repeatable")
	fs.StringArrayVar(&s.KwokArgs, "kwok-arg", s.KwokArgs, "additional kwok flag, key=value; repeatable")
	fs.StringArrayVar(&s.NodeSimArgs, "node-sim-arg", s.NodeSimArgs, "additional node-sim flag, key=value; repeatable")
	fs.StringArrayVar(&s.GatewayArgs, "gateway-arg", s.GatewayArgs, "additional kube-gateway flag, key=value; repeatable")
	fs.StringArrayVar(&s.CPUs, "cpus", s.CPUs, "CPUs of a component or of all components with the same program, NAME=LIST, e.g. scheduler=0-3,8; repeatable (default: all CPUs)")
	fs.StringArrayVar(&s.Without, "without", s.Without, "component that is not started, kube-controller-manager or scheduler, to save memory in a very large cluster; repeatable")
	fs.StringVar(&s.Profile, "profile", s.Profile, "settings for clusters with many nodes: auto chooses them by --nodes, none uses none, or a name (see docs/k1m.md); other flags win")
}

// Overlay returns the saved settings, overridden by the flags that the user set in given. It ignores
// flags that are not settings.
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
	// The default WAL mode depends on the store, so the saved mode does not apply to another store.
	if (merged.Store != saved.Store || merged.replicatesMemEtcd() != saved.replicatesMemEtcd()) && !given.Changed("wal-mode") {
		merged.WALMode = ""
	}
	if !merged.replicatesMemEtcd() && !given.Changed("replication-log") {
		merged.ReplicationLog = ""
	}
	merged.overlayGateway(&saved, given)
	// kwok has no modes, so the saved mode does not apply to it.
	if merged.NodeSimulator != saved.NodeSimulator && !given.Changed("node-mode") {
		merged.NodeMode = ""
	}
	if merged.NodeSimulator != saved.NodeSimulator && !given.Changed("node-sims") {
		merged.NodeSims = 1
	}
	if merged.NodeMode != NodesMixed && !given.Changed("wire-nodes") {
		merged.WireNodes = 0
	}
	// kube-scheduler supports only the watch, so the saved intake does not apply to another scheduler.
	if merged.Scheduler != saved.Scheduler && !given.Changed("scheduler-intake") {
		merged.SchedulerIntake = IntakeWatch
	}
	// A single controller manager has no standby.
	if merged.ControllerManagers != saved.ControllerManagers && merged.ControllerManagers == 1 && !given.Changed("standby") {
		merged.Standby = StandbyCold
	}
	// Without a trace there is no trace file.
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

// Flags returns the flags of `k1m up` for a cluster with these settings. It sets only flags whose values
// differ from the defaults, and those that a profile must not change (Kept).
func (s Settings) Flags() (*pflag.FlagSet, error) {
	defaults := DefaultSettings()
	upFlags, wanted := pflag.NewFlagSet("up", pflag.ContinueOnError), pflag.NewFlagSet("wanted", pflag.ContinueOnError)
	defaults.AddFlags(upFlags)
	s.AddFlags(wanted)
	var failed error
	wanted.VisitAll(func(flag *pflag.Flag) {
		if err := setFlag(upFlags, flag, slices.Contains(s.Kept, flag.Name)); err != nil && failed == nil {
			failed = fmt.Errorf("--%s: %w", flag.Name, err)
		}
	})
	return upFlags, failed
}

// setFlag sets the flag of the same name to the value of wanted, unless that is already its value and need not be
// set.
func setFlag(flags *pflag.FlagSet, wanted *pflag.Flag, always bool) error {
	if !always && flags.Lookup(wanted.Name).Value.String() == wanted.Value.String() {
		return nil
	}
	list, ok := wanted.Value.(pflag.SliceValue)
	if !ok {
		return flags.Set(wanted.Name, wanted.Value.String())
	}
	for _, value := range list.GetSlice() {
		if err := flags.Set(wanted.Name, value); err != nil {
			return err
		}
	}
	return nil
}
