package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// listedMaps is the number of ConfigMaps that are listed, of listedBytes each.
	listedMaps  = 200
	listedBytes = 20_000
	// listLimit is the limit of the gateway, about one and a half lists.
	listLimit  = listedMaps * listedBytes * 3 / 2
	storm      = 24
	stormRound = 3
)

// testProtection tests the limits with real API servers. The configuration of the gateway is the default again
// at its end.
func testProtection(t *testing.T, c *cluster) {
	c.createMaps(t)
	reader := c.namedUser(t, "list-reader")
	t.Run("lists wait for their turn", func(t *testing.T) { testListsWait(t, c, reader) })
	t.Run("sizes are learned without compression", func(t *testing.T) { testCompressedLists(t, c, reader) })
	t.Run("a WatchList counts until its bookmark", func(t *testing.T) { testWatchList(t, c, reader) })
	t.Run("too many lists get 429 as client-go expects it", func(t *testing.T) { testRefusedLists(t, c, reader) })
	t.Run("the throttle limits a User-Agent", func(t *testing.T) { testThrottle(t, c, reader) })
	t.Run("slow readers", func(t *testing.T) { testSlowReaders(t, c, reader) })
	t.Run("an invalid configuration changes nothing", func(t *testing.T) { testInvalidConfiguration(t, c) })
}

// createMaps creates the ConfigMaps, with content that gzip cannot make much smaller than a third.
func (c *cluster) createMaps(t *testing.T) {
	t.Helper()
	client := c.client(t, c.Servers[0])
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lists"}}
	_, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	must(t, err)
	for i := range listedMaps {
		text := strings.Repeat(fmt.Sprintf("line %d of a text; ", i), listedBytes/20)
		object := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("map-%d", i)},
			Data:       map[string]string{"text": text},
		}
		_, err := client.CoreV1().ConfigMaps("lists").Create(t.Context(), object, metav1.CreateOptions{})
		must(t, err)
	}
}

// namedUser returns the certificate of a user that may read everything and is not in system:masters.
func (c *cluster) namedUser(t *testing.T, name string) tls.Certificate {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}},
	}
	_, err := c.client(t, c.Servers[0]).RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{})
	must(t, err)
	certificate := c.clusterCA(t).sign(t, template(pkix.Name{CommonName: name}))
	testcluster.Eventually(t, startTimeout, "the user may list", func() bool {
		for _, server := range c.Servers {
			if code, _ := readAll(t, httpClient(t, []tls.Certificate{certificate}, true), server, "/api/v1/nodes", "wait"); code != http.StatusOK {
				return false
			}
		}
		return true
	})
	return certificate
}

// readAll sends a request and returns the status and the header of the answer, which it reads to its end.
func readAll(t *testing.T, client *http.Client, address, path, agent string) (int, http.Header) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+path, nil)
	must(t, err)
	request.Header.Set("User-Agent", agent)
	response, err := client.Do(request)
	must(t, err)
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	must(t, err)
	return response.StatusCode, response.Header
}

// configure adds fields to the configuration and waits until they are in force.
func (c *cluster) configure(t *testing.T, fields string) {
	t.Helper()
	path := c.gatewayFile("gateway.yaml")
	before := c.metric(t, `kube_gateway_config_reloads_total{result="applied"}`)
	must(t, os.WriteFile(path, []byte(c.configuration()+fields), 0o600))
	testcluster.Eventually(t, startTimeout, "the configuration is applied", func() bool {
		return c.metric(t, `kube_gateway_config_reloads_total{result="applied"}`) > before
	})
}

// metric returns the sum of the samples of a metric whose names begin with a text. It is 0 if there is none.
func (c *cluster) metric(t *testing.T, name string) float64 {
	t.Helper()
	sum := 0.0
	for _, line := range strings.Split(c.page("/metrics"), "\n") {
		if rest, found := strings.CutPrefix(line, name); found {
			var value float64
			if _, err := fmt.Sscanf(rest[strings.LastIndex(rest, " ")+1:], "%g", &value); err != nil {
				t.Fatalf("metric %q: %v", line, err)
			}
			sum += value
		}
	}
	return sum
}

