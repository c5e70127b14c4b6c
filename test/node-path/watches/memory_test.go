package watches

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"
)

const (
	// maxKubelet bounds the memory of a kubelet's connection and its six watches in the gateway.
	maxKubelet = 60 << 10
	// idleTime is the time after which connections and the allocator have freed what they do not need.
	idleTime = 15 * time.Second
)

// testMemory measures what a kubelet costs the gateway: its connection with six watches that are served, and the one to an
// API server for everything else.
func testMemory(t *testing.T, c *cluster, g *gateway) {
	count := number(t, "NODE_PATH_KUBELETS", 200)
	start := "&watch=true&allowWatchBookmarks=true&timeoutSeconds=600&resourceVersion=" + c.version(t)
	connect := func(from, to int) {
		for i := from; i < to; i++ {
			node := fmt.Sprintf("m-%d", i)
			client := c.kubelet(t, node)
			for _, q := range queries(node)[:6] {
				stream(t, client, g.address, q.path+start)
			}
			if code := status(t, client, g.address, "/api/v1/nodes/"+node); code != http.StatusNotFound {
				t.Fatalf("status %d of a Node that does not exist", code)
			}
		}
	}
	// What the first connections need is not counted.
	connect(0, 20)
	time.Sleep(idleTime)
	before, watches := g.memory(t), g.metric("kube_gateway_node_path_watches")
	connect(20, 20+count)
	time.Sleep(idleTime)
	if open := g.metric("kube_gateway_node_path_watches") - watches; open != 6*count {
		t.Errorf("%d watches are served, want %d", open, 6*count)
	}
	each := (g.memory(t) - before) / count
	t.Logf("%d kubelets with six watches: %d bytes each", count, each)
	if each > maxKubelet {
		t.Errorf("%d bytes for a kubelet, want at most %d", each, maxKubelet)
	}
}

// memory returns the resident memory of the gateway in bytes.
func (g *gateway) memory(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.process.Process.Pid))
	must(t, err)
	match := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(text)
	if match == nil {
		t.Fatal("no VmRSS")
	}
	kilobytes, err := strconv.Atoi(string(match[1]))
	must(t, err)
	return kilobytes << 10
}
