package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// commandTimeout bounds a command of k1m, and upTimeout the start of a cluster. A machine without other work needs seconds.
	commandTimeout = 11 * time.Minute
	upTimeout      = "10m"
	// settleTimeout bounds the time until all have what the API server has.
	settleTimeout = 5 * time.Minute
)

// cluster is a control plane that k1m started, without nodes.
type cluster struct {
	k1m, home string
	// replicas is the number of schedulers.
	replicas int
	client   kubernetes.Interface
	// pages is a client of the components' HTTP pages.
	pages *http.Client
}

// admissionOff are admission plugins that wait for controllers which do not run, or change objects so
// that only a controller can delete them or make them usable.
const admissionOff = "disable-admission-plugins=ServiceAccount,TaintNodesByCondition,StorageObjectInUseProtection"

// newCluster brings up a control plane with a number of schedulers, and stops it when the test ends. The
// only controller is the one that binds volume claims: the test itself is the writer of everything else,
// so nothing changes while a decision is computed.
func newCluster(t *testing.T, scheduler string, replicas int) *cluster {
	t.Helper()
	bin := os.Getenv("K1M_BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	bin, err := filepath.Abs(bin)
	must(t, err)
	c := &cluster{k1m: filepath.Join(bin, "k1m"), home: t.TempDir(), replicas: replicas}
	t.Cleanup(func() {
		if out, err := c.command("down").CombinedOutput(); err != nil {
			t.Errorf("k1m down: %v\n%s", err, out)
		}
	})
	c.run(t, "up", "--timeout", upTimeout, "--nodes", "0", "--scheduler", scheduler, "--scheduler-replicas", fmt.Sprint(replicas),
		"--apiserver-arg", admissionOff, "--controller-manager-arg", "controllers=persistentvolume-binder-controller")
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(c.run(t, "kubeconfig")))
	must(t, err)
	config.QPS, config.Timeout, config.WarningHandler = -1, settleTimeout, rest.NoWarnings{}
	pages, err := rest.HTTPClientFor(config)
	must(t, err)
	config.ContentType = runtime.ContentTypeProtobuf
	c.client, err = kubernetes.NewForConfig(config)
	must(t, err)
	c.pages = pages
	return c
}

// command returns a k1m command of the cluster. It is killed if it takes longer than commandTimeout.
func (c *cluster) command(args ...string) *exec.Cmd {
	// Cleanup functions run it after the end of the test's context.
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	cmd := exec.CommandContext(ctx, c.k1m, append(args, "--name", "oracle")...)
	cmd.Cancel = func() error { cancel(); return cmd.Process.Kill() }
	cmd.Env = append(os.Environ(), "K1M_HOME="+c.home)
	return cmd
}

// run runs k1m, fails the test unless it succeeds, and returns what it printed.
func (c *cluster) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := c.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("k1m %s: %v; if a program is missing, run `make build` or set K1M_BIN\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String()
}

// schedulers returns the URLs of the schedulers.
func (c *cluster) schedulers(t *testing.T) (urls []string) {
	t.Helper()
	var status struct {
		Components []struct{ Name, Address string }
	}
	must(t, json.Unmarshal([]byte(c.run(t, "status", "-o", "json")), &status))
	for _, component := range status.Components {
		if strings.HasPrefix(component.Name, "dist-scheduler") {
			urls = append(urls, component.Address)
		}
	}
	if len(urls) != c.replicas {
		t.Fatalf("the cluster has the schedulers %v, want %d", urls, c.replicas)
	}
	return urls
}

var replicaGauge = regexp.MustCompile(`(?m)^scheduler_replica_(?:objects\{kind="(\w+)"\}|(members)) (\S+)$`)

// replicaCounts returns the sums of the replicas' counts of objects, and the leader's count of members.
func (c *cluster) replicaCounts(urls []string) (map[string]int, error) {
	sum := map[string]int{}
	for _, url := range urls {
		response, err := c.pages.Get(url + "/metrics")
		if err != nil {
			return nil, err
		}
		page, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("GET %s/metrics: status %s (%v)", url, response.Status, err)
		}
		for _, match := range replicaGauge.FindAllSubmatch(page, -1) {
			value, err := strconv.ParseFloat(string(match[3]), 64)
			if err != nil {
				return nil, err
			}
			sum[string(match[1])+string(match[2])] += int(value)
		}
	}
	return sum, nil
}

// awaitReplicas waits until the replicas together own all nodes and pods and have nothing else. A single
// scheduler has no such counts.
func (c *cluster) awaitReplicas(t *testing.T, nodes, pods int) {
	t.Helper()
	if c.replicas == 1 {
		return
	}
	urls := c.schedulers(t)
	eventually(t, settleTimeout, "the replicas own all nodes and pods", func() error {
		have, err := c.replicaCounts(urls)
		if err == nil && (have["members"] != c.replicas || have["nodes"] != nodes || have["pods"] != pods || have["reservations"]+have["assumed"] != 0) {
			err = fmt.Errorf("they have %v, want %d members, %d nodes, %d pods, no reservations and no assumed pods", have, c.replicas, nodes, pods)
		}
		return err
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually repeats try until it returns no error. After the timeout it fails the test.
func eventually(t *testing.T, timeout time.Duration, condition string, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("condition not met within %s: %s: %v", timeout, condition, err)
		}
	}
}
