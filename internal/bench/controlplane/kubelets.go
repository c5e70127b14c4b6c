package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/cluster/clusterdir"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/internal/util/process"
)

const (
	hollowNode = "kubemark"
	// kubeletMemory is the approximate memory of a hollow kubelet in bytes. With five pods, 85 MiB were
	// measured.
	kubeletMemory = 100 << 20
)

// kubelets are processes of hollow kubelets. A hollow kubelet is the code of kubelet with a container
// runtime that starts no containers.
type kubelets []*kubelet

// kubelet is the process of one hollow kubelet.
type kubelet struct {
	*exec.Cmd
	log   string        // path of the log file
	ended chan struct{} // closed when the process has exited
}

// startKubelets starts count hollow kubelets, which register their nodes. It calls failed when one of
// them exits. A caller that has not called stop must then end the measurement, because fewer nodes run
// than it would report.
func (t *storeRun) startKubelets(ctx context.Context, count int, failed context.CancelCauseFunc) (kubelets, error) {
	program, err := component.FindBinary(hollowNode)
	if err != nil {
		return nil, err
	}
	nodes := make([]string, count)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("hollow-%04d", i)
	}
	// Assign chooses ports below the kernel's range of ephemeral ports. Otherwise an outgoing connection
	// could take the port before the kubelet listens.
	ports, err := clusterdir.Ports{}.Assign(t.Run.Dir.Name(), nodes, nil)
	if err != nil {
		return nil, err
	}
	var all kubelets
	for _, node := range nodes {
		one, err := t.startKubelet(ctx, program, node, ports[node], failed)
		if err != nil {
			return nil, errors.Join(err, all.stop())
		}
		all = append(all, one)
	}
	return all, nil
}

// startKubelet starts one hollow kubelet, and calls failed when it exits.
func (t *storeRun) startKubelet(ctx context.Context, program, node string, port int, failed context.CancelCauseFunc) (*kubelet, error) {
	k := &kubelet{log: filepath.Join(t.Run.Dir.Logs(), node+".log"), ended: make(chan struct{})}
	output, err := os.Create(k.log)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	k.Cmd = exec.CommandContext(ctx, program, "--morph=kubelet", "--name="+node,
		"--kubeconfig="+t.Run.Dir.Kubeconfig(pki.SuperAdmin.File), "--kubelet-port="+strconv.Itoa(port), "--kubelet-read-only-port=0",
		"--use-host-image-service=false", "--kube-api-qps=50", "--kube-api-burst=100")
	k.Stdout, k.Stderr = output, output
	k.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := k.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(k.ended)
		err := k.Wait()
		failed(fmt.Errorf("the kubelet of node %s exited: %w: %s", node, err, k.lastError()))
	}()
	return k, nil
}

// lastError returns the last error in the log, or the last line if there is no error.
func (k *kubelet) lastError() string {
	log, err := os.ReadFile(k.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	for _, line := range slices.Backward(lines) {
		if klogError.MatchString(line) {
			return line
		}
	}
	return lines[len(lines)-1]
}

var (
	// klogError matches log lines of klog with the severity error or fatal.
	klogError = regexp.MustCompile(`^[EF][0-9]{4} `)
	// rootFolder matches the log line that names the directory of a hollow kubelet.
	rootFolder = regexp.MustCompile(`Using (/tmp/hollow-kubelet\.[A-Za-z0-9]+) as root dir`)
)

// stop kills all processes, and removes their directories.
func (all kubelets) stop() error {
	var errs []error
	for _, k := range all {
		// The process may have exited already.
		_ = k.Process.Kill()
		<-k.ended
		log, err := os.ReadFile(k.log)
		if match := rootFolder.FindSubmatch(log); err == nil && match != nil {
			err = os.RemoveAll(string(match[1]))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// usage returns the total CPU time and memory of all processes.
func (all kubelets) usage() (sum process.Usage) {
	for _, k := range all {
		id, err := process.Of(k.Process.Pid)
		if err != nil {
			continue
		}
		if usage, err := id.Usage(); err == nil {
			sum.CPU += usage.CPU
			sum.Resident += usage.Resident
		}
	}
	return sum
}

// awaitNodes waits until this number of nodes is ready.
func (t *storeRun) awaitNodes(ctx context.Context, wanted int) error {
	return t.await(ctx, "nodes ready", wanted, func() int {
		ready, err := t.readyNodes(ctx)
		if err != nil {
			return 0
		}
		time.Sleep(pollInterval)
		return ready
	})
}
