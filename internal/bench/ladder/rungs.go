package ladder

import (
	"math"
	"strconv"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/profile"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

// rung is a size of a cluster, with what it must reach.
type rung struct {
	name    string
	profile string // of `k1m up`
	nodes   int
	// mode is how nodes are connected; "" for shared connections.
	mode string
	// interval is the time between two heartbeats of a node; 0 for that of the profile.
	interval time.Duration
	pods     int // to create in the end

	// climbs means that the largest number of nodes is looked for, which must be at least mustNodes.
	climbs    bool
	mustNodes int
	// aimInterval is an interval to aim for if the rung has a longer one; otherwise 0.
	aimInterval time.Duration
}

// periodsOfGrace is how many times kube-controller-manager looks at the nodes within --grace, at least.
const periodsOfGrace = 4

// rungs are the rungs in the order in which they run.
var rungs = []rung{
	{name: "20000", profile: "10k", nodes: 20_000, pods: 20_000},
	{name: "100000", profile: "50k", nodes: 100_000, pods: 50_000},
	{name: "wire", profile: "50k", nodes: 100_000, mode: clusterdir.NodesWire, climbs: true, mustNodes: 30_000},
	{name: "300000", profile: "200k", nodes: 300_000, aimInterval: 10 * time.Second},
	{name: "1000000", profile: "700k", nodes: 1_000_000, pods: 100_000},
}

func rungNames() (names []string) {
	for _, g := range rungs {
		names = append(names, g.name)
	}
	return names
}

// sized returns the rung with the numbers that the options ask for. factor is that of the scale; a scale above medium
// changes nothing.
func (g rung) sized(o *options, factor float64) rung {
	scaled := func(count int) int { return number.TwoDigits(float64(count) * min(factor, 1)) }
	g.nodes, g.pods, g.mustNodes = scaled(g.nodes), scaled(g.pods), scaled(g.mustNodes)
	if o.Nodes > 0 {
		// A smaller rung must hold as a whole.
		g.nodes, g.mustNodes = o.Nodes, min(g.mustNodes, o.Nodes)
	}
	if o.Pods != ofRung {
		g.pods = o.Pods
	}
	if o.Interval > 0 {
		g.interval = o.Interval
	}
	return g
}

// leaseSeconds returns the validity of Leases that are renewed with an interval: four times the interval.
func leaseSeconds(interval time.Duration) string {
	return strconv.Itoa(int(math.Ceil(4 * interval.Seconds())))
}

// settings returns the settings of the cluster of a rung. Those that it does not set are the profile's.
func (g rung) settings(o *options) clusterdir.Settings {
	s := clusterdir.DefaultSettings()
	s.Nodes, s.Profile, s.NodeMode, s.Without = g.nodes, g.profile, g.mode, o.Without
	if g.interval > 0 {
		s.NodeSimArgs = append(s.NodeSimArgs, "node-lease-duration-seconds="+leaseSeconds(g.interval))
	}
	if o.Grace > 0 {
		s.ControllerManagerArgs = append(s.ControllerManagerArgs, "node-monitor-grace-period="+o.Grace.String())
		// A quick try does not wait for a long period either.
		if p, _ := profile.Named(g.profile); p.MonitorPeriod > o.Grace/periodsOfGrace {
			s.ControllerManagerArgs = append(s.ControllerManagerArgs, "node-monitor-period="+(o.Grace/periodsOfGrace).String())
		}
	}
	if o.Scheduler != "" {
		// The profile must not change it, also if it is the default.
		s.Scheduler, s.Kept = o.Scheduler, []string{"scheduler"}
	}
	return s
}
