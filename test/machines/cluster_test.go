package machines

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-1m/k8s-1m/test/ownnetwork"
)

// cluster is a cluster of machines that their user data has set up.
type cluster struct {
	machines map[string]*machine
	// dir has what the operator has: certificates and kubeconfigs in kubernetes, and the module.
	dir, module string
	client      kubernetes.Interface
}

// services are those of each role.
var services = map[string][]string{
	"store": {"mem_etcd"}, "apiserver": {"kube-apiserver", "kube-controller-manager"}, "scheduler": {"dist-scheduler"},
	"gateway": {"kube-gateway"}, "node": {"containerd", "kubelet"},
}

// TestCluster boots a machine for each role, and three for the store, sets up a cluster with the commands of
// deploy/terraform/README.md, and installs the Helm chart on its node.
func TestCluster(t *testing.T) {
	base := needs(t)
	if !ownnetwork.Enter(t, "40m") {
		return
	}
	c := &cluster{machines: map[string]*machine{}, dir: t.TempDir(), module: moduleCopy(t)}
	variables := inputs()
	variables["downloads"] = serve(t)
	variables["kubernetes_dir"] = filepath.Join(c.dir, "kubernetes")
	// These are for the namespaces of the test: their kernel has cgroup v1, and no other DNS.
	variables["kubelet"] = map[string]any{"failCgroupV1": false, "clusterDNS": []string{ownnetwork.Address}, "clusterDomain": "cluster.local", "resolvConf": "/dev/null"}
	out, err := apply(t, c.module, variables)
	must(t, err)
	for _, addresses := range variables["machines"].(map[string]any) {
		for name, address := range addresses.(map[string]string) {
			c.machines[name] = boot(t, base, name, address, []byte(out.userData[name]))
		}
	}
	for name, m := range c.machines {
		t.Run("user data of "+name, func(t *testing.T) { m.checkUserData(t) })
	}
	c.operate(t)
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "kubernetes", "super-admin.conf"))
	must(t, err)
	config.Timeout = 20 * time.Second
	c.client, err = kubernetes.NewForConfig(config)
	must(t, err)
	for name, m := range c.machines {
		t.Run("services of "+name, func(t *testing.T) { m.checkServices(t) })
	}
	t.Run("store", c.checkStore)
	t.Run("node", c.checkNode)
	if !t.Failed() {
		t.Run("chart", c.checkChart)
	}
}

// needs skips the test without the rights, the root directory of machines, or the files of a release. It returns the root
// directory.
func needs(t *testing.T) string {
	t.Helper()
	if os.Getenv("MACHINES") != "full" {
		t.Skip("boots machines; run `make machines`")
	}
	base, err := filepath.Abs("../../target/machine-root")
	must(t, err)
	for what, path := range map[string]string{
		"root.sh": filepath.Join(base, "made"), "`make dist`": os.Getenv("DIST"), "`make images`": os.Getenv("IMAGES"),
	} {
		if _, err := os.Stat(path); err != nil {
			t.Skipf("run %s before: %v", what, err)
		}
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		t.Skip("boot.sh makes groups of cgroup v1, which this machine does not have")
	}
	for _, program := range []string{"tofu", "kubeadm", "kubelet", "kube-proxy", "kubectl", "helm", "etcdctl", "kube-apiserver", "kube-controller-manager"} {
		tool(t, program)
	}
	return base
}

// serve serves what machines install, and returns it as the variable `downloads`.
func serve(t *testing.T) map[string]any {
	t.Helper()
	files := map[string]string{}
	for _, name := range []string{"mem_etcd", "dist-scheduler", "kube-gateway"} {
		found, _ := filepath.Glob(filepath.Join(os.Getenv("DIST"), strings.ReplaceAll(name, "_", "-")+"_*.deb"))
		if len(found) != 1 {
			t.Fatalf("packages of %s: %q, want one", name, found)
		}
		files[name] = found[0]
	}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kubelet"} {
		files[name] = tool(t, name)
	}
	downloads := map[string]any{}
	handler := http.NewServeMux()
	for name, path := range files {
		content, err := os.ReadFile(path)
		must(t, err)
		sum := sha256.Sum256(content)
		downloads[name] = map[string]string{"url": "http://" + ownnetwork.Address + "/" + name, "sha256": hex.EncodeToString(sum[:])}
		handler.HandleFunc("/"+name, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
	}
	listener, err := net.Listen("tcp", ownnetwork.Address+":80")
	must(t, err)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return downloads
}

// checkUserData waits until cloud-init has executed the user data, without an error.
func (m *machine) checkUserData(t *testing.T) {
	m.await(t, "cloud-init has ended", func() bool {
		out, _ := m.try("cloud-init", "status")
		return strings.Contains(out, "done") || strings.Contains(out, "error") || strings.Contains(out, "disabled")
	})
	out, _ := m.try("cloud-init", "status", "--long")
	log, _ := m.try("cat", "/var/log/cloud-init-output.log")
	if !strings.Contains(out, "status: done") {
		t.Errorf("cloud-init on %s: %s\n%s", m.name, out, tail(log))
	}
	if out, err := m.try("cloud-init", "schema", "--config-file", "/var/lib/cloud/seed/nocloud/user-data"); err != nil {
		t.Errorf("user data of %s: %v\n%s", m.name, err, out)
	}
	for _, service := range services[m.role()] {
		if out, err := m.try("systemctl", "is-enabled", service); err != nil {
			t.Errorf("%s on %s is not enabled: %s\n%s", service, m.name, out, tail(log))
		}
	}
}

