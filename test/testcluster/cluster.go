// Package testcluster starts k1m clusters and gateways for tests that need real API servers.
package testcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// commandTimeout bounds a command of k1m. The start of a cluster takes longest: ten seconds on a machine without other work, and
// minutes on one with many other tests. upTimeout is shorter, so that k1m says what is not ready.
const (
	commandTimeout = 11 * time.Minute
	upTimeout      = "10m"
)

// Cluster is a k1m cluster with two API servers.
type Cluster struct {
	// Name is the name of the cluster, Bin the directory of the binaries, and Home the home of k1m.
	Name, Bin, Home string
	// Servers are the host:port of the API servers.
	Servers []string
}

// Component is a process of a cluster.
type Component struct {
	Name, State, Address string
	PID                  int
}

// Binaries returns the directory of the binaries: K1M_BIN, or bin in the root of the repository. It fails the test if
// one of the named binaries is missing.
func Binaries(t *testing.T, names ...string) string {
	t.Helper()
	bin := os.Getenv("K1M_BIN")
	if bin == "" {
		bin = filepath.Join(root(t), "bin")
	}
	bin, err := filepath.Abs(bin)
	must(t, err)
	for _, name := range names {
		if _, err := exec.LookPath(filepath.Join(bin, name)); err != nil {
			t.Fatalf("%v; run `make build`, or set K1M_BIN to the directory of the binaries", err)
		}
	}
	return bin
}

// root returns the root of the repository, which contains the directory of the test.
func root(t *testing.T) string {
	t.Helper()
	directory, err := os.Getwd()
	must(t, err)
	for {
		if _, err := os.Stat(filepath.Join(directory, "go.mod")); err == nil {
			return directory
		}
		parent := filepath.Dir(directory)
		if parent == directory {
			t.Fatal("no directory above the test has a go.mod")
		}
		directory = parent
	}
}

// New returns a cluster that is not started. It fails the test if one of the named binaries is missing.
func New(t *testing.T, name string, binaries ...string) Cluster {
	t.Helper()
	return Cluster{Name: name, Bin: Binaries(t, binaries...), Home: t.TempDir()}
}

// Up starts the cluster with further flags of k1m up. It ends with the test.
func (c *Cluster) Up(t *testing.T, flags ...string) {
	t.Helper()
	c.K1M(t, append([]string{"up", "--name", c.Name, "--apiservers", "2", "--timeout", upTimeout}, flags...)...)
	t.Cleanup(func() { c.K1M(t, "down", "--name", c.Name) })
	for _, component := range c.Components(t) {
		if strings.HasPrefix(component.Name, "kube-apiserver") {
			c.Servers = append(c.Servers, strings.TrimPrefix(component.Address, "https://"))
		}
	}
	if len(c.Servers) != 2 {
		t.Fatalf("the cluster has the API servers %v, want two", c.Servers)
	}
}

// K1M runs k1m and returns its output. It fails the test if the exit code is not 0.
func (c *Cluster) K1M(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "k1m"), args...)
	cmd.Env = append(os.Environ(), "K1M_HOME="+c.Home)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("k1m %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return out
}

// Components returns the processes of the cluster.
func (c *Cluster) Components(t *testing.T) []Component {
	t.Helper()
	var status struct{ Components []Component }
	must(t, json.Unmarshal(c.K1M(t, "status", "--name", c.Name, "-o", "json"), &status))
	return status.Components
}

// Named returns the component with this name.
func (c *Cluster) Named(t *testing.T, name string) Component {
	t.Helper()
	for _, component := range c.Components(t) {
		if component.Name == name {
			return component
		}
	}
	t.Fatalf("the cluster has no %s", name)
	return Component{}
}

// PIDAt returns the process that serves at a URL. If it has ended, PIDAt waits until the supervisor has started the next one.
func (c *Cluster) PIDAt(t *testing.T, url string) (pid int) {
	t.Helper()
	Eventually(t, commandTimeout, "a process serves at "+url, func() bool {
		for _, component := range c.Components(t) {
			if component.Address == url {
				pid = component.PID
			}
		}
		return pid != 0
	})
	return pid
}

// Dir returns the directory of the cluster.
func (c *Cluster) Dir() string { return filepath.Join(c.Home, "clusters", c.Name) }

// PKI returns the path of a certificate or key of the cluster.
func (c *Cluster) PKI(name string) string { return filepath.Join(c.Dir(), "pki", name) }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(string(c.K1M(t, "kubeconfig", "--name", c.Name, "--path")))
}

// Admin returns the configuration of a client of the administrator, without a rate limit, for the server at host:port.
// kubeconfig is the administrator's.
func Admin(t *testing.T, kubeconfig, address string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("https://"+address, kubeconfig)
	must(t, err)
	config.QPS = -1
	return config
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
