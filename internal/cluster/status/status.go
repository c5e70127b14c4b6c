// Package status collects the [Status] of a cluster from the supervisor's state file, /proc, the store and
// the API server. If the store or the API server cannot be read, the error is in [Status].Problems, and
// the rest of the status is complete.
package status

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/supervisor"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// Overall states of a cluster.
const (
	Running  = "running"  // all components are ready
	Degraded = "degraded" // at least one component is not ready, or the cluster is being stopped
	Stopped  = "stopped"  // the cluster was stopped
	Dead     = "dead"     // the supervisor exited without stopping the cluster
)

// cpuSampleTime is the time over which CPU usage is measured.
const cpuSampleTime = 250 * time.Millisecond

// Status is the status of a cluster. Its JSON form is the output of `k1m status -o json`.
type Status struct {
	Name      string `json:"name"`
	State     string `json:"state"`
	Store     string `json:"store"`     // description for users
	StoreKind string `json:"storeKind"` // mem_etcd, etcd, or external with --store-address
	WALMode   string `json:"walMode,omitempty"`
	Scheduler string `json:"scheduler"`
	// Profile has the settings that a profile has set; nil without one.
	Profile    *clusterdir.AppliedProfile `json:"profile,omitempty"`
	Supervisor *Supervisor                `json:"supervisor,omitempty"`
	Components []Component                `json:"components"`
	Traces     []Trace                    `json:"traces,omitempty"`
	Nodes      *Nodes                     `json:"nodes,omitempty"`
	Pods       *Pods                      `json:"pods,omitempty"`
	Objects    *Objects                   `json:"objects,omitempty"`
	// StoreLeader is the component name of the member that leads the store; empty if it has one member.
	StoreLeader string    `json:"storeLeader,omitempty"`
	Gateways    []Gateway `json:"gateways,omitempty"`
	// Problems are errors that occurred while the status was collected.
	Problems []string `json:"problems,omitempty"`
}

// Supervisor is the parent of the components.
type Supervisor struct {
	PID           int     `json:"pid"`
	Address       string  `json:"address"`
	UptimeSeconds float64 `json:"uptimeSeconds"`
}

// Component is the status of one component.
type Component struct {
	Name          string    `json:"name"`
	PID           int       `json:"pid"`
	State         string    `json:"state"`
	Restarts      int       `json:"restarts"`
	LastExit      string    `json:"lastExit,omitempty"`
	LastExitAt    time.Time `json:"lastExitAt,omitzero"`
	UptimeSeconds float64   `json:"uptimeSeconds"`
	CPUPercent    float64   `json:"cpuPercent"` // percentage of one core, during cpuSampleTime
	CPUSeconds    float64   `json:"cpuSeconds"` // since the process started
	MemoryBytes   int64     `json:"memoryBytes"`
	Address       string    `json:"address"`
	Binary        string    `json:"binary"`
	Log           string    `json:"log"`
}

// Trace is a trace file of etcd-proxy.
type Trace struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
}

// traces returns the existing trace files; none if the cluster runs without --trace.
func traces(dir clusterdir.Dir, config clusterdir.Config) []Trace {
	if !config.Settings.Trace {
		return nil
	}
	var list []Trace
	for _, file := range config.TraceFiles(dir) {
		if info, err := os.Stat(file); err == nil {
			list = append(list, Trace{File: file, Bytes: info.Size()})
		}
	}
	return list
}

// Read collects the status of a cluster. When ctx is done, it stops counting objects and reports that as a
// problem.
func Read(ctx context.Context, dir clusterdir.Dir, config clusterdir.Config) (Status, error) {
	s := Status{
		Name: config.Name, State: Stopped, Components: []Component{},
		Store: config.Settings.DescribeStore(), Scheduler: config.Settings.Scheduler,
	}
	s.StoreKind, s.WALMode = config.Settings.StoreKind(), config.Settings.OwnWALMode()
	s.Traces = traces(dir, config)
	if applied := config.Settings.Applied; applied.Name != "" {
		s.Profile = &applied
	}
	state, err := supervisor.ReadState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	now := time.Now()
	if !state.Supervisor.Alive() {
		s.State = Dead
		s.Problems = append(s.Problems, "supervisor not running: `k1m up --name "+config.Name+"` starts the cluster again")
	} else {
		s.Supervisor = &Supervisor{state.Supervisor.PID, state.Address, now.Sub(state.StartedAt).Seconds()}
	}
	s.Components = components(dir, state, now)
	if s.Supervisor != nil {
		s.State = overallState(state, s.Components)
		s.count(ctx, dir, config)
	}
	return s, nil
}

// overallState determines the state of the cluster. It considers the processes as well as the supervisor's
// state, because the supervisor may not have noticed the exit of a process yet.
func overallState(state supervisor.State, components []Component) string {
	notReady := func(c Component) bool { return c.State != string(supervisor.Ready) }
	if !state.Healthy() || slices.ContainsFunc(components, notReady) {
		return Degraded
	}
	return Running
}

// components combines the supervisor's state with the processes' resource usage.
func components(dir clusterdir.Dir, state supervisor.State, now time.Time) []Component {
	before := make([]process.Usage, len(state.Components))
	for i, c := range state.Components {
		before[i], _ = c.Process.Usage()
	}
	sampled := time.Now()
	time.Sleep(cpuSampleTime)
	list := make([]Component, len(state.Components))
	for i, c := range state.Components {
		list[i] = Component{
			Name: c.Name, State: string(c.Phase), Restarts: c.Restarts,
			LastExit: c.LastExit, LastExitAt: c.LastExitAt,
			Address: c.Address, Binary: c.Binary, Log: dir.Log(c.Name),
		}
		usage, err := c.Process.Usage()
		if err != nil {
			// The process does not exist. That is expected only in these phases.
			if c.Phase != supervisor.Restarting && c.Phase != supervisor.Waiting {
				list[i].State = string(supervisor.Stopped)
			}
			continue
		}
		list[i].PID = c.Process.PID
		list[i].UptimeSeconds = now.Sub(c.StartedAt).Seconds()
		list[i].CPUSeconds = usage.CPU.Seconds()
		list[i].CPUPercent = 100 * (usage.CPU - before[i].CPU).Seconds() / time.Since(sampled).Seconds()
		list[i].MemoryBytes = usage.Resident
	}
	return list
}
