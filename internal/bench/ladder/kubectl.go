package ladder

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/util/machine"
)

const (
	chunkSize = 500
	// kubectlTimeout limits one call of kubectl. A list of a million nodes has 2,000 pages.
	kubectlTimeout = 30 * time.Minute
	// listMemory is what kubectl keeps in memory for a node of a list, in bytes.
	listMemory   = 6 << 10
	maxErrorText = 300
)

// kubectlResult is what kubectl did.
type kubectlResult struct {
	get    []float64 // seconds of `kubectl get node NAME`, sorted
	failed int       // calls that failed
	// list is the seconds of `kubectl get nodes`, and listMemory its peak of memory in bytes. listed is the number of
	// nodes that it printed. isListed is false if it was left out.
	list       float64
	listMemory int64
	listed     int
	isListed   bool
}

// kubectl gets single nodes, and lists all of them.
func (s *step) kubectl(ctx context.Context) (r kubectlResult, err error) {
	cache, err := os.MkdirTemp("", "k1m-bench-ladder-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cache)) }()
	task := s.Display.Task(s.rung.title()+": kubectl get node", s.options.Kubectl)
	nodes := bulk.Range{Prefix: bulk.NodePrefix}
	for i := range s.options.Kubectl {
		name := nodes.Name(i * s.rung.nodes / s.options.Kubectl)
		c, err := s.call(ctx, cache, "get", "node", name, "--no-headers")
		if ctx.Err() != nil {
			task.Interrupt()
			return r, ctx.Err()
		}
		if err != nil || c.lines != 1 {
			r.failed++
			s.Result.Note("Rung %s: kubectl get node %s failed: %v", s.rung.title(), name, err)
		} else {
			r.get = append(r.get, c.seconds)
		}
		task.Set(i + 1)
	}
	slices.Sort(r.get)
	task.Done(fmt.Sprintf("median %.0f ms", 1000*median(r.get)))
	return r, s.list(ctx, cache, &r)
}

// list lists all nodes in chunks, unless kubectl would need more memory than there is.
func (s *step) list(ctx context.Context, cache string, r *kubectlResult) error {
	state, err := machine.ReadState()
	if err != nil {
		return err
	}
	if needed := uint64(s.rung.nodes) * listMemory; needed > state.Available {
		s.Result.Note("Rung %s: kubectl get nodes is left out, because it would need about %d MiB of memory, and %d MiB are available.",
			s.rung.title(), needed>>20, state.Available>>20)
		return nil
	}
	task := s.Display.Task(s.rung.title()+": kubectl get nodes", 0)
	task.Say(fmt.Sprintf("%d nodes in chunks of %d", s.rung.nodes, chunkSize))
	c, err := s.call(ctx, cache, "get", "nodes", fmt.Sprintf("--chunk-size=%d", chunkSize), "--no-headers")
	if ctx.Err() != nil {
		task.Interrupt()
		return ctx.Err()
	}
	r.isListed, r.listed, r.list, r.listMemory = true, c.lines, c.seconds, c.memory
	if err != nil {
		task.Fail(err.Error())
		s.Result.Note("Rung %s: kubectl get nodes failed: %v", s.rung.title(), err)
		return nil
	}
	task.Done(fmt.Sprintf("%d nodes", c.lines))
	return nil
}

// call is a call of kubectl.
type call struct {
	seconds float64
	lines   int   // of its output
	memory  int64 // peak in bytes
}

// call runs kubectl as the administrator of the cluster. The error has the end of its error output.
func (s *step) call(ctx context.Context, cache string, args ...string) (c call, err error) {
	program, err := component.FindBinary("kubectl")
	if err != nil {
		return c, err
	}
	ctx, cancel := context.WithTimeout(ctx, kubectlTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{"--cache-dir", cache}, args...)...)
	env := slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "KUBECONFIG=") })
	cmd.Env = append(env, "KUBECONFIG="+s.cluster.Dir.Kubeconfig(pki.Admin.File))
	var failure bytes.Buffer
	cmd.Stderr = &failure
	output, err := cmd.StdoutPipe()
	if err != nil {
		return c, err
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return c, err
	}
	c.lines = countLines(output)
	err = cmd.Wait()
	c.seconds = time.Since(begun).Seconds()
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		c.memory = usage.Maxrss << 10
	}
	if err != nil {
		text := strings.Join(strings.Fields(failure.String()), " ")
		err = fmt.Errorf("%w: %s", err, text[max(0, len(text)-maxErrorText):])
	}
	return c, err
}

// countLines counts the lines of an output until it ends.
func countLines(output io.Reader) (lines int) {
	scanner := bufio.NewScanner(output)
	for scanner.Scan() {
		lines++
	}
	return lines
}

// median returns the median of sorted values; 0 if there are none.
func median(sorted []float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)/2]
}

// most returns the largest of sorted values; 0 if there are none.
func most(sorted []float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)-1]
}