// largest polls metrics until stop is called, which returns their largest values.
func (c *cluster) largest(t *testing.T, names ...string) (stop func() []float64) {
	t.Helper()
	values := make([]float64, len(names))
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			for i, name := range names {
				values[i] = max(values[i], c.metric(t, name))
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	return func() []float64 { cancel(); done.Wait(); return values }
}

const mapsPath = "/api/v1/namespaces/lists/configmaps"

// testListsWait lists from many clients at once: at most one list and a half are in progress at an API server,
// nobody is refused, and single objects, Leases and administrators do not wait.
func testListsWait(t *testing.T, c *cluster, reader tls.Certificate) {
	c.configure(t, fmt.Sprintf("lists: {maxBytes: %d, maxWait: 60s}\n", listLimit))
	defer c.configure(t, "")
	// The first answer is learned.
	readAll(t, httpClient(t, []tls.Certificate{reader}, true), c.gateway, mapsPath, "storm")
	stop := c.largest(t, "kube_gateway_list_reserved_bytes", "kube_gateway_lists_running", "kube_gateway_lists_waiting")
	var clients sync.WaitGroup
	var slowest atomic.Int64
	for range storm {
		client := httpClient(t, []tls.Certificate{reader}, true)
		clients.Go(func() {
			for range stormRound {
				if code, _ := readAll(t, client, c.gateway, mapsPath, "storm"); code != http.StatusOK {
					t.Errorf("a list got status %d", code)
				}
			}
		})
	}
	other := c.client(t, c.gateway)
	for range 20 {
		started := time.Now()
		_, err := other.CoreV1().ConfigMaps("lists").Get(t.Context(), "map-1", metav1.GetOptions{})
		must(t, err)
		_, err = other.CoordinationV1().Leases("kube-node-lease").List(t.Context(), metav1.ListOptions{Limit: 1})
		must(t, err)
		slowest.Store(max(slowest.Load(), int64(time.Since(started))))
	}
	clients.Wait()
	largest := stop()
	t.Logf("at most %.0f bytes and %.0f lists in progress, %.0f waiting; the slowest other requests took %v",
		largest[0], largest[1], largest[2], time.Duration(slowest.Load()))
	// Two API servers with one list each, or one that is larger than predicted, and what did not wait.
	if largest[1] > 4 || largest[0] > 2*1.3*listLimit {
		t.Errorf("too much in progress")
	}
	if largest[2] < storm/4 {
		t.Errorf("nobody waited, so nothing was tested")
	}
	testcluster.Eventually(t, startTimeout, "everything is returned", func() bool {
		return c.metric(t, "kube_gateway_list_reserved_bytes") == 0 && c.metric(t, "kube_gateway_lists_running") == 0
	})
}

// testCompressedLists checks that the size of a compressed answer is that of its content, and that the next one with
// the same pattern is predicted.
func testCompressedLists(t *testing.T, c *cluster, reader tls.Certificate) {
	client := httpClient(t, []tls.Certificate{reader}, true)
	for round := range 2 {
		predicted, answered := c.predicted(t), c.answered(t)
		received := c.metric(t, "kube_gateway_answer_bytes_total")
		// Go asks for gzip by itself and decompresses.
		readAll(t, client, c.gateway, mapsPath, "compressed")
		predicted, answered = c.predicted(t)-predicted, c.answered(t)-answered
		received = c.metric(t, "kube_gateway_answer_bytes_total") - received
		t.Logf("a list of %.0f bytes, compressed %.0f, was predicted to have %.0f", answered, received, predicted)
		if answered < 0.9*listedMaps*listedBytes || answered > 1.1*listedMaps*listedBytes || received > answered/5 {
			t.Errorf("round %d: the answer counts as %.0f bytes, compressed %.0f", round, answered, received)
		}
		if round > 0 && (predicted < 0.9*answered || predicted > 1.1*answered) {
			t.Errorf("predicted %.0f bytes, want %.0f", predicted, answered)
		}
	}
}

func (c *cluster) predicted(t *testing.T) float64 {
	return c.metric(t, "kube_gateway_list_predicted_bytes_total")
}

func (c *cluster) answered(t *testing.T) float64 {
	return c.metric(t, "kube_gateway_list_answered_bytes_total")
}

// testWatchList checks that a WatchList reserves bytes until its initial events are complete, with and without
// compression.
func testWatchList(t *testing.T, c *cluster, reader tls.Certificate) {
	path := mapsPath + "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=30"
	for _, compressed := range []bool{true, false} {
		client := httpClient(t, []tls.Certificate{reader}, true)
		client.Transport.(*http.Transport).DisableCompression = !compressed
		for round := range 2 {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+c.gateway+path, nil)
			must(t, err)
			request.Header.Set("User-Agent", fmt.Sprintf("watch-list-%t", compressed))
			answered := c.answered(t)
			response, err := client.Do(request)
			must(t, err)
			if response.StatusCode != http.StatusOK {
				t.Fatalf("status %d", response.StatusCode)
			}
			decoder := json.NewDecoder(response.Body)
			for objects := 0; ; objects++ {
				var event struct {
					Type   string
					Object metav1.PartialObjectMetadata
				}
				must(t, decoder.Decode(&event))
				if event.Type == "BOOKMARK" && event.Object.Annotations["k8s.io/initial-events-end"] == "true" {
					if objects < listedMaps {
						t.Errorf("%d objects before the bookmark", objects)
					}
					break
				}
			}
			// The watch goes on, but its list has ended.
			testcluster.Eventually(t, startTimeout, "the reservation has ended with the bookmark", func() bool {
				return c.metric(t, "kube_gateway_lists_running") == 0 && c.metric(t, "kube_gateway_list_reserved_bytes") == 0
			})
			if counted := c.answered(t) - answered; counted < 0.9*listedMaps*listedBytes || counted > 1.1*listedMaps*listedBytes {
				t.Errorf("round %d, compressed %t: the initial events count as %.0f bytes", round, compressed, counted)
			}
			if watches := c.metric(t, "kube_gateway_server_watches"); watches < 1 {
				t.Errorf("the watch has ended")
			}
			must(t, response.Body.Close())
		}
	}
}

