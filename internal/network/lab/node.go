package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/agent"
	"github.com/k8s-1m/k8s-1m/internal/network/claim"
	"github.com/k8s-1m/k8s-1m/internal/network/cni"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

const (
	// agentTimeout is the time for which an agent may need until pods can start.
	agentTimeout = 2 * time.Minute
	pollInterval = 5 * time.Millisecond
	agentLog     = "agent.log"
	// stateFlag is the flag of the agent's file, by which `down` finds the agents of a lab.
	stateFlag = "--state"
)

// Node is a node of the lab. Its exported fields are stored in the lab's file.
type Node struct {
	Number int      `json:"number"`
	Plan   NodePlan `json:"plan"`
	// Agent is the process of the agent; zero if it does not run.
	Agent process.Identity `json:"agent"`
	Pods  []*Pod           `json:"pods"`

	// NS is the namespace of the node.
	NS *netns.Namespace `json:"-"`

	lab     *Lab
	runtime *cni.Runtime
	exited  chan struct{} // closed when the agent has ended; nil if another process started it
	mu      sync.Mutex    // serializes changes of Pods
}

// Pod is a pod of a node: a namespace that CNI plugins have attached.
type Pod struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`

	NS *netns.Namespace `json:"-"`
}

func (n *Node) dir(parts ...string) string {
	return filepath.Join(append([]string{n.lab.dir, n.Plan.Name}, parts...)...)
}

// agentArgs returns the flags of the node's agent.
func (n *Node) agentArgs() []string {
	return []string{
		"--node", n.Plan.Name, "--uplink", uplink, "--mode", n.lab.Mode, "--prefix", n.Plan.AgentPrefix,
		"--claims", filepath.Join(n.lab.dir, claimsDir), "--reuse-after", n.lab.ReuseAfter.String(),
		"--cni-config-dir", n.dir("net.d"), "--cni-results-dir", cni.ResultsDir(n.dir("cni")), "--cni-leases-dir", n.dir("networks"),
		stateFlag, n.dir("state.json"), "--no-bridge-netfilter",
	}
}

// StartAgent starts the agent of the node and waits until pods can start. extra are more flags.
func (n *Node) StartAgent(ctx context.Context, extra ...string) error {
	if err := n.LaunchAgent(extra...); err != nil {
		return err
	}
	if err := n.AwaitAgent(ctx); err != nil {
		return err
	}
	runtime, err := cni.NewRuntime(n.NS, n.lab.Plugins, n.dir("net.d"), n.dir("cni"))
	n.runtime = runtime
	return err
}

// LaunchAgent starts the agent of the node without waiting for it.
func (n *Node) LaunchAgent(extra ...string) error {
	if err := os.MkdirAll(n.dir(), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(n.dir(agentLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(n.lab.Agent, append(n.agentArgs(), extra...)...)
	cmd.Stdout, cmd.Stderr = log, log
	// Hundreds of agents share this machine: one thread each for Go code, and a small heap.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=50")
	// The lab stays when the command that made it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := n.NS.Start(cmd); err != nil {
		return fmt.Errorf("start the agent of %s: %w", n.Plan.Name, err)
	}
	// Until Wait, no other process has this number.
	n.Agent, err = process.Of(cmd.Process.Pid)
	exited := make(chan struct{})
	n.exited = exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	if errors.Is(err, process.ErrGone) {
		return nil // AwaitAgent says why
	}
	return err
}

// ready reports whether the agent says that pods can start.
func (n *Node) ready(ctx context.Context) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+agent.DefaultOptions().MetricsAddress+"/readyz", nil)
	if err != nil {
		return false
	}
	response, err := n.NS.HTTPClient(agentTimeout, nil).Do(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

// AwaitAgent waits until pods can start.
func (n *Node) AwaitAgent(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if n.ready(ctx) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent of %s is not ready: %w; its log ends with: %s", n.Plan.Name, ctx.Err(), n.AgentLog())
		case <-n.exited:
			return fmt.Errorf("the agent of %s has ended; its log ends with: %s", n.Plan.Name, n.AgentLog())
		case <-ticker.C:
		}
	}
}

// AgentLog returns the last lines of the agent's log.
func (n *Node) AgentLog() string {
	content, _ := os.ReadFile(n.dir(agentLog))
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "; ")
}

// StopAgent ends the agent with a signal and waits until it has ended.
func (n *Node) StopAgent(signal syscall.Signal) error {
	if n.Agent.PID == 0 {
		return nil
	}
	err := n.Agent.Signal(signal)
	if err == nil {
		err = n.Agent.AwaitExit(agentTimeout)
	}
	if err != nil && !errors.Is(err, process.ErrGone) {
		return fmt.Errorf("stop the agent of %s: %w", n.Plan.Name, err)
	}
	n.Agent = process.Identity{}
	return nil
}

// AddPod creates a pod with a new number. took is the time that the CNI plugins needed.
func (n *Node) AddPod(ctx context.Context, number int) (pod *Pod, took time.Duration, err error) {
	pod = &Pod{Name: fmt.Sprintf("pod-%04d-%02d", n.Number, number)}
	if pod.NS, err = netns.Create(n.lab.namespace(pod.Name)); err != nil {
		return nil, 0, err
	}
	start := time.Now()
	pod.Address, err = n.runtime.Add(ctx, pod.Name, pod.NS)
	took = time.Since(start)
	if err != nil {
		return nil, took, errors.Join(err, n.runtime.Delete(context.WithoutCancel(ctx), pod.Name, pod.NS.Path()), pod.NS.Delete())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.Pods = append(n.Pods, pod)
	return pod, took, nil
}

// DeletePod removes a pod.
func (n *Node) DeletePod(ctx context.Context, pod *Pod) error {
	err := errors.Join(n.runtime.Delete(ctx, pod.Name, pod.NS.Path()), pod.NS.Delete())
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, p := range n.Pods {
		if p == pod {
			n.Pods = append(n.Pods[:i], n.Pods[i+1:]...)
			break
		}
	}
	return err
}

// CheckPod asks the plugins whether a pod is attached as they left it.
func (n *Node) CheckPod(ctx context.Context, pod *Pod) error {
	return n.runtime.Check(ctx, pod.Name, pod.NS.Path())
}

// remove removes the node at once, as when a virtual machine is deleted: the agent is killed without a chance to clean up.
func (n *Node) remove(ctx context.Context) error {
	err := n.StopAgent(syscall.SIGKILL)
	for _, pod := range n.Pods {
		err = errors.Join(err, pod.NS.Delete())
	}
	n.Pods = nil
	err = errors.Join(err, n.lab.provider.detach(n.Number, n.Plan), n.NS.Delete())
	store, storeErr := claim.NewDirectory(filepath.Join(n.lab.dir, claimsDir))
	if storeErr == nil {
		storeErr = claim.Release(ctx, store, n.Plan.Provided, n.Plan.Name)
	}
	return errors.Join(err, storeErr, os.RemoveAll(n.dir()))
}