// role returns the role of the machine, which is in its name.
func (m *machine) role() string { return m.name[:strings.LastIndex(m.name, "-")] }

// operate runs the commands of the guide, as the operator does: tofu, ssh and the programs of Kubernetes are in its PATH.
func (c *cluster) operate(t *testing.T) {
	t.Helper()
	bin := filepath.Join(c.dir, "bin")
	must(t, os.MkdirAll(bin, 0o755))
	var addresses, inits strings.Builder
	for name, m := range c.machines {
		fmt.Fprintf(&addresses, "%s %s\n", name, m.address)
		fmt.Fprintf(&inits, "%s %d\n", m.address, m.init)
	}
	must(t, os.WriteFile(filepath.Join(c.dir, "addresses"), []byte(addresses.String()), 0o600))
	must(t, os.WriteFile(filepath.Join(c.dir, "inits"), []byte(inits.String()), 0o600))
	// The addresses are outputs of the folders of providers.
	writeProgram(t, filepath.Join(bin, "tofu"), fmt.Sprintf(`[ "$3" != addresses ] || exec cat %s/addresses
exec %s -chdir=%s "$@"`, c.dir, tool(t, "tofu"), c.module))
	writeProgram(t, filepath.Join(bin, "ssh"), fmt.Sprintf(`init=$(awk -v host="${1#root@}" '$1 == host {print $2}' %s/inits)
shift
exec nsenter --target "$init" --mount --net --pid --uts --ipc --cgroup --root --wd -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"`, c.dir))
	for _, program := range []string{"kubeadm", "kubectl"} {
		must(t, os.Symlink(tool(t, program), filepath.Join(bin, program)))
	}
	cloud := filepath.Join(c.dir, "cloud")
	must(t, os.Mkdir(cloud, 0o755))
	guide, err := filepath.Abs(filepath.Join(terraformDir, "bundle.sh"))
	must(t, err)
	must(t, os.Symlink(guide, filepath.Join(c.dir, "bundle.sh")))
	cmd := exec.CommandContext(t.Context(), "timeout", fmt.Sprint(patience.Seconds()), "bash", "-xc", commandsOf(t, filepath.Join(terraformDir, "README.md")))
	cmd.Dir = cloud
	cmd.Env = []string{"PATH=" + bin + ":/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + c.dir}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the commands of the guide: %v\n%s", err, tail(string(out)))
	}
}

func writeProgram(t *testing.T, path, script string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte("#!/bin/sh\nset -eu\n"+script+"\n"), 0o755)) //nolint:gosec // a program
}

// commandsOf returns all blocks of shell commands of a page.
func commandsOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	var all strings.Builder
	for i, block := range strings.Split(string(text), "```") {
		if commands, found := strings.CutPrefix(block, "sh\n"); i%2 == 1 && found {
			all.WriteString(commands)
		}
	}
	if strings.Count(all.String(), "\n") < 20 {
		t.Fatalf("%s has these commands only:\n%s", path, all.String())
	}
	return all.String()
}

// checkServices checks that the services of the machine run, and that their keys are not readable for others.
func (m *machine) checkServices(t *testing.T) {
	for _, service := range services[m.role()] {
		m.await(t, service+" is active", func() bool {
			out, _ := m.try("systemctl", "is-active", service)
			return strings.TrimSpace(out) == "active"
		})
	}
	// A machine has only some of these folders.
	out := m.run(t, "sh", "-c", "find /etc/mem_etcd /etc/kubernetes /etc/dist-scheduler /etc/kube-gateway -name '*.key' -perm /o+r 2>/dev/null || true")
	if strings.Contains(out, ".key") {
		t.Errorf("keys that everybody on %s may read: %s", m.name, out)
	}
}

// checkStore checks that the three members are healthy and hold the same.
func (c *cluster) checkStore(t *testing.T) {
	pki := filepath.Join(c.dir, "kubernetes", "pki")
	flags := []string{"--endpoints", "https://10.99.0.1:2379,https://10.99.0.2:2379,https://10.99.0.3:2379", "--cacert", pki + "/etcd/ca.crt",
		"--cert", pki + "/etcd/healthcheck-client.crt", "--key", pki + "/etcd/healthcheck-client.key", "endpoint", "health"}
	out, err := exec.CommandContext(t.Context(), tool(t, "etcdctl"), flags...).CombinedOutput()
	if err != nil || strings.Count(string(out), "is healthy") != 3 {
		t.Errorf("etcdctl endpoint health: %v\n%s", err, out)
	}
}

// checkNode waits until the node is ready: kubelet has its certificate, containers have a network.
func (c *cluster) checkNode(t *testing.T) {
	c.machines["node-0"].await(t, "the node is ready", func() bool {
		node, err := c.client.CoreV1().Nodes().Get(t.Context(), "node-0", metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
			return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
		})
	})
}
