package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// auditPolicy records the requests of the chart's service accounts.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:` + namespace + `"]
- level: None
`

// cluster is a cluster without a scheduler, into which the chart is installed.
type cluster struct {
	testcluster.Cluster
	client            kubernetes.Interface
	kubeconfig, audit string
	*host
}

// newCluster starts a cluster with the namespace of the release. It ends with the test.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("CHART") != "full" {
		t.Skip("starts a cluster; run `make chart`")
	}
	needNamespaces(t)
	c := &cluster{Cluster: testcluster.New(t, "chart", "k1m", "mem_etcd", "kube-apiserver", "kube-controller-manager", "kwok", "kubectl", "helm",
		"etcdctl", "dist-scheduler", "kube-gateway", "etcd-proxy", "warm-controller-manager")}
	files := t.TempDir()
	c.audit = filepath.Join(files, "audit.log")
	policy := filepath.Join(files, "policy.yaml")
	must(t, os.WriteFile(policy, []byte(auditPolicy), 0o600))
	// Two controller managers elect a leader, so warm-controller-manager can be a third one.
	c.Up(t, "--nodes", "3", "--without", "scheduler", "--controller-managers", "2", "--apiserver-arg", "feature-gates=ShardedListAndWatch=true",
		"--apiserver-arg", "audit-policy-file="+policy, "--apiserver-arg", "audit-log-path="+c.audit, "--apiserver-arg", "audit-log-mode=blocking")
	c.kubeconfig = c.Kubeconfig(t)
	client, err := kubernetes.NewForConfig(testcluster.Admin(t, c.kubeconfig, c.Servers[0]))
	must(t, err)
	c.client = client
	_, err = client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	must(t, err)
	c.host = newHost(t, client, c.Servers[0], c.PKI("ca.crt"), c.Bin)
	c.secret(t, "kube-gateway", map[string]string{
		"tls.crt": "kube-gateway.crt", "tls.key": "kube-gateway.key", "client-ca.crt": "ca.crt", "ca.crt": "ca.crt",
		"front-proxy.crt": "front-proxy-client.crt", "front-proxy.key": "front-proxy-client.key",
	})
	c.secret(t, "warm-controller-manager", map[string]string{"ca.crt": "ca.crt", "ca.key": "ca.key", "sa.key": "sa.key"})
	return c
}

// secret creates a Secret with files of the cluster's PKI.
func (c *cluster) secret(t *testing.T, name string, files map[string]string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{}}
	for key, file := range files {
		data, err := os.ReadFile(c.PKI(file))
		must(t, err)
		secret.Data[key] = data
	}
	_, err := c.client.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{})
	must(t, err)
}

// helm runs helm with the cluster.
func (c *cluster) helm(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, nil, "helm", append(args, "--kubeconfig", c.kubeconfig, "--namespace", namespace)...)
}

// values are those of the release: every part, three members of the store without disks, and replicas that share nodes.
// The address of a pod is a loopback address of its own.
func (c *cluster) values() []string {
	servers := strings.Join(c.Servers, ",")
	return set("bindAddress=$(POD_IP)", "memEtcd.enabled=true", "memEtcd.members=3", "memEtcd.replicationLog=memory", "distScheduler.enabled=true",
		"distScheduler.replicas=2", "kubeGateway.enabled=true", "kubeGateway.apiServers={"+servers+"}", "etcdProxy.enabled=true",
		"warmControllerManager.enabled=true", "dashboards.enabled=true")
}

// install installs the release, and runs the Job that creates its certificates.
func (c *cluster) install(t *testing.T, flags ...string) {
	t.Helper()
	c.helm(t, append(append([]string{"install", release, chartDir}, c.values()...), flags...)...)
	c.certify(t)
}

// certify runs the Job of the newest list of certificates.
func (c *cluster) certify(t *testing.T) {
	t.Helper()
	jobs, err := c.client.BatchV1().Jobs(namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(jobs.Items) == 0 {
		return // None of the parts has certificates.
	}
	newest := slices.MaxFunc(jobs.Items, func(a, b batchv1.Job) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	c.start(t, podOf(newest.Name, newest.Spec.Template), c.address()).awaitSuccess(t)
}

// statefulPods starts the pods of a StatefulSet.
func (c *cluster) statefulPods(t *testing.T, name string) (pods []*container) {
	t.Helper()
	set, err := c.client.AppsV1().StatefulSets(namespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	ips := make([]string, *set.Spec.Replicas)
	for i := range ips {
		names := []string{fmt.Sprintf("%s-%d.%s.%s.svc", name, i, set.Spec.ServiceName, namespace)}
		if i == 0 {
			names = append(names, fmt.Sprintf("%s.%s.svc", name, namespace))
		}
		ips[i] = c.address(names...)
	}
	for i, ip := range ips {
		pods = append(pods, c.start(t, podOf(fmt.Sprintf("%s-%d", name, i), set.Spec.Template), ip))
	}
	return pods
}

// deployedPod starts one pod of a Deployment.
func (c *cluster) deployedPod(t *testing.T, name string) *container {
	t.Helper()
	deployment, err := c.client.AppsV1().Deployments(namespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return c.start(t, podOf(name+"-0", deployment.Spec.Template), c.address(fmt.Sprintf("%s.%s.svc", name, namespace)))
}

// TestDryRun lets an API server check what the chart renders: as clients do that use server-side apply.
func TestDryRun(t *testing.T) {
	c := newCluster(t)
	checked := 0
	for mask, text := range rendered(t) {
		// cert-manager is not installed here.
		if strings.Contains(strings.Join(combination(mask), " "), "cert-manager") || strings.TrimSpace(text) == "" {
			continue
		}
		// Only whole combinations, and each part alone: the API servers have little CPU.
		if ones := len(strings.ReplaceAll(fmt.Sprintf("%b", mask), "0", "")); ones != 1 && ones < len(parts)-1 {
			continue
		}
		run(t, []byte(text), "kubectl", "--kubeconfig", c.kubeconfig, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
		checked++
	}
	if checked < len(parts) {
		t.Errorf("%d combinations were checked", checked)
	}
	flags := append([]string{"install", release, chartDir, "--dry-run=server"}, c.values()...)
	if out := c.helm(t, flags...); !strings.Contains(out, "kind: StatefulSet") {
		t.Errorf("helm install --dry-run=server printed\n%s", out)
	}
}

// TestRelease installs the chart, runs the programs of its pods, upgrades it and rolls it back.
func TestRelease(t *testing.T) {
	c := newCluster(t)
	c.install(t, "--set", "distScheduler.shareNodes=true")

	members := c.statefulPods(t, release+"-mem-etcd")
	for _, member := range members {
		member.awaitReady(t)
	}
	schedulers := c.statefulPods(t, release+"-dist-scheduler")
	for _, scheduler := range schedulers {
		scheduler.awaitReady(t)
	}
	t.Run("pods are scheduled", func(t *testing.T) { c.awaitRollout(t) })
	t.Run("store", func(t *testing.T) {
		c.checkStore(t, release+"-mem-etcd-1."+release+"-mem-etcd-members."+namespace+".svc")
	})
	t.Run("proxy", func(t *testing.T) {
		proxy := c.deployedPod(t, release+"-etcd-proxy")
		proxy.awaitReady(t)
		c.checkStore(t, release+"-etcd-proxy."+namespace+".svc")
	})
	t.Run("gateway", c.checkGateway)
	t.Run("controllers", c.checkControllers)
	t.Run("renewal", c.checkRenewal)
	t.Run("upgrade and rollback", func(t *testing.T) { c.checkUpgrade(t, schedulers) })
	if out := c.helm(t, "uninstall", release, "--wait"); !strings.Contains(out, "uninstalled") {
		t.Errorf("helm uninstall printed %q", out)
	}
	left, err := c.client.AppsV1().StatefulSets(namespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	if len(left.Items) > 0 {
		t.Errorf("%d StatefulSets are left after helm uninstall", len(left.Items))
	}
}

// awaitRollout waits until all pods of the release have a node and run, as far as they are simulated.
func (c *cluster) awaitRollout(t *testing.T) {
	t.Helper()
	testcluster.Eventually(t, patience, "all pods run", func() bool {
		pods, err := c.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, pod := range pods.Items {
			if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodSucceeded {
				return false
			}
		}
		// 3 members, 2 schedulers, 2 gateways, the proxy, 2 controller managers, and the Job.
		return len(pods.Items) >= 11
	})
}

// checkStore writes and reads with the client certificate of the release. name is that of a Service or of a pod.
func (c *cluster) checkStore(t *testing.T, name string) {
	directory := filepath.Join(t.TempDir(), "client")
	c.writeSecret(t, directory, release+"-store-client", nil)
	etcdctl := func(args ...string) string {
		flags := []string{"--endpoints", "https://" + name + ":2379", "--cacert", directory + "/ca.crt",
			"--cert", directory + "/tls.crt", "--key", directory + "/tls.key"}
		return c.inRelease(t, "etcdctl", append(flags, args...)...)
	}
	etcdctl("put", "/registry/a", "value")
	if out := etcdctl("get", "--print-value-only", "/registry/a"); strings.TrimSpace(out) != "value" {
		t.Errorf("the store at %s returned %q", name, out)
	}
	if out := etcdctl("member", "list"); strings.Count(out, "\n") != 3 {
		t.Errorf("the store at %s has the members\n%s\nwant three", name, out)
	}
}

// inRelease runs a program with TLS names of the release: the certificate is valid for Services, and not for addresses.
func (c *cluster) inRelease(t *testing.T, program string, args ...string) string {
	t.Helper()
	hosts := filepath.Join(t.TempDir(), "hosts")
	must(t, os.WriteFile(hosts, []byte(strings.Join(c.hosts, "\n")+"\n"), 0o644))
	command := []string{"--mount", "sh", "-c", `mount --bind "$1" /etc/hosts && shift && exec "$@"`, "sh", hosts, filepath.Join(c.Bin, program)}
	out, err := exec.CommandContext(t.Context(), "unshare", append(command, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// checkGateway lists nodes through kube-gateway.
func (c *cluster) checkGateway(t *testing.T) {
	gateway := c.deployedPod(t, release+"-kube-gateway")
	gateway.awaitReady(t)
	out := run(t, nil, "kubectl", "--kubeconfig", c.kubeconfig, "--server", "https://"+gateway.ip+":6443", "--tls-server-name", "localhost",
		"get", "nodes", "-o", "name")
	if nodes := strings.Count(out, "node/"); nodes != 3 {
		t.Errorf("kube-gateway returned %d nodes, want 3:\n%s", nodes, out)
	}
}

// checkControllers waits until warm-controller-manager is a warm standby of the cluster's own ones.
func (c *cluster) checkControllers(t *testing.T) {
	manager := c.deployedPod(t, release+"-warm-controller-manager")
	manager.awaitReady(t)
	token := c.monitorToken(t)
	testcluster.Eventually(t, patience, "the standby is warm", func() bool {
		page, err := manager.get("/metrics", "https", "https", token)
		return err == nil && metric(page, "warm_controller_manager_informers") > 0 &&
			metric(page, "warm_controller_manager_informers") == metric(page, "warm_controller_manager_informers_synced")
	})
}

// checkRenewal runs the CronJob of the certificates, which finds nothing to do.
func (c *cluster) checkRenewal(t *testing.T) {
	cron, err := c.client.BatchV1().CronJobs(namespace).Get(t.Context(), release+"-certificates", metav1.GetOptions{})
	must(t, err)
	job := c.start(t, podOf("renewal", cron.Spec.JobTemplate.Spec.Template), c.address())
	job.awaitSuccess(t)
	text, err := os.ReadFile(job.log)
	must(t, err)
	if !strings.Contains(string(text), "8 of 8 Secrets were up to date") {
		t.Errorf("the CronJob printed %q, want that nothing was to be done", text)
	}
}

// checkUpgrade changes values, and goes back to the old ones.
func (c *cluster) checkUpgrade(t *testing.T, schedulers []*container) {
	workload := func() (set *appsv1.StatefulSet, gateways int32, config string) {
		set, err := c.client.AppsV1().StatefulSets(namespace).Get(t.Context(), release+"-dist-scheduler", metav1.GetOptions{})
		must(t, err)
		gateway, err := c.client.AppsV1().Deployments(namespace).Get(t.Context(), release+"-kube-gateway", metav1.GetOptions{})
		must(t, err)
		data, err := c.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), release+"-dist-scheduler", metav1.GetOptions{})
		must(t, err)
		return set, *gateway.Spec.Replicas, data.Data["config.yaml"]
	}
	before, gateways, config := workload()
	manifest := c.helm(t, "get", "manifest", release)

	changes := set("distScheduler.qps=777", "distScheduler.replicas=3", "kubeGateway.replicas=3")
	flags := append([]string{"upgrade", release, chartDir, "--reuse-values"}, changes...)
	c.helm(t, flags...)
	c.certify(t)
	after, changed, newConfig := workload()
	if *after.Spec.Replicas != 3 || changed != 3 || !strings.Contains(newConfig, "qps: 777") || after.Generation == before.Generation {
		t.Errorf("after the upgrade: %d schedulers, %d gateways, and\n%s", *after.Spec.Replicas, changed, newConfig)
	}
	// The third replica has a certificate, and all accept the configuration.
	for _, old := range schedulers {
		old.stop()
	}
	for _, scheduler := range c.statefulPods(t, release+"-dist-scheduler") {
		scheduler.awaitReady(t)
	}

	c.helm(t, "rollback", release, "1")
	back, gatewaysBack, configBack := workload()
	if *back.Spec.Replicas != *before.Spec.Replicas || gatewaysBack != gateways || configBack != config || c.helm(t, "get", "manifest", release) != manifest {
		t.Errorf("after the rollback: %d schedulers, %d gateways, want those of the first revision", *back.Spec.Replicas, gatewaysBack)
	}
	if out := c.helm(t, "history", release); strings.Count(out, "\n") < 4 || !strings.Contains(out, "Rollback to 1") {
		t.Errorf("helm history printed\n%s", out)
	}
}
