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
	// A hollow kubelet has so much memory, roughly; bytes. It was 85 MiB with five pods.
	kubeletMemory = 100 << 20
)

// kubelets are hollow kubelets: kubelet's own code with a container runtime that starts
// nothing.
type kubelets []*kubelet

// kubelet is one of them, a process of its own.
type kubelet struct {
	*exec.Cmd
	log   string
	ended chan struct{}
}

// startKubelets registers so many nodes. One that ends before stop is a failure: without it
// what the others take is not what so many nodes take.
func (t *turn) startKubelets(ctx context.Context, count int, failed context.CancelCauseFunc) (kubelets, error) {
	program, err := component.FindBinary(hollowNode)
	if err != nil {
		return nil, err
	}
	nodes := make([]string, count)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("hollow-%04d", i)
	}
	// Not the kernel's choice: it may give the port to a connection before the kubelet has it.
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

func (t *turn) startKubelet(ctx context.Context, program, node string, port int, failed context.CancelCauseFunc) (*kubelet, error) {
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
		failed(fmt.Errorf("the kubelet of %s ended: %w: %s", node, err, k.complaint()))
	}()
	return k, nil
}

// complaint is the last error in its log, or else the last line.
func (k *kubelet) complaint() string {
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
	klogError  = regexp.MustCompile(`^[EF][0-9]{4} `)
	rootFolder = regexp.MustCompile(`Using (/tmp/hollow-kubelet\.[A-Za-z0-9]+) as root dir`)
)

// stop ends all of them, and removes the folders that they leave.
func (all kubelets) stop() error {
	var errs []error
	for _, k := range all {
		// It may have ended by itself.
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

// usage of all of them together.
func (all kubelets) usage() (sum process.Usage) {
	for _, k := range all {
		id, err := process.Of(k.Process.Pid)
		if err != nil {
			continue
		}
		if one, err := id.Usage(); err == nil {
			sum.CPU += one.CPU
			sum.Resident += one.Resident
		}
	}
	return sum
}

// awaitNodes until so many are ready.
func (t *turn) awaitNodes(ctx context.Context, wanted int) error {
	return t.await(ctx, "nodes ready", wanted, func() int {
		ready, err := t.readyNodes(ctx)
		if err != nil {
			return 0
		}
		time.Sleep(poll)
		return ready
	})
}