// testRefusedLists fills the queue. Those that are refused get what kube-apiserver would answer, and client-go tries again.
func testRefusedLists(t *testing.T, c *cluster, reader tls.Certificate) {
	c.configure(t, "lists: {maxBytes: 1Mi, maxWaiting: 2, maxWait: 1s}\n")
	defer c.configure(t, "")
	var refused atomic.Int64
	// On a busy machine, the clients may come one after the other.
	for deadline := time.Now().Add(startTimeout); refused.Load() == 0 && time.Now().Before(deadline); {
		c.stormLists(t, reader, &refused)
	}
	if counted := c.metric(t, "kube_gateway_lists_refused_total"); refused.Load() == 0 || int64(counted) != refused.Load() {
		t.Errorf("%d of %d lists were refused, and %.0f counted", refused.Load(), storm, counted)
	}
	// client-go sends a refused request ten times again, which is enough for some clients.
	var clients sync.WaitGroup
	for i := range storm / 4 {
		client := c.as(t, reader, fmt.Sprintf("retry-%d", i%3))
		clients.Go(func() {
			maps, err := client.CoreV1().ConfigMaps("lists").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(maps.Items) < listedMaps {
				t.Errorf("a list of client-go: %d objects, %v", len(maps.Items), err)
			}
		})
	}
	clients.Wait()
}

// stormLists lists with many clients at once, and counts those that are refused.
func (c *cluster) stormLists(t *testing.T, reader tls.Certificate, refused *atomic.Int64) {
	t.Helper()
	var clients sync.WaitGroup
	for range storm {
		client := httpClient(t, []tls.Certificate{reader}, true)
		clients.Go(func() {
			code, fields := readAll(t, client, c.gateway, mapsPath, "storm")
			switch code {
			case http.StatusOK:
			case http.StatusTooManyRequests:
				refused.Add(1)
				if after := fields.Get("Retry-After"); after < "1" || after > "5" {
					t.Errorf("Retry-After: %q", after)
				}
			default:
				t.Errorf("status %d", code)
			}
		})
	}
	clients.Wait()
}

// as returns a client of client-go with a connection of its own.
func (c *cluster) as(t *testing.T, certificate tls.Certificate, agent string) kubernetes.Interface {
	t.Helper()
	config := &rest.Config{Host: "https://" + c.gateway, UserAgent: agent, QPS: -1}
	client, err := kubernetes.NewForConfigAndClient(config, httpClient(t, []tls.Certificate{certificate}, true))
	must(t, err)
	return client
}

