// Package e2e tests k1m end to end, with the real binaries and real clusters.
//
//	K1M_BIN    directory of the binaries (default ../../bin)
//	E2E_STORE  store of the cluster under test: mem_etcd (default) or etcd
//	E2E_GATEWAY_NODES  nodes of the cluster with gateways (default 300)
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// commandTimeout bounds a command. The start of a cluster takes longest. upTimeout is shorter, so that k1m says what is not
	// ready.
	commandTimeout = 11 * time.Minute
	upTimeout      = "10m"
	// patience bounds what takes seconds on a machine without other work. It only decides when a test fails.
	patience     = 5 * time.Minute
	pollInterval = 100 * time.Millisecond
	// requestTimeout bounds a request that is repeated if it fails.
	requestTimeout = 10 * time.Second
	// signalInterval is the time between two looks at a command that is to be interrupted at some point.
	signalInterval = 5 * time.Millisecond
)

// workspace is a temporary K1M_HOME with its clusters.
type workspace struct {
	bin  string // directory of the binaries
	home string // K1M_HOME
}

// newWorkspace creates an empty workspace. If a binary does not exist, it fails the test instead of
// skipping it.
func newWorkspace(t *testing.T) *workspace {
	t.Helper()
	bin := os.Getenv("K1M_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	bin, err := filepath.Abs(bin)
	must(t, err)
	for _, name := range []string{"k1m", storeKind(), "kube-apiserver", "kube-controller-manager", "kube-scheduler", "dist-scheduler", "kube-gateway", "node-sim", "kubectl", "kwok"} {
		if _, err := exec.LookPath(filepath.Join(bin, name)); err != nil {
			t.Fatalf("%v; run `make build`, or set K1M_BIN to the directory of the binaries", err)
		}
	}
	w := &workspace{bin: bin, home: t.TempDir()}
	t.Cleanup(func() { w.assertNothingRuns(t) })
	return w
}

// storeKind returns the store of the clusters under test.
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
func (w *workspace) command(ctx context.Context, args ...string) *exec.Cmd {
	if len(args) > 0 && args[0] == "up" {
		// A flag of the test that follows is used in its place.
		args = append([]string{"up", "--timeout", upTimeout}, args[1:]...)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(w.bin, "k1m"), args...)
	cmd.Env = append(os.Environ(), "K1M_HOME="+w.home)
	return cmd
}

// k1m runs a command and returns its result, regardless of its exit code.
func (w *workspace) k1m(t *testing.T, args ...string) result {
	t.Helper()
	// The context is not that of the test, which is already cancelled in cleanup functions. They run k1m
	// too.
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return finish(t, w.command(ctx, args...))
}

// finish runs a command and returns its result, regardless of its exit code.
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

// finishAfter runs a command, sends it a signal as soon as a condition is true, and returns its result.
func finishAfter(t *testing.T, cmd *exec.Cmd, signal syscall.Signal, what string, condition func() bool) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(signalInterval) {
		select {
		case <-ended:
			t.Fatalf("%v ended before %s: %s%s", cmd.Args, what, &stdout, &stderr)
		default:
		}
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			t.Fatalf("%v: not within %v: %s", cmd.Args, patience, what)
		}
	}
	must(t, cmd.Process.Signal(signal))
	<-ended
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// succeed runs k1m and fails the test unless the exit code is 0.
func (w *workspace) succeed(t *testing.T, args ...string) result {
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
	Objects struct {
		Count, Revision int64
		OwnStores       []struct {
			Resource        string
			Count, Revision int64
		}
	}
	StoreLeader string
	Gateways    []gatewayStatus
	Problems    []string
}

type gatewayStatus struct {
	Name              string
	ClientConnections int
	Servers           []struct {
		Name  string
		Ready bool
	}
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

func (w *workspace) status(t *testing.T, name string) clusterStatus {
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
	t.Fatalf("the status has no component %q: %+v", name, s.Components)
	return componentStatus{}
}

// kill kills a component and waits until the supervisor has restarted it.
func (w *workspace) kill(t *testing.T, cluster, component string) {
	t.Helper()
	w.awaitRestart(t, cluster, w.killNow(t, cluster, component))
}

// killNow kills a component without waiting. It returns the status of the component before the kill.
func (w *workspace) killNow(t *testing.T, cluster, component string) componentStatus {
	t.Helper()
	before := w.status(t, cluster).component(t, component)
	must(t, syscall.Kill(before.PID, syscall.SIGKILL))
	return before
}

// awaitRestart waits until the supervisor has restarted a killed component. before is the status of the
// component before the kill.
func (w *workspace) awaitRestart(t *testing.T, cluster string, before componentStatus) {
	t.Helper()
	eventually(t, patience, before.Name+" is restarted", func() error {
		s := w.status(t, cluster)
		after := s.component(t, before.Name)
		if after.Restarts != before.Restarts+1 || s.State != "running" {
			return fmt.Errorf("the cluster is %s, and %s is %s with %d restarts", s.State, before.Name, after.State, after.Restarts)
		}
		if after.LastExit != "signal: killed" {
			t.Fatalf("the last exit of %s is %q, want %q", before.Name, after.LastExit, "signal: killed")
		}
		return nil
	})
}

// client returns a client with the kubeconfig that k1m prints.
func (w *workspace) client(t *testing.T, cluster string) kubernetes.Interface {
	t.Helper()
	return w.clientAt(t, cluster, "")
}

// clientAt returns a client of the API server at an address; "" means the address in the kubeconfig.
func (w *workspace) clientAt(t *testing.T, cluster, address string) kubernetes.Interface {
	t.Helper()
	content := w.succeed(t, "kubeconfig", "--name", cluster).stdout
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(content))
	must(t, err)
	config.QPS = -1
	config.Timeout = patience
	if address != "" {
		config.Host = address
	}
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client
}

// processes returns the programs of the running processes that belong to this K1M_HOME, by process ID.
func (w *workspace) processes() map[int]string {
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

// assertNothingRuns waits until no process of this K1M_HOME is running.
func (w *workspace) assertNothingRuns(t *testing.T) {
	t.Helper()
	eventually(t, patience, "all processes have exited", func() error {
		if left := w.processes(); len(left) > 0 {
			return fmt.Errorf("still running: %v", left)
		}
		return nil
	})
}

func (w *workspace) clusterDir(name string) string { return filepath.Join(w.home, "clusters", name) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually repeats try until it returns no error. After the timeout it fails the test. condition is the
// expected condition, for the message.
func eventually(t *testing.T, timeout time.Duration, condition string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("condition not met within %s: %s: %v", timeout, condition, err)
		}
		time.Sleep(pollInterval)
	}
}

// countOnPage returns the number that the group of a pattern matches on a page.
func countOnPage(url string, pattern *regexp.Regexp) (int, error) {
	response, err := http.Get(url)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	found := pattern.FindSubmatch(page)
	if found == nil {
		return 0, fmt.Errorf("the page does not match %s", pattern)
	}
	return strconv.Atoi(string(found[1]))
}
