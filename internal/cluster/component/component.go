// Package component defines the processes of a cluster as data. [Build] returns a list of
// [Component]: program, command line, CPUs, dependencies and readiness probe of each process.
// The package also writes the files that the processes read ([WriteConfigFiles],
// [WriteKubeconfigs]). It starts nothing; package supervisor does.
//
// Each component has a file of its own: store.go, proxy.go, apiserver.go,
// controller_manager.go, scheduler.go, kwok.go.
package component

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// ErrNoBinary means that the program of a component was not found.
var ErrNoBinary = errors.New("program not found")

// Names of the components that exist once per cluster. [clusterdir.APIServerName] names the
// API servers and [clusterdir.Settings.Schedulers] the schedulers.
const (
	Store             = "store"
	Proxy             = "etcd-proxy"
	ControllerManager = "kube-controller-manager"
	Kwok              = "kwok"
)

const (
	// MaxStopGrace is the longest [Component.StopGrace]. The store has it, because it may have much
	// data to write.
	MaxStopGrace = 15 * time.Second
	// statelessStopGrace is for components that keep all of their state in the store.
	statelessStopGrace = 4 * time.Second
	// proxyStopGrace lets etcd-proxy finish calls and complete its trace file.
	proxyStopGrace = 8 * time.Second
)

// Component is one process that the supervisor keeps running.
type Component struct {
	Name    string
	Binary  string // absolute path of the program
	Args    []string
	Env     []string // KEY=VALUE, added to the supervisor's environment
	CPUs    string   // CPUs on which it may run, such as 0-3,8; empty for all
	pinner  string   // path of taskset; empty if CPUs is
	Address string   // URL to which clients connect

	// DependsOn names the components that must have become ready before this one is first
	// started, and that are stopped after it.
	DependsOn []string
	// Ready is the readiness probe.
	Ready Probe
	// StopGrace is the time between SIGTERM and SIGKILL.
	StopGrace time.Duration
	// Volatile means that the cluster's state is lost when the process exits. All other
	// components must then be restarted, because they have cached that state.
	Volatile bool
}

// Command returns the program to start and its arguments. If the component is restricted to
// CPUs, the program is taskset. taskset replaces itself with the component's program, so the process ID
// is that of the component and signals reach it.
func (c Component) Command() (program string, args []string) {
	if c.CPUs == "" {
		return c.Binary, c.Args
	}
	return c.pinner, append([]string{"--cpu-list", c.CPUs, c.Binary}, c.Args...)
}

// Probe is a readiness probe: a URL that returns 200 when the component is ready.
type Probe struct {
	URL    string
	CAFile string // CA certificate that verifies an https URL; empty for http
}

// FindBinary returns the path of a program in the directory of the k1m executable or in
// $PATH. It returns ErrNoBinary if there is none.
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
