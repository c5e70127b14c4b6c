package clusterload

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/component"
	"github.com/k8s-1m/k8s-1m/internal/pki"
	"github.com/k8s-1m/k8s-1m/internal/process"
)

const (
	hollowNode = "kubemark"
	// A hollow kubelet has so much memory, roughly; bytes. It was 85 MiB with five pods.
	kubeletMemory = 100 << 20
)

// kubelets are hollow kubelets: kubelet's own code with a container runtime that starts
// nothing.
type kubelets struct {
	processes []*exec.Cmd
	logs      []string
}

// startKubelets registers so many nodes, each with a process of its own.
func (t *turn) startKubelets(ctx context.Context, count int) (*kubelets, error) {
	program, err := component.FindBinary(hollowNode)
	if err != nil {
		return nil, err
	}
	k := &kubelets{}
	for i := range count {
		if err := k.start(ctx, t, program, fmt.Sprintf("hollow-%04d", i)); err != nil {
			return nil, errors.Join(err, k.stop())
		}
	}
	return k, nil
}

func (k *kubelets) start(ctx context.Context, t *turn, program, node string) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	log := filepath.Join(t.Run.Dir.Logs(), node+".log")
	output, err := os.Create(log)
	if err != nil {
		return err
	}
	defer output.Close()
	cmd := exec.CommandContext(ctx, program, "--morph=kubelet", "--name="+node,
		"--kubeconfig="+t.Run.Dir.Kubeconfig(pki.SuperAdmin.File), "--kubelet-port="+strconv.Itoa(port), "--kubelet-read-only-port=0",
		"--use-host-image-service=false", "--kube-api-qps=50", "--kube-api-burst=100")
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	k.processes, k.logs = append(k.processes, cmd), append(k.logs, log)
	return nil
}

var rootFolder = regexp.MustCompile(`Using (/tmp/hollow-kubelet\.[A-Za-z0-9]+) as root dir`)

// stop ends all of them, and removes the folders that they leave.
func (k *kubelets) stop() error {
	var errs []error
	for i, cmd := range k.processes {
		// That it was killed is no news.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log, err := os.ReadFile(k.logs[i])
		if match := rootFolder.FindSubmatch(log); err == nil && match != nil {
			err = os.RemoveAll(string(match[1]))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// usage of all of them together.
func (k *kubelets) usage() (all process.Usage) {
	for _, cmd := range k.processes {
		id, err := process.Of(cmd.Process.Pid)
		if err != nil {
			continue
		}
		if one, err := id.Usage(); err == nil {
			all.CPU += one.CPU
			all.Resident += one.Resident
		}
	}
	return all
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
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
