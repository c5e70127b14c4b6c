// Package e2e tests k1m end to end: with the real binaries and real clusters.
//
//	K1M_BIN    directory of the binaries (default ../../bin)
//	E2E_STORE  store of the cluster under test: mem_etcd (default) or etcd
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	commandTimeout = 3 * time.Minute
	pollInterval   = 100 * time.Millisecond
)

// world is a temporary K1M_HOME with its clusters.
type world struct {
	bin  string
	home string
}

// newWorld fails the test if the binaries do not exist; it does not skip it.
func newWorld(t *testing.T) *world {
	t.Helper()
	bin := os.Getenv("K1M_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	bin, err := filepath.Abs(bin)
	must(t, err)
	for _, name := range []string{"k1m", storeKind(), "kube-apiserver", "kube-controller-manager", "kube-scheduler", "dist-scheduler", "kubectl", "kwok"} {
		if _, err := exec.LookPath(filepath.Join(bin, name)); err != nil {
			t.Fatalf("%v; run `make build`, or set K1M_BIN to the directory of the binaries", err)
		}
	}
	w := &world{bin: bin, home: t.TempDir()}
	t.Cleanup(func() { w.assertNothingRuns(t) })
	return w
}

func storeKind() string {
	if store := os.Getenv("E2E_STORE"); store != "" {
		return store
	}
	return "mem_etcd"
}

// result is the output and the exit code of a command.
type result struct {
	stdout, stderr string
	code           int
}

// command returns a k1m command that is not started.
func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(w.bin, "k1m"), args...)
	cmd.Env = append(os.Environ(), "K1M_HOME="+w.home)
	return cmd
}

// k1m runs a command and returns its result, regardless of its exit code.
func (w *world) k1m(t *testing.T, args ...string) result {
	t.Helper()
	// The test's context is already cancelled in cleanup functions, which run k1m too.
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return finish(t, w.command(ctx, args...))
}

func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// succeed runs k1m and fails the test unless the exit code is 0.
func (w *world) succeed(t *testing.T, args ...string) result {
	t.Helper()
	r := w.k1m(t, args...)
	if r.code != 0 {
		t.Fatalf("k1m %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r
}

// clusterStatus is the part of `k1m status -o json` that the tests check.
type clusterStatus struct {
	State      string
	Supervisor struct{ PID int }
	Components []componentStatus
	Nodes      struct{ Total, Ready, NotReady int }
	Pods       struct {
		Total   int
		ByPhase map[string]int
	}
	Objects  struct{ Count, Revision int64 }
	Problems []string
}

type componentStatus struct {
	Name        string
	PID         int
	State       string
	Restarts    int
	LastExit    string
	MemoryBytes int64
	Address     string
}

func (w *world) status(t *testing.T, name string) clusterStatus {
	t.Helper()
	r := w.succeed(t, "status", "--name", name, "-o", "json")
	var s clusterStatus
	must(t, json.Unmarshal([]byte(r.stdout), &s))
	return s
}

func (s clusterStatus) component(t *testing.T, name string) componentStatus {
	t.Helper()
	for _, c := range s.Components {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no component %q in %+v", name, s.Components)
	return componentStatus{}
}

// kill kills a component and waits until the supervisor has restarted it.
func (w *world) kill(t *testing.T, cluster, component string) {
	t.Helper()
	w.awaitRestart(t, cluster, w.killNow(t, cluster, component))
}

// killNow kills a component and returns its status before that.
func (w *world) killNow(t *testing.T, cluster, component string) componentStatus {
	t.Helper()
	before := w.status(t, cluster).component(t, component)
	must(t, syscall.Kill(before.PID, syscall.SIGKILL))
	return before
}

func (w *world) awaitRestart(t *testing.T, cluster string, before componentStatus) {
	t.Helper()
	eventually(t, time.Minute, before.Name+" is restarted", func() error {
		s := w.status(t, cluster)
		after := s.component(t, before.Name)
		if after.Restarts != before.Restarts+1 || s.State != "running" {
			return fmt.Errorf("cluster %s, %s %s with %d restarts", s.State, before.Name, after.State, after.Restarts)
		}
		if after.LastExit != "signal: killed" {
			t.Fatalf("last exit of %s is %q", before.Name, after.LastExit)
		}
		return nil
	})
}

// client returns a client with the kubeconfig that k1m prints.
func (w *world) client(t *testing.T, cluster string) kubernetes.Interface {
	t.Helper()
	return w.clientAt(t, cluster, "")
}

// clientAt is client for one of several API servers.
func (w *world) clientAt(t *testing.T, cluster, address string) kubernetes.Interface {
	t.Helper()
	content := w.succeed(t, "kubeconfig", "--name", cluster).stdout
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(content))
	must(t, err)
	config.QPS = -1
	config.Timeout = time.Minute
	if address != "" {
		config.Host = address
	}
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client
}

// processes lists the running processes that belong to this K1M_HOME, by process ID.
func (w *world) processes() map[int]string {
	found := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		environ, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		// A zombie has neither command line nor environment.
		if bytes.Contains(line, []byte(w.home)) || bytes.Contains(environ, []byte("K1M_HOME="+w.home+"\x00")) {
			program, _, _ := bytes.Cut(line, []byte{0})
			found[pid] = filepath.Base(string(program))
		}
	}
	return found
}

func (w *world) assertNothingRuns(t *testing.T) {
	t.Helper()
	eventually(t, 10*time.Second, "all processes have exited", func() error {
		if left := w.processes(); len(left) > 0 {
			return fmt.Errorf("still running: %v", left)
		}
		return nil
	})
}

func (w *world) clusterDir(name string) string { return filepath.Join(w.home, "clusters", name) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually repeats try until it returns no error, and fails the test after the timeout.
func eventually(t *testing.T, timeout time.Duration, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %v", timeout, what, err)
		}
		time.Sleep(pollInterval)
	}
}
