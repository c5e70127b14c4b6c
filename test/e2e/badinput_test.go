package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const deploymentYAML = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
`

const misspelledNodeYAML = `apiVersion: v1
kind: Node
metadata:
  name: x
spec:
  unscheduleable: true
`

// mistake is an invalid command line, with the expected error and exit code.
type mistake struct {
	name string
	args []string
	code int
	want string // without the prefix "k1m: "; placeholders such as {dir} are replaced
}

var mistakes = []mistake{
	{"negative nodes", []string{"up", "--nodes", "-1"}, 2,
		"--nodes -1: a cluster cannot have fewer than 0 nodes; use --nodes 0 for a cluster without nodes"},
	{"number of nodes that is not a number", []string{"up", "--nodes", "many"}, 2,
		"--nodes: \"many\" is not a number; see `k1m up --help`"},
	{"no zones", []string{"up", "--zones", "0"}, 2,
		"--zones 0: nodes need at least one zone; use --zones 1"},
	{"no API servers", []string{"up", "--apiservers", "0"}, 2,
		"--apiservers 0: choose 1 to 16"},
	{"no gateways", []string{"up", "--gateway", "--gateways", "0"}, 2,
		"--gateways 0: choose 1 to 16; use --gateway=false for a cluster without a gateway"},
	{"gateways without --gateway", []string{"up", "--apiservers", "3", "--gateways", "2"}, 2,
		"--gateways, --gateway-config and --gateway-arg need --gateway; add it"},
	{"gateway that is neither on nor off", []string{"up", "--gateway=maybe"}, 2,
		"invalid argument \"maybe\" for \"--gateway\" flag: choose true or false; see `k1m up --help`"},
	{"configuration of gateways that does not exist", []string{"up", "--gateway", "--gateway-config", "{dir}/none.yaml"}, 2,
		"--gateway-config {dir}/none.yaml: no such file or directory; name a YAML file with fields of kube-gateway's configuration"},
	{"impossible port", []string{"up", "--apiserver-port", "70000"}, 2,
		"--apiserver-port 70000: valid ports are 1 to 65535; omit the flag to use any free port"},
	{"invalid cluster name", []string{"up", "--name", "My_Cluster"}, 2,
		"--name \"My_Cluster\": use 1 to 40 characters of a-z, 0-9 and '-'; the first and last must be a letter or digit"},
	{"down of an unknown cluster", []string{"down", "--name", "nosuch"}, 1,
		`cluster "nosuch" does not exist`},
	{"cluster name that is a path", []string{"down", "--name", "../../etc"}, 2,
		"--name \"../../etc\": use 1 to 40 characters of a-z, 0-9 and '-'; the first and last must be a letter or digit"},
	{"unknown store", []string{"up", "--store", "redis"}, 2,
		"--store \"redis\": no such store; choose mem_etcd or etcd"},
	{"unknown wal-mode", []string{"up", "--wal-mode", "often"}, 2,
		"--wal-mode \"often\": no such mode; choose none, buffered or fsync"},
	{"wal-mode that etcd does not support", []string{"up", "--store", "etcd", "--wal-mode", "none"}, 2,
		"--wal-mode none: etcd always uses fsync; omit the flag or use --store mem_etcd"},
	{"data directory without a WAL", []string{"up", "--store", "mem_etcd", "--wal-mode", "none", "--data-dir", "{dir}"}, 2,
		"--wal-mode none stores no data, so it cannot be combined with --data-dir; omit one of them"},
	{"seed without nodes", []string{"up", "--seed-store", "--nodes", "0"}, 2,
		"--seed-store: there are no nodes to write; set --nodes"},
	{"seed of a store that keeps nothing", []string{"up", "--seed-store", "--store", "mem_etcd", "--wal-mode", "none"}, 2,
		"--seed-store: with --wal-mode none the store loses the nodes when it is started again; choose buffered or fsync"},
	{"unknown scheduler", []string{"up", "--scheduler", "mine"}, 2,
		"--scheduler \"mine\": no such scheduler; choose kube-scheduler or dist-scheduler"},
	{"argument that is not a pair", []string{"up", "--apiserver-arg", "v"}, 2,
		"--apiserver-arg \"v\": not of the form key=value"},
	{"unknown flag", []string{"up", "--node", "5"}, 2,
		"unknown flag: --node; see `k1m up --help`"},
	{"unknown command", []string{"start"}, 2,
		"unknown command \"start\" for \"k1m\"; see `k1m --help`"},
	{"unexpected argument", []string{"down", "now"}, 2,
		"unknown command \"now\" for \"k1m down\"; see `k1m down --help`"},
	{"unknown format", []string{"status", "-o", "xml"}, 2,
		"-o \"xml\": no such format; use json or wide"},
	{"timeout of zero", []string{"up", "--timeout", "0s"}, 2,
		"--timeout 0s: must be more than 0"},
	{"kubectl without arguments", []string{"kubectl", "--"}, 2,
		"no arguments for kubectl; try `k1m kubectl get nodes`"},
	{"missing count", []string{"nodes", "create"}, 2,
		"--count is required; choose 1 to 10000000"},
	{"bad prefix", []string{"nodes", "create", "--count", "1", "--prefix", "Node_"}, 2,
		"--prefix \"Node_\": use a-z, 0-9, '-' and '.'; the first character must be a letter or digit"},
	{"bad namespace", []string{"pods", "create", "--count", "1", "-n", "a/b"}, 2,
		"--namespace \"a/b\": use a-z, 0-9 and '-'; the first and last character must be a letter or digit"},
	{"bad quantity", []string{"pods", "create", "--count", "1", "--cpu", "lots"}, 2,
		"--cpu \"lots\": not a quantity; write it like 500m, 4 or 16Gi"},
	{"template that is not a Node", []string{"nodes", "create", "--count", "1", "--template", "{dir}/deployment.yaml"}, 2,
		"--template {dir}/deployment.yaml: contains a Deployment, not a Node; use a manifest with `kind: Node`"},
	{"template that is not a Pod", []string{"pods", "create", "--count", "1", "--template", "{dir}/deployment.yaml"}, 2,
		"--template {dir}/deployment.yaml: contains a Deployment, not a Pod; use a manifest with `kind: Pod`"},
	{"template with a misspelled field", []string{"nodes", "create", "--count", "1", "--template", "{dir}/misspelled.yaml"}, 2,
		"--template {dir}/misspelled.yaml: not a valid Node: strict decoding error: unknown field \"spec.unscheduleable\"; correct the file"},
	{"template that is missing", []string{"nodes", "create", "--count", "1", "--template", "{dir}/none.yaml"}, 2,
		"--template {dir}/none.yaml: no such file or directory; specify a readable file"},
	{"snapshot without a file", []string{"snapshot", "save"}, 2,
		"accepts between 1 and 2 arg(s), received 0; see `k1m snapshot save --help`"},
	{"two names for a snapshot", []string{"snapshot", "save", "--name", "a", "b", "{dir}/file"}, 2,
		"--name a and the argument b name different clusters; omit one of them"},
	{"snapshot of an unknown cluster", []string{"snapshot", "save", "nosuch", "{dir}/file"}, 1,
		"cluster \"nosuch\": no such cluster (existing clusters: future); create it with `k1m up --name nosuch`"},
	{"snapshot that is missing", []string{"snapshot", "restore", "copy", "{dir}/none"}, 1,
		"{dir}/none: no such file or directory"},
	{"file that is not a snapshot", []string{"snapshot", "restore", "copy", "{dir}/deployment.yaml"}, 1,
		"{dir}/deployment.yaml: not a valid snapshot: reading its manifest: invalid input: magic number mismatch"},
	{"restore over a cluster", []string{"snapshot", "restore", "future", "{dir}/deployment.yaml"}, 1,
		"cluster \"future\" already exists; choose another name, or remove it with `k1m down --name future`"},
	{"unknown kind of pods", []string{"bench", "schedule-million", "--pod-kind", "odd"}, 2,
		"--pod-kind \"odd\": no such kind; choose one of plain, deployment, zone-anti-affinity, hostname-anti-affinity, mixed, unique, vanished-nodes, pvc, csi, claim"},
	{"more pods than fit", []string{"bench", "schedule-million", "--nodes", "10", "--pods", "1001"}, 2,
		"--pods 1001: 10 nodes have room for 1000 pods in addition to the 0 existing pods; use fewer pods or more nodes"},
	{"check that is not a number", []string{"bench", "schedule-million", "--check", "all"}, 2,
		"--check \"all\": neither a count nor a fraction from 0.0 to 1.0"},
	{"unknown format of bench", []string{"bench", "schedule", "-o", "xml"}, 2,
		"-o \"xml\": no such format; choose text or json"},
	{"unknown scheduler to measure", []string{"bench", "schedule", "--schedulers", "mine"}, 2,
		"--schedulers \"mine\": no such scheduler; choose dist-scheduler, kube-scheduler or both"},

	{"unknown cluster", []string{"status", "--name", "nosuch"}, 1,
		"cluster \"nosuch\": no such cluster (existing clusters: future); create it with `k1m up --name nosuch`"},
	{"nodes of an unknown cluster", []string{"nodes", "create", "--count", "1", "--name", "nosuch"}, 1,
		"cluster \"nosuch\": no such cluster (existing clusters: future); create it with `k1m up --name nosuch`"},
	{"port in use", []string{"up", "--apiserver-port", "{port}"}, 1,
		"port in use: kube-apiserver requires 127.0.0.1:{port} (bind: address already in use); choose another port, or omit the flag to use any free port"},
	{"no space", []string{"up", "--min-free-disk", "1Ei"}, 1,
		"not enough disk space: {home}/clusters has {free}Mi free, --min-free-disk requires 1Ei; free some space, or set K1M_HOME or --data-dir to another disk"},
	{"data of another version", []string{"up", "--store", "{store}", "--data-dir", "{dir}/future"}, 1,
		"data directory {dir}/future has version 99, but this k1m supports version 3; use the k1m that created it or choose another --data-dir"},
	{"data of another store", []string{"up", "--store", "{store}", "--data-dir", "{dir}/other"}, 1,
		"data directory {dir}/other belongs to other, not {store}; choose another --data-dir"},
	{"data in use", []string{"up", "--store", "{store}", "--data-dir", "{dir}/used"}, 1,
		"data directory {dir}/used is in use (locked by process 42); stop that cluster or choose another --data-dir"},
	{"store address without a server", []string{"up", "--store-address", "http://127.0.0.1:1"}, 1,
		"cannot connect to the store: http://127.0.0.1:1: connection refused; start the store or omit --store-address"},
	{"store address that is not a URL", []string{"up", "--store-address", "localhost"}, 2,
		"--store-address \"localhost\": not a URL with a port; write it like https://127.0.0.1:2379"},
	{"own store of an unknown resource", []string{"up", "--name", "nosuch", "--store-for", "pod=own"}, 2,
		`--store-for "pod": kube-apiserver stores no such resource; name resources such as pods, events or coordination.k8s.io/leases`},
	{"own stores and an external store", []string{"up", "--name", "nosuch", "--store-for", "pods=own", "--store-address", "http://127.0.0.1:2379"}, 2,
		"--store-for: k1m does not run the store of --store-address, and so no others; omit one of them"},
	{"unreadable certificates", []string{"up", "--store", "{store}", "--name", "garbled"}, 1,
		"unreadable certificate: {home}/clusters/garbled/pki/ca: failed to load certificate: couldn't load the certificate file {home}/clusters/garbled/pki/ca.crt: error reading {home}/clusters/garbled/pki/ca.crt: data does not contain any valid RSA or ECDSA certificates; restore it, or start over with `k1m down`"},
	{"cluster of another version", []string{"up", "--name", "future"}, 1,
		"{home}/clusters/future has layout 99, but this k1m supports layout 1; use the k1m that created it, or start over with `k1m down --name future`"},
}

func TestBadInput(t *testing.T) {
	w := newWorkspace(t)
	values := newFixture(t, w)
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			args := make([]string, len(m.args))
			for i, arg := range m.args {
				args[i] = values.Replace(arg)
			}
			before := w.clusters(t)
			r := w.k1m(t, args...)
			want := "k1m: " + values.Replace(m.want) + "\n"
			if got := normaliseFree(r.stderr); got != want || r.code != m.code {
				t.Errorf("exit code %d (want %d)\n got %s\nwant %s", r.code, m.code, got, want)
			}
			if after := w.clusters(t); !slices.Equal(after, before) {
				t.Errorf("the command changed the cluster directories from %q to %q", before, after)
			}
		})
	}
	w.assertNothingRuns(t)
}

// TestCommandsWithoutClusterCreateNoFiles runs commands for clusters that do not exist. They must create no
// files, not even lock files.
func TestCommandsWithoutClusterCreateNoFiles(t *testing.T) {
	w := newWorkspace(t)
	r := w.succeed(t, "down")
	if want := "Cluster \"k1m\" does not exist.\n"; r.stdout != want {
		t.Errorf("down of a cluster that does not exist printed %q, want %q", r.stdout, want)
	}
	w.k1m(t, "up", "--name", "nosuch", "--nodes", "-1")
	if left, err := os.ReadDir(w.home); err != nil || len(left) > 0 {
		t.Errorf("the commands created %v in K1M_HOME (%v)", left, err)
	}
}

// newFixture creates the files, the lock and the listener to which the invalid command lines refer. It
// returns the values of the placeholders.
func newFixture(t *testing.T, w *workspace) *strings.Replacer {
	t.Helper()
	dir := t.TempDir()
	write := func(path, content string) {
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	write(filepath.Join(dir, "deployment.yaml"), deploymentYAML)
	write(filepath.Join(dir, "misspelled.yaml"), misspelledNodeYAML)
	write(filepath.Join(dir, "future", "format.json"), `{"version":99,"store":"etcd"}`)
	write(filepath.Join(dir, "other", "format.json"), `{"version":1,"store":"other"}`)
	write(filepath.Join(w.clusterDir("garbled"), "pki", "ca.crt"), "not a certificate")
	write(filepath.Join(w.clusterDir("garbled"), "pki", "ca.key"), "not a key")
	write(filepath.Join(w.clusterDir("future"), "cluster.json"), `{"layout":99,"name":"future"}`)
	holdLock(t, filepath.Join(dir, "used", "lock"), "process 42")

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	port := listener.Addr().(*net.TCPAddr).Port
	return strings.NewReplacer("{dir}", dir, "{home}", w.home, "{store}", storeKind(), "{port}", fmt.Sprint(port))
}

var freeSpace = regexp.MustCompile(`has \d+Mi free`)

// normaliseFree replaces the amount of free space in an error by {free}.
func normaliseFree(text string) string { return freeSpace.ReplaceAllString(text, "has {free}Mi free") }

func holdLock(t *testing.T, path, holder string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	file, err := os.Create(path)
	must(t, err)
	t.Cleanup(func() { file.Close() })
	_, err = file.WriteString(holder)
	must(t, err)
	must(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
}

// clusters returns the paths of the cluster directories.
func (w *workspace) clusters(t *testing.T) []string {
	t.Helper()
	folders, err := filepath.Glob(w.clusterDir("*"))
	must(t, err)
	return folders
}