// testThrottle changes the throttle by commands and by the file, while clients send requests.
func testThrottle(t *testing.T, c *cluster, reader tls.Certificate) {
	socket := c.gatewayFile("control.sock")
	if mode := stat(t, socket).Mode().Perm(); mode != 0o600 {
		t.Errorf("the socket has mode %o", mode)
	}
	client := httpClient(t, []tls.Certificate{reader}, true)
	admin := httpClient(t, []tls.Certificate{c.clusterCA(t).sign(t, template(pkix.Name{CommonName: "root", Organization: []string{"system:masters"}}))}, true)
	count := func(client *http.Client, path, agent string) (passed, refused int) {
		for range 20 {
			switch code, fields := readAll(t, client, c.gateway, path, agent); code {
			case http.StatusTooManyRequests:
				refused++
				if fields.Get("Retry-After") == "" {
					t.Errorf("no Retry-After")
				}
			case http.StatusOK, http.StatusNotFound:
				passed++
			default:
				t.Errorf("status %d", code)
			}
		}
		return passed, refused
	}
	// So few requests per second that none of them is earned while the test sends its own.
	c.throttle(t, "add", "--user-agent", "noisy*", "--qps", "0.001", "--burst", "3", "--for", "1h")
	if passed, refused := count(client, "/version", "noisy-thing/v1 (linux)"); passed != 3 || refused != 17 {
		t.Errorf("passed %d and refused %d, want 3 and 17", passed, refused)
	}
	lease := "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/nobody"
	for what, refused := range map[string]int{
		"another User-Agent": second(count(client, "/version", "quiet")),
		"a Lease":            second(count(client, lease, "noisy-thing")),
		"an administrator":   second(count(admin, "/version", "noisy-thing")),
	} {
		if refused != 0 {
			t.Errorf("%s: %d requests were refused", what, refused)
		}
	}
	var list struct {
		Rules []struct {
			Rule             struct{ UserAgent string }
			Source           string
			ExpiresInSeconds int
			Passed, Refused  int
		}
	}
	must(t, json.Unmarshal([]byte(c.throttle(t, "list", "--output", "json")), &list))
	if len(list.Rules) != 1 || list.Rules[0].Rule.UserAgent != "noisy*" || list.Rules[0].Passed != 3 ||
		list.Rules[0].Refused != 17 || list.Rules[0].ExpiresInSeconds < 3000 {
		t.Errorf("rules %+v", list.Rules)
	}
	c.configure(t, "throttle: [{userAgent: quiet, qps: 0.001, burst: 1}]\n")
	if text := c.throttle(t, "list"); strings.Count(text, "\n") != 3 || !strings.Contains(text, "quiet") {
		t.Errorf("rules:\n%s", text)
	}
	if passed, _ := count(client, "/version", "quiet"); passed != 1 {
		t.Errorf("passed %d requests, want 1 by the rule of the file", passed)
	}
	c.configure(t, "")
	c.throttle(t, "delete", "--user-agent", "noisy*")
	if _, refused := count(client, "/version", "noisy-thing/v1"); refused != 0 {
		t.Errorf("refused %d requests after the rule was deleted", refused)
	}
	c.testThrottleErrors(t)
}

// testThrottleErrors checks the exit codes and messages of wrong commands.
func (c *cluster) testThrottleErrors(t *testing.T) {
	t.Helper()
	socket := "--socket=" + c.gatewayFile("control.sock")
	for _, wrong := range []struct {
		args, message string
		code          int
	}{
		{"delete --user-agent none " + socket, "there is no rule", 1},
		{"add --qps 1 --user-agent a*b " + socket, "only at its end", 2},
		{"add --qps 0 --user-agent a " + socket, "qps must be above 0", 2},
		{"add --qps x --user-agent a " + socket, "invalid value", 2},
		{"add --qps 1 --user-agent a --for 5 " + socket, "is not a duration", 2},
		{"add --qps 1 --user-agent a", "--config", 2},
		{"list --socket=/nowhere", "connect to /nowhere", 1},
	} {
		args := append([]string{"throttle"}, strings.Fields(wrong.args)...)
		out, err := exec.Command(filepath.Join(c.Bin, "kube-gateway"), args...).CombinedOutput()
		var exit *exec.ExitError
		if !asExit(err, &exit) || exit.ExitCode() != wrong.code || !strings.Contains(string(out), wrong.message) {
			t.Errorf("%s: %v, %s", wrong.args, err, out)
		}
		if wrong.code == 1 && bytes.Count(out, []byte("\n")) != 1 {
			t.Errorf("%s: more than one line: %s", wrong.args, out)
		}
	}
}

