package machines

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	chartDir  = "../../deploy/chart"
	release   = "big"
	namespace = "k8s-1m"
	// pause is the image with which containerd 1.6 holds the namespaces of a pod.
	pause = "registry.k8s.io/pause:3.6"
)

// podNetwork is the network of the pods on the node: a bridge, with the address of the node outside of it.
const podNetwork = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.98.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`

// checkChart installs the Helm chart with all parts, whose pods run in containers on the node.
func (c *cluster) checkChart(t *testing.T) {
	node := c.machines["node-0"]
	tag := c.loadImages(t, node)
	c.startProxy(t, node)
	serveDNS(t, c.client)
	c.createSecrets(t)
	c.helm(t, "install", release, chartDir, "--wait", "--timeout", patience.String(), "--set", "image.registry=localhost,image.tag="+tag+
		",image.pullPolicy=Never,memEtcd.enabled=true,memEtcd.walMode=none,etcdProxy.enabled=true,dashboards.enabled=true"+
		",distScheduler.enabled=true,distScheduler.schedulerName=of-chart,distScheduler.leaderElection.resourceName=of-chart"+
		",kubeGateway.enabled=true,kubeGateway.apiServers={10.99.0.4:6443},warmControllerManager.enabled=true")
	c.checkPods(t, node)
	c.checkRelease(t, node)
	c.checkOwnScheduler(t, node)
	c.helm(t, "uninstall", release, "--wait", "--timeout", patience.String())
}

// loadImages imports the images of the release, and one of a program that only waits. It returns the tag.
func (c *cluster) loadImages(t *testing.T, node *machine) string {
	t.Helper()
	archives, _ := filepath.Glob(filepath.Join(os.Getenv("IMAGES"), "*.tar"))
	if len(archives) < 6 {
		t.Fatalf("images: %q", archives)
	}
	waiting := filepath.Join(t.TempDir(), "pause.tar")
	writePause(t, waiting)
	for _, archive := range append(archives, waiting) {
		file, err := os.Open(archive)
		must(t, err)
		cmd := node.command(t.Context(), "ctr", "--namespace", "k8s.io", "images", "import", "-")
		cmd.Stdin = file
		out, err := cmd.CombinedOutput()
		file.Close()
		if err != nil {
			t.Fatalf("ctr images import of %s: %v\n%s", archive, err, out)
		}
	}
	images := node.run(t, "ctr", "--namespace", "k8s.io", "images", "list", "--quiet")
	for _, image := range strings.Fields(images) {
		if tag, found := strings.CutPrefix(image, "localhost/mem_etcd:"); found {
			return tag
		}
	}
	t.Fatalf("the node has the images\n%s\nwant that of mem_etcd", images)
	return ""
}

// writePause writes an image with a program that waits until it is told to end.
func writePause(t *testing.T, path string) {
	t.Helper()
	folder := t.TempDir()
	source := "package main\n\nimport (\n\t\"os\"\n\t\"os/signal\"\n\t\"syscall\"\n)\n\nfunc main() {\n\tend := make(chan os.Signal, 1)\n" +
		"\tsignal.Notify(end, syscall.SIGTERM, syscall.SIGINT)\n\t<-end\n}\n"
	must(t, os.WriteFile(filepath.Join(folder, "main.go"), []byte(source), 0o600))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(folder, "pause"), filepath.Join(folder, "main.go"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(folder, "pause"))
	must(t, err)
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	must(t, w.WriteHeader(&tar.Header{Name: "pause", Mode: 0o755, Size: int64(len(program))}))
	_, err = w.Write(program)
	must(t, err)
	must(t, w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
	must(t, err)
	image, err := mutate.AppendLayers(empty.Image, layer)
	must(t, err)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: "amd64", OS: "linux", RootFS: configOf(t, image).RootFS, Config: v1.Config{Entrypoint: []string{"/pause"}},
	})
	must(t, err)
	reference, err := name.NewTag(pause)
	must(t, err)
	must(t, tarball.WriteToFile(path, reference, image))
}

func configOf(t *testing.T, image v1.Image) *v1.ConfigFile {
	t.Helper()
	config, err := image.ConfigFile()
	must(t, err)
	return config
}

// startProxy runs kube-proxy on the node, so that Services have their addresses.
func (c *cluster) startProxy(t *testing.T, node *machine) {
	t.Helper()
	for from, to := range map[string]string{
		tool(t, "kube-proxy"): "usr/local/bin/kube-proxy", filepath.Join(c.dir, "kubernetes", "super-admin.conf"): "etc/kubernetes/proxy.conf",
	} {
		content, err := os.ReadFile(from)
		must(t, err)
		must(t, os.WriteFile(node.path(to), content, 0o700)) //nolint:gosec // one of them is a program
	}
	node.run(t, "systemd-run", "--unit=kube-proxy", "--property=Restart=always", "/usr/local/bin/kube-proxy", "--kubeconfig=/etc/kubernetes/proxy.conf",
		"--hostname-override=node-0", "--proxy-mode=nftables", "--cluster-cidr=10.98.0.0/24", "--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
}

// createSecrets creates the namespace, and the Secrets that the chart needs.
func (c *cluster) createSecrets(t *testing.T) {
	t.Helper()
	_, err := c.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	must(t, err)
	for name, files := range map[string]map[string]string{
		"kube-gateway": {
			"tls.crt": "apiserver.crt", "tls.key": "apiserver.key", "client-ca.crt": "ca.crt", "ca.crt": "ca.crt",
			"front-proxy.crt": "front-proxy-client.crt", "front-proxy.key": "front-proxy-client.key",
		},
		"warm-controller-manager": {"ca.crt": "ca.crt", "ca.key": "ca.key", "sa.key": "sa.key"},
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{}}
		for key, file := range files {
			secret.Data[key], err = os.ReadFile(filepath.Join(c.dir, "kubernetes", "pki", file))
			must(t, err)
		}
		_, err := c.client.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{})
		must(t, err)
	}
}

// kubectl runs kubectl as an administrator.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return c.program(t, "kubectl", args...)
}

// helm runs Helm as an administrator.
func (c *cluster) helm(t *testing.T, args ...string) string {
	t.Helper()
	return c.program(t, "helm", args...)
}

func (c *cluster) program(t *testing.T, program string, args ...string) string {
	t.Helper()
	args = append([]string{"--kubeconfig", filepath.Join(c.dir, "kubernetes", "super-admin.conf"), "--namespace", namespace}, args...)
	cmd := exec.CommandContext(t.Context(), tool(t, program), args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", program, strings.Join(args, " "), err, tail(string(out)))
		c.explain(t)
		t.FailNow()
	}
	return string(out)
}

// explain prints the pods of the release, and the end of their logs.
func (c *cluster) explain(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"get", "pods,jobs,services", "-o", "wide"}, {"get", "events", "--sort-by=.lastTimestamp"},
		{"logs", "--selector", "app.kubernetes.io/instance=" + release, "--tail", "20", "--prefix", "--ignore-errors"},
	} {
		cmd := exec.Command(tool(t, "kubectl"), append([]string{"--kubeconfig", filepath.Join(c.dir, "kubernetes", "super-admin.conf"), "--namespace", namespace}, args...)...)
		out, _ := cmd.CombinedOutput()
		t.Logf("kubectl %s\n%s", strings.Join(args, " "), tail(string(out)))
	}
}

// checkPods checks that all containers of the release run without a restart, as user 65532 and without a capability.
func (c *cluster) checkPods(t *testing.T, node *machine) {
	pods, err := c.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	running := map[string]bool{}
	for _, pod := range pods.Items {
		component := pod.Labels["app.kubernetes.io/name"]
		if component == "certificates" {
			continue
		}
		status := pod.Status.ContainerStatuses
		if pod.Status.Phase != corev1.PodRunning || len(status) != 1 || !status[0].Ready || pod.Spec.NodeName != node.name {
			t.Errorf("pod %s: %s %+v on %s, want it running and ready", pod.Name, pod.Status.Phase, status, pod.Spec.NodeName)
			continue
		}
		running[component] = true
	}
	if len(running) != 5 {
		t.Errorf("pods of %v run, want those of five parts", running)
	}
	processes := node.run(t, "ps", "-eo", "uid,comm")
	for _, program := range []string{"mem_etcd", "etcd-proxy", "dist-scheduler", "kube-gateway", "warm-controller"} {
		if !strings.Contains(processes, "65532 "+program) {
			t.Errorf("%s does not run as user 65532:\n%s", program, processes)
		}
	}
}

// checkRelease writes to the store through etcd-proxy from another network, and reads the logs of a container and runs a
// program in it.
func (c *cluster) checkRelease(t *testing.T, node *machine) {
	secret, err := c.client.CoreV1().Secrets(namespace).Get(t.Context(), release+"-store-client", metav1.GetOptions{})
	must(t, err)
	block, _ := pem.Decode(secret.Data["tls.crt"])
	if certificate, err := x509.ParseCertificate(block.Bytes); err != nil || certificate.Subject.CommonName != "kube-apiserver-etcd-client" {
		t.Errorf("certificate of clients: %v, %v", certificate, err)
	}
	for key, content := range secret.Data {
		must(t, os.WriteFile(node.path("root", key), content, 0o600))
	}
	program, err := os.ReadFile(tool(t, "etcdctl"))
	must(t, err)
	must(t, os.WriteFile(node.path("usr/local/bin/etcdctl"), program, 0o755)) //nolint:gosec // a program
	service, err := c.client.CoreV1().Services(namespace).Get(t.Context(), release+"-etcd-proxy", metav1.GetOptions{})
	must(t, err)
	hosts, err := os.OpenFile(node.path("etc/hosts"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	fmt.Fprintf(hosts, "%s %s-etcd-proxy.%s.svc\n", service.Spec.ClusterIP, release, namespace)
	must(t, hosts.Close())
	etcdctl := func(args ...string) string {
		return node.run(t, append([]string{"etcdctl", "--endpoints", "https://" + release + "-etcd-proxy." + namespace + ".svc:2379",
			"--cacert", "/root/ca.crt", "--cert", "/root/tls.crt", "--key", "/root/tls.key"}, args...)...)
	}
	etcdctl("put", "/registry/a", "value")
	if out := etcdctl("get", "--print-value-only", "/registry/a"); strings.TrimSpace(out) != "value" {
		t.Errorf("the store returned %q", out)
	}
	if out := c.kubectl(t, "exec", release+"-mem-etcd-0", "--", "mem_etcd", "--version"); !strings.Contains(out, "etcd Version") {
		t.Errorf("kubectl exec printed %q", out)
	}
	if out := c.kubectl(t, "logs", "--selector", "app.kubernetes.io/name=certificates", "--tail=-1"); !strings.Contains(out, release+"-mem-etcd was written") {
		t.Errorf("the log of the Job with the certificates is %q", out)
	}
}

// checkOwnScheduler creates a pod for the scheduler of the chart, and waits until it runs on the node.
func (c *cluster) checkOwnScheduler(t *testing.T, node *machine) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "waiting"}, Spec: corev1.PodSpec{
		SchedulerName: "of-chart", AutomountServiceAccountToken: new(bool),
		Containers: []corev1.Container{{Name: "waiting", Image: pause, ImagePullPolicy: corev1.PullNever}},
	}}
	_, err := c.client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	node.await(t, "a pod of the chart's scheduler runs", func() bool {
		pod, err := c.client.CoreV1().Pods(namespace).Get(t.Context(), "waiting", metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning
	})
}
