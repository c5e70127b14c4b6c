package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/k8s-1m/k8s-1m/internal/network/agent"
	"github.com/k8s-1m/k8s-1m/internal/network/claim"
	"github.com/k8s-1m/k8s-1m/internal/network/lab"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

// An address is not given to another pod soon after its pod was deleted, also after a restart of the agent.
func TestAddressesAreNotReusedEarly(t *testing.T) {
	l := newLab(t, agent.ModeOnLink, 1, 2)
	n := l.Nodes()[0]
	seen := map[netip.Addr]bool{}
	for _, pod := range n.Pods {
		seen[pod.Address] = true
	}
	for i := range 12 {
		must(t, n.DeletePod(t.Context(), n.Pods[0]))
		if i == 6 {
			must(t, n.StopAgent(syscall.SIGTERM))
			must(t, n.StartAgent(t.Context()))
		}
		pod, _, err := n.AddPod(t.Context(), 10+i)
		must(t, err)
		if seen[pod.Address] {
			t.Errorf("pod %d has the address %s of an earlier pod", i, pod.Address)
		}
		if !n.Plan.Pods.Contains(pod.Address) || pod.Address == n.Plan.Address.Addr() {
			t.Errorf("pod %d has the address %s", i, pod.Address)
		}
		seen[pod.Address] = true
		must(t, n.CheckPod(t.Context(), pod))
	}
}

// A node that is deleted leaves nothing: no route, neighbour, port or rule at the provider, nothing at other nodes, no
// process, no namespace. Other pods get errors at once. Its prefix is not given away early.
func TestLeavingNodeLeavesNothing(t *testing.T) {
	for _, mode := range agent.Modes {
		t.Run(mode, func(t *testing.T) {
			l := newLab(t, mode, 3, 2)
			echoAll(t, l)
			for _, n := range l.Nodes() {
				for _, other := range pods(l) {
					if n.Pods[0] != other {
						reaches(t, n.Pods[0], other.Address)
					}
				}
			}
			leaving := l.Nodes()[2]
			gone, process := leaving.Pods[0].Address, leaving.Agent
			if traces(t, l, leaving) == "" {
				t.Fatal("the check finds no trace of a node that is there")
			}
			must(t, l.RemoveNode(t.Context(), leaving))
			eventually(t, "the node has left no traces", func() bool { return traces(t, l, leaving) == "" })
			if process.Alive() {
				t.Errorf("its agent %d still runs", process.PID)
			}
			names, err := netns.List(l.Name + "-")
			must(t, err)
			for _, name := range names {
				if strings.Contains(name, leaving.Plan.Name) || strings.Contains(name, "pod-0003") {
					t.Errorf("namespace %s still exists", name)
				}
			}
			unreachable(t, l.Nodes()[0].Pods[0], gone)
			store, err := claim.NewDirectory(filepath.Join(l.Dir(), "claims"))
			must(t, err)
			var held *claim.HeldError
			err = claim.Take(t.Context(), store, leaving.Plan.Provided, "another-node", time.Hour)
			if !errors.As(err, &held) || held.Free.IsZero() {
				t.Errorf("its prefix is given to another node at once: %v", err)
			}
		})
	}
}

// unreachable waits until a pod gets an error for an address: from the router that has no route, or that has asked in vain.
func unreachable(t *testing.T, pod *lab.Pod, address netip.Addr) {
	t.Helper()
	awaitError(t, pod, netip.AddrPortFrom(address, 9), syscall.EHOSTUNREACH, syscall.ENETUNREACH)
}

// awaitError sends datagrams from a pod until it gets one of these errors of ICMPv6.
func awaitError(t *testing.T, pod *lab.Pod, to netip.AddrPort, wanted ...syscall.Errno) {
	t.Helper()
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		// Without this option, datagrams see only errors of the host itself.
		controlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1) })
		return errors.Join(err, controlErr)
	}}
	var client net.Conn
	must(t, pod.NS.Do(func() (err error) {
		client, err = dialer.DialContext(t.Context(), "udp6", to.String())
		return err
	}))
	defer client.Close()
	eventually(t, fmt.Sprintf("one of the errors %v for %s", wanted, to), func() bool {
		_, err := client.Write([]byte("x"))
		if err == nil {
			_ = client.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			_, err = client.Read(make([]byte, 1))
		}
		return slices.ContainsFunc(wanted, func(e syscall.Errno) bool { return errors.Is(err, e) })
	})
}

// traces describes what the provider and other nodes know of a node.
func traces(t *testing.T, l *lab.Lab, n *lab.Node) string {
	t.Helper()
	found, err := l.Traces(n.Number, n.Plan)
	must(t, err)
	return strings.Join(found, "\n")
}

// A node that comes back with another prefix: pods get addresses of the new one, the old one is unreachable, and its claim is
// given back.
func TestNodeComesBackWithAnotherPrefix(t *testing.T) {
	for _, mode := range agent.Modes {
		t.Run(mode, func(t *testing.T) {
			l := newLab(t, mode, 2, 1)
			echoAll(t, l)
			n, other := l.Nodes()[0], l.Nodes()[1].Pods[0]
			old := n.Pods[0].Address
			reaches(t, other, old)
			plan, err := l.Plan(77)
			must(t, err)
			before := n.Plan.Provided
			must(t, l.Readdress(t.Context(), n, plan))
			pod, _, err := n.AddPod(t.Context(), 2)
			must(t, err)
			if !plan.Pods.Contains(pod.Address) {
				t.Fatalf("the new pod has the address %s outside %s", pod.Address, plan.Pods)
			}
			echo(t, pod.NS, pod.Address)
			reaches(t, other, pod.Address)
			reaches(t, pod, other.Address)
			unreachable(t, other, old)
			store, err := claim.NewDirectory(filepath.Join(l.Dir(), "claims"))
			must(t, err)
			eventually(t, "the claim of the old prefix is given back", func() bool {
				return claim.Take(t.Context(), store, before, "another-node", 0) == nil
			})
		})
	}
}

// A lab that was killed while it was built has stored no agents. Down ends them, too.
func TestDownEndsAgentsThatAreNotStored(t *testing.T) {
	l := newLab(t, agent.ModeRouted, 1, 0)
	other := newLab(t, agent.ModeRouted, 1, 0)
	file := filepath.Join(l.Dir(), "lab.json")
	must(t, os.WriteFile(file, []byte(`{"nodes": []}`), 0o644))
	id := l.Nodes()[0].Agent
	if !id.Alive() {
		t.Fatal("the agent does not run")
	}
	must(t, lab.Down(l.Name))
	if id.Alive() {
		t.Error("an agent has outlived its lab")
	}
	if !other.Nodes()[0].Agent.Alive() {
		t.Error("the agent of another lab was ended")
	}
}
