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
		t.Errorf("%d watches are served, want %d; why others are not:\n%s", open, 6*count, g.reads())
	}
	each := (g.memory(t) - before) / count
	t.Logf("%d kubelets with six watches: %d bytes each", count, each)
	if each > maxKubelet {
		t.Errorf("%d bytes for a kubelet, want at most %d", each, maxKubelet)
	}
	events, cpu := g.metric("kube_gateway_node_path_events_total"), g.cpu(t)
	for i := range 50 {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"change":"%d"}}}`, i)
		_, err := c.admin.CoreV1().Services(namespace).Patch(context.Background(), "kubernetes", types.MergePatchType, patch, metav1.PatchOptions{})
		must(t, err)
	}
	testcluster.Eventually(t, settleTimeout, "all events are delivered", func() bool {
		return g.metric("kube_gateway_node_path_events_total") >= events+50*count
	})
	time.Sleep(time.Second)
	delivered := g.metric("kube_gateway_node_path_events_total") - events
	t.Logf("%d events: %.1f µs of CPU each", delivered, float64((g.cpu(t)-cpu).Microseconds())/float64(delivered))
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
