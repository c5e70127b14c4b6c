package profile

import (
	"fmt"
	"strconv"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/util/number"
)

const (
	// Measured costs, in microseconds of CPU (docs/plan.md, docs/adr/0018-lease-watch.md).
	renewalMicros = 1300 // of kube-apiserver for a renewal without a gateway
	reportMicros  = 2800 // of kube-apiserver for a report of a node's status
	passMicros    = 20   // of kube-controller-manager for a node in a pass of its health check
	// schedulerPercent is the share of the machine's memory up to which the heap of the scheduler grows as usual: it takes 3.8 GB for
	// a million nodes, and while it reads them half as much again is garbage.
	schedulerPercent = 20
	// leaseVersionBytes is what the store takes for a version of a Lease, with its overhead.
	leaseVersionBytes = 700
	// defaultReports and defaultCompaction are the defaults of kubelet and of kube-apiserver.
	defaultReports    = 5 * time.Minute
	defaultCompaction = 5 * time.Minute
	// memoryPercent is the share of the machine's memory up to which the heap of kube-controller-manager grows as usual, and
	// that of kube-apiserver with fewer than 700,000 nodes.
	memoryPercent = 30
	mebibyte      = 1 << 20
	// noGarbageCollector is the entry of kube-controller-manager's flag --controllers without its garbage collector.
	noGarbageCollector = "-garbage-collector-controller"

	// startOfConnection is how long a node with a connection of its own takes to start: six requests to an API server, and
	// two TLS handshakes.
	startOfConnection = 15 * time.Millisecond

	// reservedFiles are open files of a gateway or an API server for everything but connections of nodes.
	reservedFiles = 1000
	// maxOpenFiles bounds a limit on open files that says "unlimited".
	maxOpenFiles = 1 << 20
	// localPorts is how many connections Linux opens from an address to a port, by default.
	localPorts = 28_000
	// mostProcesses is the largest number of gateways, API servers or node-sims of a cluster.
	mostProcesses = 16
)

// apply sets the flags of the profile.
func (p Profile) apply(a *applier, m Machine) {
	a.set("node-simulator", clusterdir.SimulatorNodeSim,
		"kwok watches every Lease, and takes 300 to 700 µs of CPU for a renewal, and node-sim takes less than 100 µs")
	if a.settings.NodeSimulator == clusterdir.SimulatorNodeSim {
		p.heartbeats(a)
		p.gateway(a, m)
	}
	p.monitor(a)
	if p.Nodes >= fiftyThousand {
		a.set("scheduler", clusterdir.SchedulerDist,
			"kube-scheduler takes 5.2 ms of CPU for a pod on 5,000 nodes, and more on more nodes; dist-scheduler takes 0.7 ms, and 4 KB of memory a node")
		p.history(a)
	}
	if p.Nodes >= twoHundred {
		p.slowStart(a)
		p.memory(a, m)
	}
}

// heartbeats sets how often nodes renew their Leases and report their status.
func (p Profile) heartbeats(a *applier) {
	nodes := float64(a.settings.Nodes)
	if _, given := entryOf(a.settings.NodeSimArgs, "lease-interval"); !given && p.interval != defaultInterval {
		a.add("node-sim-arg", "node-lease-duration-seconds", strconv.Itoa(int(4*p.interval.Seconds())), fmt.Sprintf(
			"a renewal every %s: every 10 s, %s renewals/s would be more than two cores carry", p.interval, number.Text(nodes/10)))
	}
	if p.reports > 0 {
		a.add("node-sim-arg", "node-status-report-frequency", p.reports.String(), fmt.Sprintf(
			"a report of an unchanged status takes kube-apiserver 2.8 ms of CPU; every 5 minutes that is %s cores for all nodes",
			number.Text(nodes/defaultReports.Seconds()*reportMicros/1e6)))
	}
}

// gateway adds kube-gateway with its node path. A user with a configuration file has set the node path there.
func (p Profile) gateway(a *applier, m Machine) {
	a.set("gateway", "true", fmt.Sprintf(
		"%s Lease renewals/s through kube-apiserver take %s cores, and kube-gateway writes them into the store for less than a tenth",
		number.Text(p.renewals(a)), number.Text(p.renewals(a)*renewalMicros/1e6)))
	if a.settings.Gateway == nil || !*a.settings.Gateway || a.settings.GatewayConfig != "" {
		return
	}
	a.add("gateway-arg", "node-path-leases", "on",
		"renewals bypass kube-apiserver, and kube-controller-manager's watch of all Leases comes from the store")
	if mode := a.settings.NodeMode; mode == clusterdir.NodesWire || mode == clusterdir.NodesMixed {
		a.add("gateway-arg", "node-path-watches", "on",
			"the six watches of a kubelet take 33 KiB of memory in kube-gateway, in place of 417 KiB in kube-apiserver")
		p.connections(a, m)
	}
}

