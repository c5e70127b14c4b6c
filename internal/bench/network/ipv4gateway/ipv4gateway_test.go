package ipv4gateway

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

// testOptions skips the test without the right to create namespaces, or without the program.
func testOptions(t *testing.T) Options {
	t.Helper()
	if err := netns.Check(); err != nil {
		t.Skip(err)
	}
	const program = "../../../../bin/network-gateway"
	if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
		t.Skip("bin/network-gateway is not built; run make bin/network-gateway")
	}
	return Options{Program: program, Duration: 200 * time.Millisecond, Timeout: time.Minute, Name: fmt.Sprintf("k1mi-%d", os.Getpid())}
}

func TestAllPathsAreMeasured(t *testing.T) {
	paths, err := Paths(t.Context(), testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) != len(ways()) {
		t.Errorf("%d paths", len(paths))
	}
	for _, p := range paths {
		if p.Skipped == "" && (p.Connections <= 0 || p.PacketCPU <= 0) {
			t.Errorf("%+v", p)
		}
		t.Logf("%+v", p)
	}
}

func TestMemoryOfConnectedNodes(t *testing.T) {
	peers := 30
	if text := os.Getenv("IPV4_GATEWAY_PEERS"); text != "" {
		var err error
		if peers, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	result, err := Memory(t.Context(), testOptions(t), peers)
	if err != nil {
		t.Fatal(err)
	}
	if result.Started <= 0 || result.Registered <= 0 || result.Connected <= 0 {
		t.Errorf("%+v", result)
	}
	t.Logf("%+v", result)
}

func TestNodesLeave(t *testing.T) {
	gone, err := Leave(t.Context(), testOptions(t), 2)
	if err != nil || len(gone) != 2 {
		t.Fatalf("%v, %v", gone, err)
	}
	t.Log(gone)
}
