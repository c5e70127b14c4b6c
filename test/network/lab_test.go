// Package network tests the network of a cluster on the wire: in labs with the real agent and the real CNI plugins, made
// in network namespaces. Without the right to create these, its tests are skipped.
//
// wire_test.go asserts what passes the wires in each mode, lifecycle_test.go what happens to addresses when pods and nodes come
// and go, faults_test.go what goes wrong. NETWORK_NODES and NETWORK_PODS set the size of the labs (`make network`).
package network

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/lab"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
	"github.com/k8s-1m/k8s-1m/internal/network/probe"
	"github.com/k8s-1m/k8s-1m/internal/util/progress"
	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// size returns the number in an environment variable, or the default.
func size(t *testing.T, variable string, byDefault int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return byDefault
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s is not a number of nodes or pods", variable, text)
	}
	return n
}

var labs atomic.Int64

// newLab builds a lab that is removed with the test, or skips the test.
func newLab(t *testing.T, mode string, nodes, pods int) *lab.Lab {
	t.Helper()
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	bin := testcluster.Binaries(t, "network-agent", "cni/bridge", "cni/host-local")
	o := lab.DefaultOptions()
	o.Name, o.Mode, o.Nodes, o.PodsPerNode = fmt.Sprintf("k1mt-%d-%d", os.Getpid(), labs.Add(1)), mode, nodes, pods
	o.Agent, o.Plugins = filepath.Join(bin, "network-agent"), filepath.Join(bin, "cni")
	timings := &lab.Timings{}
	start := time.Now()
	l, err := lab.Up(t.Context(), o, progress.New(io.Discard), timings)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range l.Nodes()[:min(3, len(l.Nodes()))] {
				t.Logf("the log of the agent of %s ends with: %s", n.Plan.Name, n.AgentLog())
			}
		}
		if err := l.Down(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%d nodes with %d pods each, %s, after %s; a pod took %s (p99)", nodes, pods, mode, time.Since(start).Round(time.Millisecond), timings.Quantile(0.99))
	return l
}

// pods returns all pods of a lab.
func pods(l *lab.Lab) (all []*lab.Pod) {
	for _, n := range l.Nodes() {
		all = append(all, n.Pods...)
	}
	return all
}

// echo answers datagrams to an address with the address of the sender, until the test ends.
func echo(t *testing.T, ns *netns.Namespace, address netip.Addr) {
	t.Helper()
	server, err := probe.Serve(ns, address)
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
}

// echoAll starts servers in all pods.
func echoAll(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, pod := range pods(l) {
		echo(t, pod.NS, pod.Address)
	}
}

// dial opens a socket of a namespace to a server at an address.
func dial(t *testing.T, ns *netns.Namespace, to netip.Addr) net.Conn {
	t.Helper()
	client, err := probe.Dial(ns, to)
	must(t, err)
	return client
}

// reaches fails the test unless a pod gets an answer from an address, which has seen the pod's own address.
func reaches(t *testing.T, pod *lab.Pod, to netip.Addr) {
	t.Helper()
	if err := probe.Reach(pod.NS, pod.Address, to, patience); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until a condition is true.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}
