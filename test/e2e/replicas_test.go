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
)

// replicas are dist-scheduler replicas, which the test starts in a cluster with another scheduler.
// The test can cut the network between them.
type replicas struct {
	t       *testing.T
	w       *world
	cluster string
	net     network
	folder  string
	all     []*replica
	// made counts all replicas that were ever created.
	made int
}

// replica is one replica, which may be stopped.
type replica struct {
	in    *replicas
	name  string
	relay bool
	args  []string
	// metrics is the port that serves its metrics.
	metrics int
	cmd     *exec.Cmd
	ended   chan struct{}
}

// lease has the leader election flags that `k1m up` uses.
const replicaLease = "leaderElection: {leaderElect: true, resourceName: dist-scheduler, leaseDuration: 10s, renewDeadline: 7s, retryPeriod: 500ms}\n"

func newReplicas(t *testing.T, w *world, cluster string) *replicas {
	return &replicas{t: t, w: w, cluster: cluster, net: newNetwork(t), folder: t.TempDir()}
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
	r := &replica{in: rs, relay: relay, name: fmt.Sprintf("replica-%d", rs.made), metrics: freePort(rs.t)}
	rs.made++
	pki := func(name string) string { return filepath.Join(rs.w.clusterDir(rs.cluster), "pki", name) }
	bind, reach := rs.net.place(rs.t, r.name)
	kubeconfig := rs.kubeconfig(r.name)
	config := filepath.Join(rs.folder, r.name+".yaml")
	must(rs.t, os.WriteFile(config, []byte(configHead+replicaLease+
		"clientConnection: {kubeconfig: "+kubeconfig+", qps: 5000, burst: 10000}\nprofiles: [{schedulerName: dist-scheduler}]\n"), 0o600))
	r.args = []string{
		"--config", config, "--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(r.metrics), "--cert-dir", filepath.Join(rs.folder, r.name),
		"--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
		"--authorization-always-allow-paths", "/healthz,/readyz,/livez,/metrics",
		"--replica-name", r.name, "--replica-bind-address", bind, "--replica-advertise-address", reach,
		"--replica-cert-file", pki("dist-scheduler.crt"), "--replica-key-file", pki("dist-scheduler.key"), "--replica-ca-file", pki("ca.crt"),
	}
	if relay {
		r.args = append(r.args, "--replica-relay-only")
	}
	return r
}

// kubeconfig writes an administrator's kubeconfig whose path to the API server can be cut.
func (rs *replicas) kubeconfig(name string) string {
	path := strings.TrimSpace(rs.w.succeed(rs.t, "kubeconfig", "--name", rs.cluster, "--path").stdout)
	config, err := clientcmd.LoadFromFile(path)
	must(rs.t, err)
	for _, cluster := range config.Clusters {
		target := strings.TrimPrefix(cluster.Server, "https://")
		host, _, err := net.SplitHostPort(target)
		must(rs.t, err)
		// The certificate is valid for the address on which the API server listens.
		cluster.Server, cluster.TLSServerName = "https://"+rs.net.server(rs.t, target), host
	}
	own := filepath.Join(rs.folder, name+".conf")
	must(rs.t, clientcmd.WriteToFile(*config, own))
	return own
}

func (r *replica) start() {
	r.cmd = r.in.net.command(r.name, filepath.Join(r.in.w.bin, "dist-scheduler"), r.args)
	// All runs of a replica append to one log file.
	log, err := os.OpenFile(filepath.Join(r.in.logs(), r.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(r.in.t, err)
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(r.in.t, r.cmd.Start())
	log.Close()
	r.in.net.is(r.cmd.Process.Pid, r.name)
	cmd, ended := r.cmd, make(chan struct{})
	r.ended = ended
	go func() { defer close(ended); _ = cmd.Wait() }()
	r.in.t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
}

// logs is the directory of the logs; FAULTS_LOGS sets one that is kept.
func (rs *replicas) logs() string {
	if folder := os.Getenv("FAULTS_LOGS"); folder != "" {
		must(rs.t, os.MkdirAll(folder, 0o755))
		return folder
	}
	return rs.folder
}

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
	case <-time.After(30 * time.Second):
		r.in.t.Fatalf("%s does not exit", r.name)
	}
}

var held = regexp.MustCompile(`(?m)^scheduler_replica_objects\{kind="(\w+)"\} (\S+)$`)
var members = regexp.MustCompile(`(?m)^scheduler_replica_members (\S+)$`)

// holds returns the numbers of objects that a replica holds according to its metrics; "members" is
// included if it is the leader.
func (r *replica) holds() (map[string]int, error) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true, DialContext: r.in.net.dial(r.name),
	}}
	answer, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d/metrics", r.metrics))
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	holds := map[string]int{}
	for _, match := range append(held.FindAllSubmatch(text, -1), members.FindAllSubmatch(text, -1)...) {
		name, value := "members", match[1]
		if len(match) > 2 {
			name, value = string(match[1]), match[2]
		}
		number, err := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64)
		if err != nil {
			return nil, err
		}
		holds[name] = int(number)
	}
	return holds, nil
}

// leader waits until a replica is the leader and returns it.
func (rs *replicas) leader() *replica {
	rs.t.Helper()
	var found *replica
	eventually(rs.t, time.Minute, "a replica is the leader", func() error {
		for _, r := range rs.all {
			if r.runs() {
				if holds, err := r.holds(); err == nil && holds["members"] > 0 {
					found = r
					return nil
				}
			}
		}
		return fmt.Errorf("there is no leader")
	})
	return found
}

// agree returns an error unless there is one leader and the replicas together hold exactly the given
// numbers of nodes and pods.
func (rs *replicas) agree(nodes, pods int) error {
	sum, leaders := map[string]int{}, 0
	for _, r := range rs.all {
		if !r.runs() {
			continue
		}
		holds, err := r.holds()
		if err != nil {
			return err
		}
		if holds["members"] > 0 {
			leaders++
		}
		for of, count := range holds {
			sum[of] += count
		}
	}
	if leaders != 1 || sum["nodes"] != nodes || sum["pods"] != pods || sum["reservations"] != 0 || sum["assumed"] != 0 {
		return fmt.Errorf("%d leaders; the replicas hold %v instead of %d nodes and %d pods", leaders, sum, nodes, pods)
	}
	return nil
}
