// Package profile has the settings that clusters with many nodes need. A [Profile] is chosen by the number of
// nodes. [Apply] sets its flags of `k1m up`, each with a reason, unless the user has set them. [Remove] takes them
// out again, so that the next `k1m up` starts from the user's settings. rules.go lists the flags.
package profile

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

// Numbers of nodes from which on the profiles are chosen.
const (
	tenThousand      = 10_000
	fiftyThousand    = 50_000
	twoHundred       = 200_000
	sevenHundred     = 700_000
	defaultInterval  = 10 * time.Second
	intervalsOfGrace = 5
)

// Profile is a set of settings for clusters with at least so many nodes.
type Profile struct {
	// Name is the least number of nodes, in short form.
	Name  string
	Nodes int
	// Timeout is the time limit of `k1m up` (--timeout).
	Timeout time.Duration

	// interval is the time between two renewals of a node's Lease.
	interval time.Duration
	// reports is the time between two reports of a node's status.
	reports time.Duration
	// MonitorPeriod is the time between two passes of kube-controller-manager over all nodes; 0 for the default.
	MonitorPeriod time.Duration
	// grace is how long kube-controller-manager waits for a renewal.
	grace time.Duration
	// compaction is the time between two compactions of the store by kube-apiserver.
	compaction time.Duration
	// retention is what mem_etcd keeps when it compacts by itself; 0 if it does not.
	retention time.Duration
	// apiserverMemory is the share of the machine's memory, in percent, up to which the heap of kube-apiserver grows as usual; 0 for
	// no limit.
	apiserverMemory uint64
}

// profiles are ordered by their number of nodes. A time that is 0 keeps the default.
var profiles = []Profile{
	{Name: "10k", Nodes: tenThousand, Timeout: 5 * time.Minute, interval: defaultInterval, grace: 2 * time.Minute},
	{
		Name: "50k", Nodes: fiftyThousand, Timeout: 10 * time.Minute, interval: defaultInterval,
		reports: 30 * time.Minute, MonitorPeriod: 20 * time.Second, grace: 5 * time.Minute,
		compaction: 2 * time.Minute,
	},
	{
		Name: "200k", Nodes: twoHundred, Timeout: 20 * time.Minute, interval: 40 * time.Second,
		reports: 2 * time.Hour, MonitorPeriod: time.Minute, grace: 10 * time.Minute,
		compaction: 2 * time.Minute, apiserverMemory: memoryPercent,
	},
	{
		Name: "700k", Nodes: sevenHundred, Timeout: time.Hour, interval: 200 * time.Second,
		reports: 6 * time.Hour, MonitorPeriod: 2 * time.Minute, grace: 30 * time.Minute,
		// kube-apiserver takes 3.5 minutes to read a million Nodes from the store, and dist-scheduler 9. What they still read must
		// not be compacted: they would begin again. With 30 % of the memory, kube-apiserver only collected garbage, and with 40 % nearly; with 50 %,
		// nothing was left for the others.
		compaction: 10 * time.Minute, retention: 3 * time.Minute, apiserverMemory: 45,
	},
}

// Machine is what a profile needs to know about the machine. A value that is not known is 0.
type Machine struct {
	// Memory is the memory in bytes.
	Memory uint64
	// OpenFiles is the largest number of open files of a process.
	OpenFiles uint64
}

// Names returns the names of all profiles, the one for the fewest nodes first.
func Names() (names []string) {
	for _, p := range profiles {
		names = append(names, p.Name)
	}
	return names
}

// Named returns the profile with a name.
func Named(name string) (Profile, bool) {
	i := slices.IndexFunc(profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, false
	}
	return profiles[i], true
}

// For returns the profile for a number of nodes. ok is false if so few nodes need none.
func For(nodes int) (p Profile, ok bool) {
	for _, candidate := range profiles {
		if nodes >= candidate.Nodes {
			p, ok = candidate, true
		}
	}
	return p, ok
}

// Apply returns settings with the profile that their field Profile names or chooses. given are the flags of this
// call of `k1m up`. A flag that the user has set, now or earlier, keeps its value.
func Apply(s clusterdir.Settings, given *pflag.FlagSet, m Machine) (clusterdir.Settings, error) {
	var p Profile
	found := false
	switch s.Profile {
	case clusterdir.ProfileNone, "":
		return s, nil
	case clusterdir.ProfileAuto:
		if p, found = For(s.Nodes); !found {
			return s, nil
		}
	default:
		if p, found = Named(s.Profile); !found {
			return s, usage.Errorf("--profile %q: no such profile; choose auto, none or one of %s", s.Profile, strings.Join(Names(), ", "))
		}
	}
	s.Applied = clusterdir.AppliedProfile{Name: p.Name, Nodes: p.Nodes}
	p.apply(newApplier(&s, given), m)
	return s, nil
}

// Remove returns settings without what a profile has set.
func Remove(s clusterdir.Settings) clusterdir.Settings {
	flags, defaults := flagsOf(&s), defaultFlags()
	for _, change := range s.Applied.Changes {
		flag := flags.Lookup(change.Flag)
		if flag == nil {
			continue // set by a k1m that had this flag
		}
		list, isList := flag.Value.(pflag.SliceValue)
		if !isList {
			// A default is always valid.
			_ = flag.Value.Set(defaults.Lookup(change.Flag).Value.String())
			continue
		}
		rest := slices.DeleteFunc(list.GetSlice(), func(entry string) bool { return entry == change.Value })
		_ = list.Replace(rest)
	}
	// The default mode of node-sim was set because of the simulator.
	if s.NodeSimulator != clusterdir.SimulatorNodeSim && s.NodeMode == clusterdir.NodesShared {
		s.NodeMode = ""
	}
	s.Applied = clusterdir.AppliedProfile{}
	return s
}

// flagsOf returns the flags of `k1m up`, bound to settings.
func flagsOf(s *clusterdir.Settings) *pflag.FlagSet {
	flags := pflag.NewFlagSet("profile", pflag.ContinueOnError)
	s.AddFlags(flags)
	return flags
}

// defaultFlags returns the flags with the values of a small cluster.
func defaultFlags() *pflag.FlagSet {
	defaults := clusterdir.DefaultSettings()
	defaults.Complete()
	return flagsOf(&defaults)
}
