// Package lab builds the network of a cluster in network namespaces of this machine: a provider with a bridge and a router, nodes
// with the real agent, and pods that the real CNI plugins attach.
//
// plan.go has the addresses and is pure, provider.go and node.go build the parts, lab.go all of them together, and stored.go what
// outlives the process.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/k8s-1m/k8s-1m/internal/network/agent"
	"github.com/k8s-1m/k8s-1m/internal/network/claim"
	"github.com/k8s-1m/k8s-1m/internal/network/cni"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/internal/util/usage"
)

const (
	// DefaultName is the name of a lab.
	DefaultName = "k1m-lab"
	// DefaultMTU of all links.
	DefaultMTU = 1500
	claimsDir  = "claims"
)

// concurrency is the number of nodes that are made, and of pods that are added, at the same time. More would only wait for each other.
var concurrency = runtime.NumCPU()

// Options describe a lab.
type Options struct {
	Name  string `json:"name"`
	Mode  string `json:"mode"`
	Nodes int    `json:"nodes"`
	// PodsPerNode are made for each node at the start.
	PodsPerNode int `json:"podsPerNode"`
	MTU         int `json:"mtu"`
	// ReuseAfter is the agents' --reuse-after.
	ReuseAfter time.Duration `json:"reuseAfter"`
	// Agent is the program of the agent, Plugins the directory of the CNI plugins.
	Agent   string `json:"agent"`
	Plugins string `json:"plugins"`
}

// DefaultOptions returns the options of a small lab. Agent and Plugins are not set.
func DefaultOptions() Options {
	return Options{Name: DefaultName, Mode: agent.ModeRouted, Nodes: 5, PodsPerNode: 2, MTU: DefaultMTU, ReuseAfter: claim.DefaultReuseAfter}
}

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// Validate returns the first invalid option as a usage error.
func (o Options) Validate() error {
	switch {
	case !validName.MatchString(o.Name):
		return usage.Errorf("--lab %q: use 1 to 32 lower-case letters, digits and hyphens", o.Name)
	case !slices.Contains(agent.Modes, o.Mode):
		return usage.Errorf("--mode %q: choose one of %v", o.Mode, agent.Modes)
	case o.Nodes < 1 || o.Nodes > MaxNodes:
		return usage.Errorf("--nodes %d: choose 1 to %d, the number of ports of a bridge", o.Nodes, MaxNodes)
	case o.PodsPerNode < 0 || o.PodsPerNode > maxPods:
		return usage.Errorf("--pods %d: choose 0 to %d for each node", o.PodsPerNode, maxPods)
	case o.MTU < 1280 || o.MTU > 65535:
		return usage.Errorf("--mtu %d: IPv6 needs 1280 to 65535", o.MTU)
	}
	return nil
}

// maxPods is the number of pods for which kubelet is tested on a node, and above.
const maxPods = 250

// Lab is a lab that exists.
type Lab struct {
	Options
	// Provider and Internet are the namespaces of the provider, and of a server outside the cluster.
	Provider, Internet *netns.Namespace

	dir      string
	provider *provider
	limits   map[string]Limit // limits of the machine that the lab has raised

	mu    sync.Mutex
	nodes map[int]*Node
}

func (l *Lab) namespace(name string) string { return l.Name + "-" + name }

// Nodes returns all nodes by number.
func (l *Lab) Nodes() []*Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*Node
	for _, n := range l.nodes {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b *Node) int { return a.Number - b.Number })
	return all
}

// Dir returns the directory with the files of the lab: for each node the log of its agent, its CNI configuration and the
// addresses of its pods.
func (l *Lab) Dir() string { return l.dir }

// Timings are the times that the CNI plugins needed for pods.
type Timings struct {
	mu  sync.Mutex
	all []time.Duration
}

// Add adds a time.
func (t *Timings) Add(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, d)
}

// Sorted returns all times, the shortest first.
func (t *Timings) Sorted() []time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Clone(t.all)
	slices.Sort(all)
	return all
}

