package testcluster

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const pollInterval = 100 * time.Millisecond

// StartGateway starts kube-gateway, from the directory bin, with a configuration file. It ends with the test, and writes its
// log into a file that is shown if the test fails.
func StartGateway(t *testing.T, bin, config, log string) *exec.Cmd {
	t.Helper()
	file, err := os.Create(log)
	must(t, err)
	defer file.Close()
	process := exec.Command(filepath.Join(bin, "kube-gateway"), "--config", config)
	process.Stderr = file
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, process.Start())
	t.Cleanup(func() {
		Stop(process)
		if text, err := os.ReadFile(log); err == nil && t.Failed() {
			t.Logf("log of the gateway:\n%s", text)
		}
	})
	return process
}

// Stop kills a process and waits for its end. It may have ended before.
func Stop(process *exec.Cmd) {
	_ = process.Process.Kill()
	_ = process.Wait()
}

// Page returns the page that a server shows at a path, or an empty text.
func Page(address, path string) string {
	response, err := http.Get("http://" + address + path)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var text bytes.Buffer
	_, _ = text.ReadFrom(response.Body)
	return text.String()
}

// triedPorts is the number of ports that FreePort has tried.
var triedPorts atomic.Int32

// FreePort returns a loopback port that has no listener and that no other test of this process gets. It is below the ephemeral
// ports, which outgoing connections of other tests take at any time, also while the process that listens is restarted.
func FreePort(t *testing.T) int {
	t.Helper()
	// test/store uses the ports from 10,000 on, and k1m's clusters those from 20,000 on.
	const first, count = 4000, 6000
	start := os.Getpid() * 97
	for range count {
		port := first + (start+int(triedPorts.Add(1)))%count
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			_ = listener.Close()
			return port
		}
	}
	t.Fatalf("no port from %d to %d is free", first, first+count-1)
	return 0
}

// FreeAddress returns a loopback address with a FreePort.
func FreeAddress(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(FreePort(t)))
}

// Eventually waits until a condition is true.
func Eventually(t *testing.T, timeout time.Duration, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !condition(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", timeout, what)
		}
	}
}
