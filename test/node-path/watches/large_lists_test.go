package watches

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// listBound is less than what a list of the Leases of testManyLeases has.
	listBound = 1 << 20
	// clientBuffer is what a client takes of an answer before it is read, less than a list.
	clientBuffer = 1 << 20
)

// testLargeLists asks for lists with more bytes than lists.maxBytes: they are sent one after the other.
func testLargeLists(t *testing.T, c *cluster, g *gateway) {
	clients := [2]*http.Client{c.client(t, controllerManager), c.client(t, controllerManager)}
	for _, client := range clients {
		client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: clientBuffer}
	}
	c.isServed(t, g, clients[0], query{"leases", leasesPath, "", controllerManager})
	served := g.served("leases", "list")
	g.reload(t, fmt.Sprintf("lists: {maxBytes: %d, smallBytes: 1Ki}\n", listBound))
	defer g.reload(t, "")
	first := stream(t, clients[0], g.address, leasesPath+"&resourceVersion=0")
	lists := func(state string) int { return g.metric(`kube_gateway_lists_` + state + `{server="kube-gateway"}`) }
	if lists("running") != 1 || g.metric(`kube_gateway_list_reserved_bytes{server="kube-gateway"}`) <= listBound {
		t.Errorf("%d lists are running, want the one that is not read", lists("running"))
	}
	type answer struct {
		length int
		err    error
	}
	second := make(chan answer, 1)
	go func() {
		response, err := get(context.Background(), clients[1], g.address, leasesPath+"&resourceVersion=0")
		if err != nil {
			second <- answer{err: err}
			return
		}
		defer response.Body.Close()
		list, err := io.ReadAll(response.Body)
		second <- answer{len(list), err}
	}()
	testcluster.Eventually(t, startTimeout, "the second list waits", func() bool { return lists("waiting") == 1 })
	list, err := io.ReadAll(first)
	must(t, err)
	got := <-second
	must(t, got.err)
	if len(list) <= listBound+clientBuffer || len(list) < got.length*9/10 || got.length < len(list)*9/10 {
		t.Errorf("lists of %d and %d bytes", len(list), got.length)
	}
	if n := g.served("leases", "list") - served; n < 2 {
		t.Errorf("%d lists were served", n)
	}
	testcluster.Eventually(t, startTimeout, "no list is running", func() bool { return lists("running") == 0 && lists("waiting") == 0 })
}

// reload replaces the lines of the configuration that an earlier call has added, and waits until the gateway has read them.
func (g *gateway) reload(t *testing.T, lines string) {
	t.Helper()
	const mark = "# added\n"
	config, err := os.ReadFile(g.config)
	must(t, err)
	before, _, _ := strings.Cut(string(config), mark)
	must(t, os.WriteFile(g.config, []byte(before+mark+lines), 0o600))
	applied := g.metric(`kube_gateway_config_reloads_total{result="applied"}`)
	must(t, g.process.Process.Signal(syscall.SIGHUP))
	testcluster.Eventually(t, startTimeout, "the configuration is applied", func() bool {
		return g.metric(`kube_gateway_config_reloads_total{result="applied"}`) > applied
	})
}
