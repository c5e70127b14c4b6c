package e2e

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-1m/k8s-1m/internal/cluster/pki"
	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// replicas are dist-scheduler replicas that the test starts in a cluster with another scheduler. The test
// can cut the network between them.
type replicas struct {
	t       *testing.T
	w       *workspace
	cluster string
	net     network
	folder  string
	all     []*replica
	// lease is the configuration of the leader election. qps is the limit of the requests of a replica per second,
	// and burst is twice that.
	lease string
	qps   int
	// created is the number of replicas that were prepared. It is the number in the next name.
	created int
}

// replica is one replica. Its process may have exited.
type replica struct {
	set   *replicas
	name  string
	relay bool
	args  []string
	// metrics is the port on which the replica serves its metrics.
	metrics int
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process has exited
}

// replicaLease is the leader election configuration, with the durations that `k1m up` configures.
const replicaLease = "leaderElection: {leaderElect: true, resourceName: dist-scheduler, leaseDuration: 10s, renewDeadline: 7s, retryPeriod: 500ms}\n"

func newReplicas(t *testing.T, w *workspace, cluster string) *replicas {
	return &replicas{t: t, w: w, cluster: cluster, net: newNetwork(t), folder: t.TempDir(), lease: replicaLease, qps: 5000}
}

// add starts another replica.
func (rs *replicas) add(relay bool) *replica {
	rs.t.Helper()
	r := rs.prepare(relay)
	rs.all = append(rs.all, r)
	r.start()
	return r
}

// prepare creates the files and the network of another replica.
func (rs *replicas) prepare(relay bool) *replica {
	rs.t.Helper()
	r := &replica{set: rs, relay: relay, name: fmt.Sprintf("replica-%d", rs.created), metrics: testcluster.FreePort(rs.t)}
	rs.created++
	must(rs.t, pki.EnsureReplicas(rs.folder, "dist-scheduler", []string{r.name}, time.Now()))
	cert, key := pki.ReplicaFiles(r.name)
	bind, reach := rs.net.addReplica(rs.t, r.name)
	kubeconfig := rs.kubeconfig(r.name)
	config := filepath.Join(rs.folder, r.name+".yaml")
	must(rs.t, os.WriteFile(config, fmt.Appendf(nil, "%s%sclientConnection: {kubeconfig: %s, qps: %d, burst: %d}\nprofiles: [{schedulerName: dist-scheduler}]\n",
		configHeader, rs.lease, kubeconfig, rs.qps, 2*rs.qps), 0o600))
	r.args = []string{
		"--config", config, "--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(r.metrics), "--cert-dir", filepath.Join(rs.folder, r.name),
		"--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
		"--authorization-always-allow-paths", "/healthz,/readyz,/livez,/metrics",
		"--replica-name", r.name, "--replica-bind-address", bind, "--replica-advertise-address", reach,
		"--replica-cert-file", filepath.Join(rs.folder, cert), "--replica-key-file", filepath.Join(rs.folder, key),
		"--replica-ca-file", filepath.Join(rs.folder, pki.ReplicaCAFile),
	}
	if relay {
		r.args = append(r.args, "--replica-relay-only")
	}
	return r
}

// kubeconfig writes an administrator's kubeconfig. Its server address leads through the test network, so
// that the test can cut the connection to the API server.
func (rs *replicas) kubeconfig(name string) string {
	path := strings.TrimSpace(rs.w.succeed(rs.t, "kubeconfig", "--name", rs.cluster, "--path").stdout)
	config, err := clientcmd.LoadFromFile(path)
	must(rs.t, err)
	for _, cluster := range config.Clusters {
		target := strings.TrimPrefix(cluster.Server, "https://")
		host, _, err := net.SplitHostPort(target)
		must(rs.t, err)
		// The certificate is valid for the address on which the API server listens.
		cluster.Server, cluster.TLSServerName = "https://"+rs.net.forwardAPIServer(rs.t, target), host
	}
	file := filepath.Join(rs.folder, name+".conf")
	must(rs.t, clientcmd.WriteToFile(*config, file))
	return file
}

