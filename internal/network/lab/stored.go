package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/prometheus/procfs"

	"github.com/k8s-1m/k8s-1m/internal/network/netns"
	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

// root has the directories of all labs. It is empty after a start of the machine, as there are no namespaces then.
const root = "/run/k1m-network"

const (
	storedFile = "lab.json"
	// neighbourLimits are kernel parameters of the machine: the table of neighbours is one for all namespaces.
	neighbourLimits = "/proc/sys/net/ipv6/neigh/default/"
	// inotifyLimit is the number of programs of a user that watch files. otherWatchers do so beside the agents.
	inotifyLimit  = "/proc/sys/fs/inotify/max_user_instances"
	otherWatchers = 256
)

func directory(name string) string { return filepath.Join(root, name) }

// stored is the file of a lab.
type stored struct {
	Options Options          `json:"options"`
	Nodes   []*Node          `json:"nodes"`
	Limits  map[string]Limit `json:"limits"`
}

// Limit is a limit of the machine that a lab has raised.
type Limit struct {
	Before string `json:"before"`
	After  string `json:"after"`
}

// reserve creates the directory of a lab that does not exist yet, and raises the limits of the machine.
func (l *Lab) reserve() error {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return fmt.Errorf("create the directory of labs: %w", err)
	}
	if err := os.Mkdir(l.dir, 0o755); errors.Is(err, os.ErrExist) {
		return fmt.Errorf("lab %s exists; remove it with `k1m network lab down --lab %s`", l.Name, l.Name)
	} else if err != nil {
		return fmt.Errorf("create the directory of the lab: %w", err)
	}
	l.raiseLimits()
	return l.store()
}

// raiseLimits raises limits of the machine that all namespaces share, if the lab needs more: entries of the table of neighbours, because
// each pod knows its gateway and the router knows pods and nodes, and watches of files, of which each agent needs one. Without
// the right to do it, large labs fail.
func (l *Lab) raiseLimits() {
	l.limits = map[string]Limit{}
	neighbours := 4*l.Options.Nodes*(l.PodsPerNode+2) + 1024
	for path, least := range map[string]int{
		neighbourLimits + "gc_thresh3": neighbours, neighbourLimits + "gc_thresh2": neighbours / 2, neighbourLimits + "gc_thresh1": neighbours / 4,
		inotifyLimit: l.Options.Nodes + otherWatchers,
	} {
		content, err := os.ReadFile(path)
		now, parseErr := strconv.Atoi(strings.TrimSpace(string(content)))
		if err != nil || parseErr != nil || now >= least {
			continue
		}
		limit := Limit{strconv.Itoa(now), strconv.Itoa(least)}
		if os.WriteFile(path, []byte(limit.After), 0o644) == nil {
			l.limits[path] = limit
		}
	}
}

// restoreLimits puts back the limits of the machine, unless somebody else has changed them since.
func restoreLimits(limits map[string]Limit) (err error) {
	for path, limit := range limits {
		if now, readErr := os.ReadFile(path); readErr != nil || strings.TrimSpace(string(now)) != limit.After {
			continue
		}
		err = errors.Join(err, os.WriteFile(path, []byte(limit.Before), 0o644))
	}
	return err
}

// store writes the file of the lab.
func (l *Lab) store() error {
	content, err := json.MarshalIndent(stored{l.Options, l.Nodes(), l.limits}, "", " ")
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(l.dir, storedFile), content, 0o644); err != nil {
		return fmt.Errorf("write the file of the lab: %w", err)
	}
	return nil
}

// Summary is what a stored lab consists of.
type Summary struct {
	Options Options
	Nodes   []*Node
	// Limits are the limits of the machine that the lab has raised, by their files.
	Limits map[string]Limit
}

// Read reads the file of a lab.
func Read(name string) (Summary, error) {
	if !validName.MatchString(name) {
		return Summary{}, fmt.Errorf("%q is not a name of a lab", name)
	}
	content, err := os.ReadFile(filepath.Join(directory(name), storedFile))
	if errors.Is(err, os.ErrNotExist) {
		return Summary{}, fmt.Errorf("lab %s does not exist; `k1m network lab` makes one", name)
	}
	var s stored
	if err == nil {
		err = json.Unmarshal(content, &s)
	}
	if err != nil {
		return Summary{}, fmt.Errorf("read the file of lab %s: %w", name, err)
	}
	return Summary(s), nil
}

// Summary returns what the lab consists of.
func (l *Lab) Summary() Summary { return Summary{l.Options, l.Nodes(), l.limits} }

// Down removes the lab.
func (l *Lab) Down() error {
	if l.provider != nil && l.provider.filter != nil {
		_ = l.provider.filter.Close()
	}
	return remove(l.Name, l.Nodes(), l.limits)
}

// Down removes a stored lab. It also removes what is left of a lab whose file is missing or damaged.
func Down(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("%q is not a name of a lab", name)
	}
	if _, err := os.Stat(directory(name)); err != nil {
		return fmt.Errorf("lab %s does not exist", name)
	}
	summary, readErr := Read(name)
	err := remove(name, summary.Nodes, summary.Limits)
	if err != nil {
		return errors.Join(readErr, err)
	}
	return nil
}

// remove ends the agents and removes the namespaces and the files of a lab.
func remove(name string, nodes []*Node, limits map[string]Limit) (err error) {
	for _, n := range nodes {
		err = errors.Join(err, n.StopAgent(syscall.SIGKILL))
	}
	err = errors.Join(err, stopAgents(name))
	for _, part := range []string{"pod-", "node-", "internet", "provider"} {
		names, listErr := netns.List(name + "-" + part)
		err = errors.Join(err, listErr)
		for _, n := range names {
			err = errors.Join(err, netns.Delete(n))
		}
	}
	return errors.Join(err, restoreLimits(limits), os.RemoveAll(directory(name)))
}

// stopAgents ends agents that the lab's file does not name: those of a lab that was killed while it was built. Their arguments have
// files of the lab.
func stopAgents(name string) (err error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return fmt.Errorf("find the agents of lab %s: %w", name, err)
	}
	for _, p := range all {
		args, readErr := p.CmdLine()
		flag := slices.Index(args, stateFlag)
		if readErr != nil || flag < 0 || flag+1 == len(args) || !strings.HasPrefix(args[flag+1], directory(name)+"/") {
			continue // among them processes that have ended meanwhile
		}
		id, stopErr := process.Of(p.PID)
		if stopErr == nil {
			stopErr = id.Signal(syscall.SIGKILL)
		}
		if stopErr == nil {
			stopErr = id.AwaitExit(agentTimeout)
		}
		if stopErr != nil && !errors.Is(stopErr, process.ErrGone) {
			err = errors.Join(err, fmt.Errorf("stop the agent with process ID %d: %w", p.PID, stopErr))
		}
	}
	return err
}

// Namespace returns the namespace of a part of a lab: a pod, a node, provider or internet.
func Namespace(name, part string) (*netns.Namespace, error) {
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("%q is not a name of a lab", name)
	}
	n, err := netns.Open(name + "-" + part)
	if err != nil {
		return nil, fmt.Errorf("lab %s has no %s: %w; name a pod, a node, provider or internet", name, part, err)
	}
	return n, nil
}