// throttle runs kube-gateway throttle and returns its output.
func (c *cluster) throttle(t *testing.T, args ...string) string {
	t.Helper()
	args = append([]string{"throttle", args[0], "--config", c.gatewayFile("gateway.yaml")}, args[1:]...)
	out, err := exec.Command(filepath.Join(c.Bin, "kube-gateway"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kube-gateway %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// testSlowReaders leaves answers unread: the gateway holds no more than its bound and an equal share, and a client
// that reads gets its answer whole.
func testSlowReaders(t *testing.T, c *cluster, reader tls.Certificate) {
	c.configure(t, "buffers: {maxBytes: 16Mi}\nlists: {maxBytes: 0}\n")
	defer c.configure(t, "")
	var answers []*http.Response
	stop := c.largest(t, "kube_gateway_buffered_bytes", "kube_gateway_buffered_stopped_connections")
	for range 100 {
		client := httpClient(t, []tls.Certificate{reader}, true)
		transport := client.Transport.(*http.Transport)
		transport.DisableCompression = true
		// A client with a large window would take the whole answer without reading it.
		transport.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 128 << 10}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+c.gateway+mapsPath, nil)
		must(t, err)
		response, err := client.Do(request)
		must(t, err)
		answers = append(answers, response)
	}
	testcluster.Eventually(t, startTimeout, "connections are stopped", func() bool {
		return c.metric(t, "kube_gateway_buffered_stopped_connections") >= 10
	})
	if code, _ := readAll(t, httpClient(t, []tls.Certificate{reader}, true), c.gateway, mapsPath, "fast"); code != http.StatusOK {
		t.Errorf("a client that reads got status %d", code)
	}
	for _, answer := range answers {
		read, err := io.Copy(io.Discard, answer.Body)
		if err != nil || read < 0.9*listedMaps*listedBytes {
			t.Errorf("read %d bytes of an answer: %v", read, err)
		}
		must(t, answer.Body.Close())
	}
	largest := stop()
	t.Logf("at most %.1f MiB held, %.0f connections stopped", largest[0]/(1<<20), largest[1])
	if largest[0] > 25<<20 || largest[1] < 10 {
		t.Errorf("held %.0f bytes with a bound of %d, stopped %.0f connections", largest[0], 16<<20, largest[1])
	}
	testcluster.Eventually(t, startTimeout, "nothing is held", func() bool {
		return c.metric(t, "kube_gateway_buffered_bytes") == 0 && c.metric(t, "kube_gateway_buffered_stopped_connections") == 0
	})
}

// testInvalidConfiguration checks that an invalid file changes nothing, and that a field that needs a restart is reported once.
func testInvalidConfiguration(t *testing.T, c *cluster) {
	path := c.gatewayFile("gateway.yaml")
	must(t, os.WriteFile(path, []byte(c.configuration()+"lists: {maxBytes: many}\n"), 0o600))
	testcluster.Eventually(t, startTimeout, "the file is rejected", func() bool { return c.metric(t, "kube_gateway_config_rejected") == 1 })
	client := httpClient(t, nil, true)
	if code, _ := readAll(t, client, c.gateway, "/version", "a"); code != http.StatusOK {
		t.Errorf("status %d with an invalid file", code)
	}
	must(t, os.WriteFile(path, []byte(strings.Replace(c.configuration(), "listen:", "listen:\n  maxStreams: 7", 1)), 0o600))
	testcluster.Eventually(t, startTimeout, "a field needs a restart", func() bool { return c.metric(t, "kube_gateway_config_restart_needed") == 1 })
	time.Sleep(5 * time.Second)
	log, err := os.ReadFile(c.gatewayFile("gateway.log"))
	must(t, err)
	for text, want := range map[string]int{"the configuration is not valid": 1, "listen.maxStreams": 1} {
		if lines := strings.Count(string(log), text); lines != want {
			t.Errorf("%d lines of the log have %q, want %d", lines, text, want)
		}
	}
	c.configure(t, "")
	if rejected := c.metric(t, "kube_gateway_config_rejected"); rejected != 0 {
		t.Errorf("the file is valid, but counts as rejected")
	}
}

func second(_, second int) int { return second }

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info
}

func asExit(err error, exit **exec.ExitError) bool {
	found, ok := err.(*exec.ExitError)
	*exit = found
	return ok
}
