// Package ownnetwork runs a test in a process with a network, mounts and process numbers of its own.
package ownnetwork

import (
	"os"
	"os/exec"
	"testing"
)

// Address is the address of the test in the bridge between its machines, which have others of the same /24.
const Address = "10.99.0.254"

// inside is the environment variable of the process with its own network.
const inside = "TEST_OWN_NETWORK"

// Enter runs the test in a process with its own network, mounts and process numbers, so that all ports are free and
// nothing is left behind. It returns true in that process, whose network has a bridge named bridge. Otherwise the test is
// over. limit is a duration as of `go test -timeout`.
func Enter(t *testing.T, limit string) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		out, err := exec.Command("sh", "-ec", "ip link set lo up; ip link show bridge || ip link add bridge type bridge; ip address replace "+Address+
			"/24 dev bridge; ip link set bridge up").CombinedOutput()
		if err != nil {
			t.Fatalf("the network of the test: %v\n%s", err, out)
		}
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: machines are network namespaces")
	}
	try := []string{"--net", "--mount", "--pid", "--fork", "--mount-proc", "ip", "link", "add", "bridge", "type", "bridge"}
	if out, err := exec.Command("unshare", try...).CombinedOutput(); err != nil {
		t.Skipf("this machine has no namespaces or bridges: %v %s", err, out)
	}
	args := []string{"--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
		os.Args[0], "-test.run", "^" + t.Name() + "$", "-test.v", "-test.timeout", limit}
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	cmd.Env = append(os.Environ(), inside+"=1")
	out, err := cmd.CombinedOutput()
	t.Logf("in its own network:\n%s", out)
	if err != nil {
		t.Error(err)
	}
	return false
}