// start starts the process of the replica.
func (r *replica) start() {
	r.cmd = r.set.net.command(r.name, filepath.Join(r.set.w.bin, "dist-scheduler"), r.args)
	// All runs of a replica append to one log file.
	log, err := os.OpenFile(filepath.Join(r.set.logs(), r.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(r.set.t, err)
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(r.set.t, r.cmd.Start())
	log.Close()
	r.set.net.registerProcess(r.cmd.Process.Pid, r.name)
	cmd, ended := r.cmd, make(chan struct{})
	r.ended = ended
	go func() { defer close(ended); _ = cmd.Wait() }()
	r.set.t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
}

// logs returns the directory of the logs: FAULTS_LOGS or, if it is not set, a temporary directory.
func (rs *replicas) logs() string {
	if folder := os.Getenv("FAULTS_LOGS"); folder != "" {
		must(rs.t, os.MkdirAll(folder, 0o755))
		return folder
	}
	return rs.folder
}

// runs reports whether the process of the replica is running.
func (r *replica) runs() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

func (r *replica) signal(s syscall.Signal) { _ = r.cmd.Process.Signal(s) }

// await waits until the process has exited.
func (r *replica) await() {
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.set.t.Fatalf("%s did not exit within %v", r.name, patience)
	}
}

var held = regexp.MustCompile(`(?m)^scheduler_replica_objects\{kind="(\w+)"\} (\S+)$`)
var members = regexp.MustCompile(`(?m)^scheduler_replica_members (\S+)$`)

// scrape returns the metrics of a replica.
func (r *replica) scrape() ([]byte, error) {
	client := http.Client{Timeout: requestTimeout, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true, DialContext: r.set.net.dial(r.name),
	}}
	response, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d/metrics", r.metrics))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// objectCounts returns the numbers of objects in the metrics of a replica, by kind. If the replica is the
// leader, "members" is the number of members.
func (r *replica) objectCounts() (map[string]int, error) {
	text, err := r.scrape()
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, match := range append(held.FindAllSubmatch(text, -1), members.FindAllSubmatch(text, -1)...) {
		name, value := "members", match[1]
		if len(match) > 2 {
			name, value = string(match[1]), match[2]
		}
		number, err := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64)
		if err != nil {
			return nil, err
		}
		counts[name] = int(number)
	}
	return counts, nil
}

// leader waits until a replica is the leader, and returns that replica.
func (rs *replicas) leader() *replica {
	rs.t.Helper()
	var found *replica
	eventually(rs.t, patience, "a replica is the leader", func() error {
		for _, r := range rs.all {
			if r.runs() {
				if counts, err := r.objectCounts(); err == nil && counts["members"] > 0 {
					found = r
					return nil
				}
			}
		}
		return fmt.Errorf("there is no leader")
	})
	return found
}

// agree returns an error unless there is exactly one leader, the replicas together have exactly the given
// numbers of nodes and pods, and no reservations or assumed pods are left.
func (rs *replicas) agree(nodes, pods int) error {
	sum, leaders := map[string]int{}, 0
	for _, r := range rs.all {
		if !r.runs() {
			continue
		}
		counts, err := r.objectCounts()
		if err != nil {
			return err
		}
		if counts["members"] > 0 {
			leaders++
		}
		for kind, count := range counts {
			sum[kind] += count
		}
	}
	if leaders != 1 || sum["nodes"] != nodes || sum["pods"] != pods || sum["reservations"] != 0 || sum["assumed"] != 0 {
		return fmt.Errorf("%d leaders instead of 1; the replicas have %v instead of %d nodes, %d pods, no reservations and no assumed pods", leaders, sum, nodes, pods)
	}
	return nil
}
