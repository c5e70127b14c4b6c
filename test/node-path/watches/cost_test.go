package watches

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// maxKubelet bounds the memory of a kubelet's connection and its six watches in the gateway.
	maxKubelet = 60 << 10
	// idleTime is the time after which connections and the allocator have freed what they do not need.
	idleTime = 15 * time.Second
)

// testCost measures what a kubelet costs the gateway: the memory of its connection with six watches that are served, and of
// the one to an API server for everything else; and the CPU time of an event.
func testCost(t *testing.T, c *cluster, g *gateway) {
	count := number(t, "NODE_PATH_KUBELETS", 200)
	// What the first connections need is not counted.
	c.connectKubelets(t, g, 0, 20)
	connected := 20
	g.uninterrupted(t, func() string {
		connected += count
		return c.measureCost(t, g, connected-count, connected)
	})
}

// connectKubelets opens the watches of kubelets with consecutive numbers, and sends a request that an API server answers.
func (c *cluster) connectKubelets(t *testing.T, g *gateway, from, to int) {
	t.Helper()
	start := "&watch=true&allowWatchBookmarks=true&timeoutSeconds=600&resourceVersion=" + c.version(t)
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

// measureCost connects kubelets, measures their memory and the CPU time of events for them, and returns what is wrong.
func (c *cluster) measureCost(t *testing.T, g *gateway, from, to int) string {
	t.Helper()
	const allWatches, allEvents = "kube_gateway_node_path_watches", "kube_gateway_node_path_events_total"
	time.Sleep(idleTime)
	before, watches, count, open := g.memory(t), g.metric(allWatches), to-from, 0
	c.connectKubelets(t, g, from, to)
	if !soon(func() bool { open = g.metric(allWatches) - watches; return open == 6*count }) {
		return fmt.Sprintf("%d watches are served, want %d; why others are not:\n%s", open, 6*count, g.reads())
	}
	each := g.settledMemory(t, before, count, maxKubelet)
	t.Logf("%d kubelets with six watches: %d bytes each", count, each)
	if each > maxKubelet {
		return fmt.Sprintf("%d bytes for a kubelet, want at most %d", each, maxKubelet)
	}
	events, cpu, delivered := g.metric(allEvents), g.cpu(t), 0
	for i := range 50 {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"change":"%d"}}}`, i)
		_, err := c.admin.CoreV1().Services(namespace).Patch(context.Background(), "kubernetes", types.MergePatchType, patch, metav1.PatchOptions{})
		must(t, err)
	}
	if !soon(func() bool { delivered = g.metric(allEvents) - events; return delivered >= 50*count }) {
		return fmt.Sprintf("%d events were delivered, want %d", delivered, 50*count)
	}
	t.Logf("%d events: %.1f µs of CPU each", delivered, float64((g.cpu(t)-cpu).Microseconds())/float64(delivered))
	return ""
}

// reads returns the numbers of watches and lists by resource and result.
func (g *gateway) reads() string {
	var lines []string
	for line := range strings.Lines(testcluster.Page(g.metrics, "/metrics")) {
		if strings.HasPrefix(line, "kube_gateway_node_path_reads_total") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// cpu returns the CPU time of the gateway.
func (g *gateway) cpu(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", g.process.Process.Pid))
	must(t, err)
	// The second field is the name in parentheses.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	ticks := 0
	for _, field := range fields[11:13] {
		value, err := strconv.Atoi(field)
		must(t, err)
		ticks += value
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// settledMemory returns by how many bytes the resident memory of the gateway has grown for each of some objects. On a busy machine
// it takes a while until what is not used is returned: it waits until the bytes are at most a bound, for up to settleTimeout.
func (g *gateway) settledMemory(t *testing.T, before, count, bound int) int {
	t.Helper()
	time.Sleep(idleTime)
	for deadline := time.Now().Add(settleTimeout); ; time.Sleep(time.Second) {
		each := (g.memory(t) - before) / count
		if each <= bound || time.Now().After(deadline) {
			return each
		}
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