// connections adds gateways and API servers if the nodes have more connections than one process can have.
func (p Profile) connections(a *applier, m Machine) {
	if m.OpenFiles <= reservedFiles {
		return
	}
	connections, files := a.settings.Connections(), int(min(m.OpenFiles, maxOpenFiles)-reservedFiles)
	if gateways := min(ceil(clusterdir.FilesPerConnection*connections, files), mostProcesses); gateways > 1 {
		a.set("gateways", strconv.Itoa(gateways), fmt.Sprintf(
			"kube-gateway needs two open files for a node, and the limit is %d for a process (ulimit -Hn)", m.OpenFiles))
		a.set("node-sims", strconv.Itoa(gateways), "a node-sim connects its nodes to one gateway")
	}
	if servers := min(ceil(connections, min(files, localPorts)), mostProcesses); servers > 1 {
		a.set("apiservers", strconv.Itoa(servers), fmt.Sprintf(
			"one takes at most %d connections of gateways: the limits are open files, and the local ports of an address", min(files, localPorts)))
	}
}

func ceil(a, b int) int { return (a + b - 1) / b }

// monitor sets how kube-controller-manager looks for nodes that have failed.
func (p Profile) monitor(a *applier) {
	if p.MonitorPeriod > 0 {
		a.add("controller-manager-arg", "node-monitor-period", p.MonitorPeriod.String(), fmt.Sprintf(
			"a pass over all nodes takes about %s s of CPU; the default is a pass every 5 s",
			number.Text(float64(a.settings.Nodes)*passMicros/1e6)))
	}
	grace := max(p.grace, intervalsOfGrace*p.intervalOf(a), time.Duration(a.settings.Connections())*startOfConnection)
	a.add("controller-manager-arg", "node-monitor-grace-period", grace.String(),
		"at the start, nodes renew their Leases one after the other, and that takes longer than the default of 50 s; a failed node becomes NotReady later")
}

// history sets how long the store keeps old versions.
func (p Profile) history(a *applier) {
	reason := "kube-apiserver reads all nodes from the store in one go, and begins again if what it reads is compacted"
	if p.compaction < defaultCompaction {
		reason = fmt.Sprintf("the store keeps each version of a Lease for up to two intervals; at the default of %s that is up to %s GB",
			defaultCompaction, number.Text(2*defaultCompaction.Seconds()*p.renewals(a)*leaseVersionBytes/1e9))
	}
	a.add("apiserver-arg", "etcd-compaction-interval", p.compaction.String(), reason)
	if p.retention > 0 && a.settings.Store == clusterdir.StoreMemEtcd {
		a.add("store-arg", "auto-compaction-retention", p.retention.String(), fmt.Sprintf(
			"by kube-apiserver's compaction, versions of Leases would take up to %s GB; the store waits until nobody reads in pages any more",
			number.Text(2*p.compaction.Seconds()*p.renewals(a)*leaseVersionBytes/1e9)))
	}
}

// slowStart gives kube-apiserver more time to read and to list all nodes.
func (p Profile) slowStart(a *applier) {
	a.add("apiserver-arg", "storage-initialization-timeout", "10m",
		"filling the watch cache with all nodes can take longer than the default of 1 minute")
	a.add("apiserver-arg", "request-timeout", "5m", "a list of all nodes can take longer than the default of 1 minute")
}

// memory saves memory of kube-apiserver and kube-controller-manager.
func (p Profile) memory(a *applier, m Machine) {
	a.add("controller-manager-arg", "controllers", "*,"+noGarbageCollector,
		"its graph of owners has every Node, Lease and pod; what belongs to a deleted object stays, so scale a Deployment to 0 before you delete it")
	if m.Memory > 0 {
		limitMemory(a, m, "apiserver-env", p.apiserverMemory)
		limitMemory(a, m, "controller-manager-env", memoryPercent)
	}
	if p.Nodes < sevenHundred {
		return
	}
	const reason = "at most half as much garbage as live objects: they are several GB, and the default allows as much again"
	a.add("apiserver-env", "GOGC", "50", reason)
	a.add("controller-manager-env", "GOGC", "50", reason)
	a.add("scheduler-env", "GOGC", "50", reason)
	if m.Memory > 0 {
		limitMemory(a, m, "scheduler-env", schedulerPercent)
	}
	a.add("apiserver-arg", "watch-cache-sizes", "nodes#0,csinodes.storage.k8s.io#0",
		"kube-apiserver keeps one decoded copy of every Node in place of two, and none of its CSINode, 7 KiB less a node; lists and watches of them read the store")
}

// limitMemory limits the heap of a program by its environment.
func limitMemory(a *applier, m Machine, flag string, percent uint64) {
	a.add(flag, "GOMEMLIMIT", fmt.Sprintf("%dMiB", m.Memory/100*percent/mebibyte),
		fmt.Sprintf("%d %% of this machine's memory; above it, Go collects garbage more often", percent))
}

// renewals returns the number of renewals in a second.
func (p Profile) renewals(a *applier) float64 {
	return float64(a.settings.Nodes) / p.intervalOf(a).Seconds()
}

// intervalOf returns the time between two renewals of a Lease: the user's, or the profile's.
func (p Profile) intervalOf(a *applier) time.Duration {
	if text, found := entryOf(a.settings.NodeSimArgs, "lease-interval"); found {
		if interval, err := time.ParseDuration(text); err == nil && interval > 0 {
			return interval
		}
	}
	if text, found := entryOf(a.settings.NodeSimArgs, "node-lease-duration-seconds"); found {
		if seconds, err := strconv.Atoi(text); err == nil && seconds > 0 {
			return time.Duration(seconds) * time.Second / 4
		}
	}
	return p.interval
}
