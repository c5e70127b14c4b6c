package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestKilledUp kills `k1m up` at several times after its start. Each time, all processes that it started
// must exit, and the next command must succeed.
func TestKilledUp(t *testing.T) {
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down") })
	for _, after := range []time.Duration{300 * time.Millisecond, 1500 * time.Millisecond, 4 * time.Second} {
		up := w.command(t.Context(), "up", "--store", storeKind(), "--nodes", "20000")
		must(t, up.Start())
		time.Sleep(after)
		must(t, up.Process.Kill())
		if err := up.Wait(); err == nil {
			t.Fatalf("up was complete before it was killed after %s", after)
		}
		// `k1m down` waits until the supervisor has exited, regardless of the supervisor's state.
		w.succeed(t, "down", "--keep-data")
		w.assertNothingRuns(t)
	}
	w.succeed(t, "up", "--nodes", "10")
	w.succeed(t, "down")
}

func TestInterruptedUp(t *testing.T) {
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down", "--name", "brief") })
	up := w.command(t.Context(), "up", "--name", "brief", "--store", storeKind(), "--nodes", "20000")
	r := finishAfter(t, up, syscall.SIGINT, "the API server is started", func() bool {
		_, err := os.Stat(filepath.Join(w.clusterDir("brief"), "logs", "kube-apiserver.log"))
		return err == nil
	})
	want := "k1m: interrupted before the cluster was complete; all of its processes were stopped; to continue, run `k1m up --name brief`\n"
	if r.code != 1 || r.stderr != want {
		t.Errorf("interrupted up: exit code %d, %q", r.code, r.stderr)
	}
	w.assertNothingRuns(t)
}

func TestConcurrentCommandsAreRejected(t *testing.T) {
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down") })
	first := w.command(t.Context(), "up", "--store", storeKind(), "--nodes", "10")
	must(t, first.Start())
	eventually(t, patience, "the first up holds the lock", func() error {
		_, err := os.Stat(filepath.Join(w.clusterDir("k1m"), "cluster.json"))
		return err
	})
	for _, command := range []string{"up", "down"} {
		second := w.k1m(t, command)
		want := fmt.Sprintf("k1m: cluster \"k1m\": another k1m is changing it (locked by process %d); wait for it or stop it with Ctrl-C\n", first.Process.Pid)
		if second.code != 1 || second.stderr != want {
			t.Errorf("%s during up: exit code %d, %q", command, second.code, second.stderr)
		}
	}
	must(t, first.Wait())
	if s := w.status(t, "k1m"); s.State != "running" || s.Nodes.Ready != 10 {
		t.Errorf("after the first up the status is %+v, want a running cluster with 10 ready nodes", s)
	}
}

func TestComponentThatCannotStart(t *testing.T) {
	w := newWorkspace(t)
	r := w.k1m(t, "up", "--store", storeKind(), "--apiserver-arg", "no-such-flag=1")
	line, tail, _ := strings.Cut(r.stderr, "\n")
	want := fmt.Sprintf("k1m: kube-apiserver is not ready: exited 3 times, most recently with exit status 1; its log is %s",
		filepath.Join(w.clusterDir("k1m"), "logs", "kube-apiserver.log"))
	if r.code != 1 || line != want || !strings.Contains(tail, "unknown flag: --no-such-flag") {
		t.Errorf("up with an invalid flag of kube-apiserver: exit code %d, %q", r.code, r.stderr)
	}
	w.assertNothingRuns(t)
	w.succeed(t, "down")
}

func TestUpTimeout(t *testing.T) {
	w := newWorkspace(t)
	r := w.k1m(t, "up", "--store", storeKind(), "--timeout", "1500ms")
	line, _, _ := strings.Cut(r.stderr, "\n")
	// On a busy machine, not even the store is ready.
	want := regexp.MustCompile(`^k1m: (supervisor|store|kube-apiserver) is not ready: timed out after 1\.5s \(--timeout\); `)
	if r.code != 1 || !want.MatchString(line) {
		t.Errorf("up with a short timeout: exit code %d, %q", r.code, r.stderr)
	}
	w.assertNothingRuns(t)
	w.succeed(t, "down")
}

func TestMissingBinaries(t *testing.T) {
	w := newWorkspace(t)
	alone := filepath.Join(t.TempDir(), "k1m")
	copyFile(t, filepath.Join(w.bin, "k1m"), alone)
	cmd := exec.CommandContext(t.Context(), alone, "up", "--store", storeKind())
	cmd.Env = []string{"K1M_HOME=" + w.home, "PATH=/nonexistent"}
	r := finish(t, cmd)
	want := fmt.Sprintf("k1m: program not found: %s is neither in the directory of k1m nor in $PATH; run `make build`\n", storeKind())
	if r.code != 1 || r.stderr != want {
		t.Errorf("up without the other binaries: exit code %d, %q", r.code, r.stderr)
	}
}

// TestLogsKubectlAndRepeatedCommands also checks that the cluster keeps running after a hangup of the
// terminal in which `k1m up` ran.
func TestLogsKubectlAndRepeatedCommands(t *testing.T) {
	w := newWorkspace(t)
	t.Cleanup(func() { w.k1m(t, "down") })
	up := w.command(t.Context(), "up", "--store", storeKind(), "--nodes", "5")
	up.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, up.Run())
	if err := syscall.Kill(-up.Process.Pid, syscall.SIGHUP); err != syscall.ESRCH {
		t.Errorf("the process group of up still has processes: %v", err)
	}
	if logs := w.succeed(t, "logs", "supervisor").stdout; !strings.Contains(logs, `"msg":"process started"`) {
		t.Errorf("the log of the supervisor reports no start of a process: %q", logs)
	}
	if logs := w.succeed(t, "logs").stdout; !strings.Contains(logs, "kube-apiserver | ") {
		t.Errorf("the logs of all components do not contain kube-apiserver")
	}
	if r := w.k1m(t, "logs", "nosuch"); r.code != 2 || !strings.Contains(r.stderr, `no log of "nosuch"; available logs: kube-apiserver, `) {
		t.Errorf("logs of an unknown component: exit code %d, %q", r.code, r.stderr)
	}
	nodes := w.succeed(t, "kubectl", "--", "get", "nodes", "--no-headers").stdout
	if strings.Count(nodes, "Ready") != 5 {
		t.Errorf("kubectl get nodes printed %q, want 5 nodes", nodes)
	}
	if nodes = w.succeed(t, "kubectl", "get", "nodes", "-o", "name").stdout; strings.Count(nodes, "node/") != 5 {
		t.Errorf("kubectl get nodes without -- printed %q, want 5 nodes", nodes)
	}
	if up := w.succeed(t, "up", "--nodes", "2").stdout; !strings.Contains(up, "with 5 nodes") {
		t.Errorf("up with fewer nodes than exist printed %q", up)
	}
	if again := w.succeed(t, "nodes", "create", "--count", "3").stdout; !strings.Contains(again, "use --first 5 or another --prefix") {
		t.Errorf("nodes create for existing nodes printed %q", again)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	source, err := os.Open(from)
	must(t, err)
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	must(t, err)
	_, err = io.Copy(target, source)
	must(t, err)
	must(t, target.Close())
}
