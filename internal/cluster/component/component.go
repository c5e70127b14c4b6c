// Package component defines the processes of a cluster as data. [Build] returns a [Component] for each
// process: its program, command line, CPUs, dependencies and readiness probe. The package also writes
// the files that the processes read ([WriteConfigFiles], [WriteKubeconfigs]). Package supervisor starts
// the processes.
//
// Each component has its own file: store.go, proxy.go, apiserver.go, gateway.go, controller_manager.go,
// scheduler.go, kwok.go, node_sim.go.
package component

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
)

// ErrNoBinary means that the program of a component was not found.
var ErrNoBinary = errors.New("program not found")

// Names of the components that exist at most once per cluster, and of the first of several node-sims and controller
// managers. [clusterdir.OwnStoreName] returns the names of own
// stores, [clusterdir.APIServerName] those of the API servers, [clusterdir.GatewayName] those of the gateways, and
// [clusterdir.Settings.Schedulers] those of the schedulers.
const (
	Store             = clusterdir.MainStore
	Proxy             = "etcd-proxy"
	ControllerManager = clusterdir.ControllerManager
	Kwok              = clusterdir.SimulatorKwok
	NodeSim           = clusterdir.SimulatorNodeSim
)

const (
	// MaxStopGrace is the longest [Component.StopGrace]. It is that of the store, which may have to
	// write much data.
	MaxStopGrace = 15 * time.Second
	// statelessStopGrace is for components that keep all their state in the store.
	statelessStopGrace = 4 * time.Second
	// proxyStopGrace lets etcd-proxy finish calls and complete its trace file.
	proxyStopGrace = 8 * time.Second
)

// Component is one process that the supervisor keeps running.
type Component struct {
	Name   string
	Binary string // absolute path of the program
	Args   []string
	// StartArgs, if not nil, returns further arguments for the process that starts now.
	StartArgs func() []string
	Env       []string // KEY=VALUE, added to the supervisor's environment
	CPUs      string   // CPUs on which the process may run, such as 0-3,8; empty for all
	taskset   string   // path of taskset; empty if CPUs is empty
	Address   string   // URL to which clients connect

	// DependsOn names the components on which this component depends. It is started for the first
	// time after they have become ready, and stopped before they are.
	DependsOn []string
	// Ready is the readiness probe.
	Ready Probe
	// StopGrace is the time between SIGTERM and SIGKILL.
	StopGrace time.Duration
	// Volatile means that state of the cluster is lost when the process exits. All other components but the
	// stores must then be restarted, because they have cached this state.
	Volatile bool
}

// Command returns the program to start and its arguments. If the component is restricted to CPUs, the
// program is taskset. taskset replaces itself with the component's program by exec, so the process ID
// is that of the component, and signals reach the component.
func (c Component) Command() (program string, args []string) {
	args = c.Args
	if c.StartArgs != nil {
		args = append(slices.Clone(args), c.StartArgs()...)
	}
	if c.CPUs == "" {
		return c.Binary, args
	}
	return c.taskset, append([]string{"--cpu-list", c.CPUs, c.Binary}, args...)
}

// Probe is a readiness probe: a URL that returns status 200 if the component is ready.
type Probe struct {
	URL    string
	CAFile string // CA certificate that verifies an https URL; empty for http
}

// FindBinary returns the path of a program in the directory of the k1m executable, otherwise in $PATH.
// The error wraps ErrNoBinary if the program is in neither.
func FindBinary(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		sibling := filepath.Join(filepath.Dir(self), name)
		if found, err := exec.LookPath(sibling); err == nil {
			return found, nil
		}
	}
	found, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %s is neither in the directory of k1m nor in $PATH; run `make build`", ErrNoBinary, name)
	}
	return filepath.Abs(found)
}
