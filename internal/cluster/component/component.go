// Package component describes the processes of a cluster as data: what runs,
// with which command line, what it waits for and how it says that it is ready.
package component

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// ErrNoBinary says that a program to run was not found.
var ErrNoBinary = errors.New("program not found")

// Names of components beside the API servers, which cluster.APIServerName names,
// and the scheduler, which is called as its program is.
const (
	Store             = "store"
	Proxy             = "etcd-proxy"
	ControllerManager = "kube-controller-manager"
	Kwok              = "kwok"
)

const (
	// MaxStopGrace is the store's: it may have much to write.
	MaxStopGrace = 15 * time.Second
	// The others keep nothing that is not in the store.
	statelessStopGrace = 4 * time.Second
	// The proxy lets calls finish, and ends its recording.
	proxyStopGrace = 8 * time.Second
)

// Component is one process to keep running.
type Component struct {
	Name    string
	Binary  string // absolute path
	Args    []string
	Env     []string // added to the supervisor's own
	CPUs    string   // on which it may run, such as 0-3,8; empty for all
	pinner  string   // taskset's path, where there are CPUs
	Address string   // what others connect to

	// DependsOn names components that must be ready before this one starts
	// for the first time, and that stop after it.
	DependsOn []string
	Ready     Probe
	// StopGrace is how long it may take to end cleanly before it is killed.
	StopGrace time.Duration
	// Volatile says that its death loses the cluster's state, so that all other
	// components, which remember it, have to start over.
	Volatile bool
}

// Command is what to start: the program and its arguments, or taskset, which becomes that
// program, so that process, environment and signals are the component's.
func (c Component) Command() (program string, args []string) {
	if c.CPUs == "" {
		return c.Binary, c.Args
	}
	return c.pinner, append([]string{"--cpu-list", c.CPUs, c.Binary}, c.Args...)
}

// Probe is a URL that answers 200 when a component is ready.
type Probe struct {
	URL    string
	CAFile string // verifies https; empty for http
}

// FindBinary looks beside k1m's own program, then in $PATH.
func FindBinary(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if found, err := exec.LookPath(beside); err == nil {
			return found, nil
		}
	}
	found, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: %s is neither beside k1m nor in $PATH; run `make build`", ErrNoBinary, name)
	}
	return filepath.Abs(found)
}