// Quantile returns the time within which a fraction of the pods were added; 0 without pods.
func (t *Timings) Quantile(q float64) time.Duration {
	all := t.Sorted()
	if len(all) == 0 {
		return 0
	}
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// Up builds a lab. If that fails, what was built is removed. The times of pods are added to timings.
func Up(ctx context.Context, o Options, display progress.Display, timings *Timings) (*Lab, error) {
	if err := errors.Join(o.Validate(), checkPrograms(o)); err != nil {
		return nil, err
	}
	if err := netns.Check(); err != nil {
		return nil, err
	}
	l := &Lab{Options: o, dir: directory(o.Name), nodes: map[int]*Node{}}
	if err := l.reserve(); err != nil {
		return nil, err
	}
	if err := l.build(ctx, display, timings); err != nil {
		return nil, errors.Join(err, l.Down())
	}
	return l, nil
}

func (l *Lab) build(ctx context.Context, display progress.Display, timings *Timings) error {
	if err := l.addProvider(); err != nil {
		return err
	}
	if err := l.addNodes(ctx, display); err != nil {
		return err
	}
	if err := l.addPods(ctx, display, timings); err != nil {
		return err
	}
	return l.store()
}

func checkPrograms(o Options) error {
	if _, err := os.Stat(o.Agent); err != nil {
		return fmt.Errorf("the agent is missing: %w; run `make bin/network-agent`", err)
	}
	for _, plugin := range []string{"bridge", "host-local"} {
		if _, err := os.Stat(filepath.Join(o.Plugins, plugin)); err != nil {
			return fmt.Errorf("a CNI plugin is missing: %w; run `make bin/cni/%s`", err, plugin)
		}
	}
	return nil
}

func (l *Lab) addProvider() (err error) {
	if l.Provider, err = netns.Create(l.namespace("provider")); err != nil {
		return err
	}
	if l.Internet, err = netns.Create(l.namespace("internet")); err != nil {
		return err
	}
	l.provider, err = newProvider(l.Provider, l.Internet, l.Mode, l.MTU)
	return err
}

func (l *Lab) addNodes(ctx context.Context, display progress.Display) error {
	task := display.Task("nodes", l.Options.Nodes)
	var done atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for number := 1; number <= l.Options.Nodes; number++ {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if _, err := l.AddNode(ctx, number); err != nil {
				return err
			}
			task.Set(int(done.Add(1)))
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		progress.Fail(ctx, task, err.Error())
		return err
	}
	task.Done(fmt.Sprintf("%d, each with an agent and a prefix", l.Options.Nodes))
	return nil
}

func (l *Lab) addPods(ctx context.Context, display progress.Display, timings *Timings) error {
	total := l.Options.Nodes * l.PodsPerNode
	if total == 0 {
		return nil
	}
	task := display.Task("pods", total)
	var done atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for _, node := range l.Nodes() {
		group.Go(func() error {
			for number := 1; number <= l.PodsPerNode && ctx.Err() == nil; number++ {
				_, took, err := node.AddPod(ctx, number)
				if err != nil {
					return err
				}
				timings.Add(took)
				task.Set(int(done.Add(1)))
			}
			return ctx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		progress.Fail(ctx, task, err.Error())
		return err
	}
	task.Done(fmt.Sprintf("%d, added in %.0f ms each (median), %.0f ms (p99)", total, millis(timings.Quantile(0.5)), millis(timings.Quantile(0.99))))
	return nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// AddNode adds a node, with its agent and without pods.
func (l *Lab) AddNode(ctx context.Context, number int) (*Node, error) {
	plan, err := planNode(l.Mode, number)
	if err != nil {
		return nil, err
	}
	n, err := l.AttachNode(number, plan)
	if err != nil {
		return nil, err
	}
	return n, n.StartAgent(ctx)
}

// Plan returns the addresses that the provider gives to the node with a number.
func (l *Lab) Plan(number int) (NodePlan, error) { return planNode(l.Mode, number) }

// AttachNode attaches a node with given addresses to the provider. Its agent is not started.
func (l *Lab) AttachNode(number int, plan NodePlan) (*Node, error) {
	n := &Node{Number: number, Plan: plan, lab: l}
	var err error
	if n.NS, err = netns.Create(l.namespace(plan.Name)); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.nodes[number] = n
	l.mu.Unlock()
	if err := quiet(n.NS); err != nil {
		return nil, err
	}
	return n, l.provider.attach(number, plan, n.NS, l.MTU)
}

// RemoveNode removes a node, as when its virtual machine is deleted.
func (l *Lab) RemoveNode(ctx context.Context, n *Node) error {
	l.mu.Lock()
	delete(l.nodes, n.Number)
	l.mu.Unlock()
	return n.remove(ctx)
}

// DroppedMACs returns how many frames the provider has dropped because of their Ethernet address.
func (l *Lab) DroppedMACs() (uint64, error) { return l.provider.filter.Dropped() }

// Readdress lets a node come back with other addresses, as after a restart for which the provider gave it another prefix. Its files
// stay, its pods are gone.
func (l *Lab) Readdress(ctx context.Context, n *Node, plan NodePlan) error {
	if err := n.StopAgent(syscall.SIGKILL); err != nil {
		return err
	}
	var err error
	for _, pod := range n.Pods {
		err = errors.Join(err, pod.NS.Delete())
	}
	n.Pods = nil
	// The runtime starts pods when there is a configuration; it is that of the earlier prefix.
	err = errors.Join(err, l.provider.detach(n.Number, n.Plan), n.NS.Delete(), cni.Remove(n.dir("net.d")))
	if err != nil {
		return err
	}
	plan.Name, plan.MAC = n.Plan.Name, n.Plan.MAC
	n.Plan = plan
	if n.NS, err = netns.Create(l.namespace(plan.Name)); err != nil {
		return err
	}
	if err := errors.Join(quiet(n.NS), l.provider.attach(n.Number, plan, n.NS, l.MTU)); err != nil {
		return err
	}
	return n.StartAgent(ctx)
}
