package detection

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	// limit is how long a rule may be true before it refuses.
	limit = time.Second
	// slowness is how late answers of a slow API server are. Lists every two seconds still show that nothing is older than five.
	slowness = 2200 * time.Millisecond
	// slowTime is for how long an API server is slow: each is examined twice meanwhile.
	slowTime = 25 * time.Second
	// shownLines is how much of the log is shown.
	shownLines = 20
	// changes is how often a change is made at most, until it is noticed within limit. On a busy machine it may take longer now and then.
	changes = 6
)

const (
	matchesAll  = "{apiGroups: ['*'], apiVersions: ['*'], operations: ['*'], resources: ['*/*']}"
	matchesPods = "{apiGroups: [''], apiVersions: [v1], operations: ['*'], resources: [pods]}"
	webhook     = `
webhooks:
- name: w.example.com
  rules: [%s]
  clientConfig: {url: 'https://127.0.0.1:1/'}
  failurePolicy: Ignore
  sideEffects: None
  admissionReviewVersions: [v1]
  timeoutSeconds: 1
`
	validatingPolicy = `
spec:
  failurePolicy: Ignore
  matchConstraints: {resourceRules: [%s], namespaceSelector: %s}
  validations: [{expression: 'true'}]
`
	mutatingPolicy = `
spec:
  failurePolicy: Ignore
  reinvocationPolicy: Never
  matchConstraints: {resourceRules: [%s]}
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: 'Object{}'}}]
`
	everywhere = "{}"
	labelled   = "{matchLabels: {watched: 'true'}}"
)

// object is an object that a test creates.
type object struct {
	kind, resource, content string
	rule                    string // empty if the object is harmless
}

// TestDetection adds each rule to a running cluster.
func TestDetection(t *testing.T) {
	c := newCluster(t)
	// k1m gives every cluster the permissions.
	c.kubectl(t, "", "delete", "clusterrolebinding", "system:kube-gateway:node-path", "--ignore-not-found")
	c.startGateway(t, "/registry")
	c.waitFor(t, startTimeout, "the gateway may not list anything", refusedBy("stale"))
	manifest, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "kube-gateway", "node-path.yaml"))
	must(t, err)
	c.kubectl(t, string(manifest), "apply", "-f", "-")
	c.waitFor(t, startTimeout, "the node path is permitted", permitted)

	t.Run("objects", func(t *testing.T) { testObjects(t, c) })
	t.Run("namespace", func(t *testing.T) { testNamespaceLabels(t, c) })
	t.Run("flags", func(t *testing.T) { testFlags(t, c) })
	t.Run("restart", func(t *testing.T) { testRestart(t, c) })
	t.Run("slow", func(t *testing.T) { testSlow(t, c) })
	t.Run("suspended", func(t *testing.T) { testSuspended(t, c) })
	t.Run("permissions", func(t *testing.T) { testPermissions(t, c) })
	t.Run("store", func(t *testing.T) { testStoreCredential(t, c) })
	t.Run("prefix", func(t *testing.T) {
		c.stopGateway()
		c.startGateway(t, "/other")
		c.waitFor(t, startTimeout, "another prefix refuses", refusedBy("storage"))
		if leaseReadsPermitted(c.page()) {
			t.Error("reads of Leases are permitted")
		}
	})
}

func testObjects(t *testing.T, c *cluster) {
	for _, o := range []object{
		{"ValidatingWebhookConfiguration", "validatingwebhookconfigurations", fmt.Sprintf(webhook, matchesAll), "webhook"},
		{"MutatingWebhookConfiguration", "mutatingwebhookconfigurations", fmt.Sprintf(webhook, matchesAll), "webhook"},
		{"ValidatingAdmissionPolicy", "validatingadmissionpolicies", fmt.Sprintf(validatingPolicy, matchesAll, everywhere), "admission-policy"},
		{"MutatingAdmissionPolicy", "mutatingadmissionpolicies", fmt.Sprintf(mutatingPolicy, matchesAll), "admission-policy"},
		{"ValidatingWebhookConfiguration", "validatingwebhookconfigurations", fmt.Sprintf(webhook, matchesPods), ""},
		{"ValidatingAdmissionPolicy", "validatingadmissionpolicies", fmt.Sprintf(validatingPolicy, matchesPods, everywhere), ""},
	} {
		client := c.dynamic(t).Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: o.resource})
		noticed(t, "a "+o.kind, func() time.Duration {
			_, err := client.Create(t.Context(), parse(t, o), metav1.CreateOptions{})
			must(t, err)
			took := time.Duration(0)
			if o.rule == "" {
				c.mustNotRefuse(t, 2*limit)
			} else {
				took = c.waitFor(t, startTimeout, "a "+o.kind+" refuses", refusedBy(o.rule))
			}
			must(t, client.Delete(t.Context(), "test", metav1.DeleteOptions{}))
			c.waitFor(t, startTimeout, "without the "+o.kind+" the node path is permitted", permitted)
			return took
		})
	}
}

// noticed makes a change until it is noticed within limit. change returns how long that took.
func noticed(t *testing.T, what string, change func() time.Duration) {
	t.Helper()
	least := startTimeout
	for range changes {
		took := change()
		t.Logf("%s: noticed after %v", what, took.Round(time.Millisecond))
		if least = min(least, took); least <= limit {
			return
		}
	}
	t.Errorf("%s: noticed after %v and more, want at most %v", what, least, limit)
}

func parse(t *testing.T, o object) *unstructured.Unstructured {
	t.Helper()
	content := "apiVersion: admissionregistration.k8s.io/v1\nkind: " + o.kind + "\nmetadata: {name: test}" + o.content
	fields := map[string]any{}
	must(t, yaml.Unmarshal([]byte(content), &fields))
	return &unstructured.Unstructured{Object: fields}
}

func (c *cluster) dynamic(t *testing.T) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(c.admin(t, c.Servers[1]))
	must(t, err)
	return client
}

// mustNotRefuse checks for a while that no object refuses, and that the node path is permitted then. On a busy machine, the watches are
// stale now and then.
func (c *cluster) mustNotRefuse(t *testing.T, duration time.Duration) {
	t.Helper()
	for start := time.Now(); time.Since(start) < duration; time.Sleep(20 * time.Millisecond) {
		if page := c.page(); refusedBy("webhook")(page) || refusedBy("admission-policy")(page) {
			t.Fatalf("refused after %v:\n%s", time.Since(start), c.nodePathMetrics())
		}
	}
	c.waitFor(t, startTimeout, "the node path is permitted", permitted)
}

// testNamespaceLabels makes a policy apply by a label of the namespace.
func testNamespaceLabels(t *testing.T, c *cluster) {
	resource := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}
	policy := object{kind: "ValidatingAdmissionPolicy", content: fmt.Sprintf(validatingPolicy, matchesAll, labelled)}
	_, err := c.dynamic(t).Resource(resource).Create(t.Context(), parse(t, policy), metav1.CreateOptions{})
	must(t, err)
	c.mustNotRefuse(t, limit)
	noticed(t, "a label of the namespace", func() time.Duration {
		c.kubectl(t, "", "label", "namespace", "kube-node-lease", "watched=true")
		took := c.waitFor(t, startTimeout, "a label makes the policy apply", refusedBy("admission-policy"))
		c.kubectl(t, "", "label", "namespace", "kube-node-lease", "watched-")
		c.waitFor(t, startTimeout, "without the label the policy does not apply", permitted)
		return took
	})
	must(t, c.dynamic(t).Resource(resource).Delete(t.Context(), "test", metav1.DeleteOptions{}))
}

// testFlags adds an API server with each flag. When the gateway uses it, the node path must be refused.
func testFlags(t *testing.T, c *cluster) {
	audit, admission := c.file("audit.yaml"), c.file("admission.yaml")
	must(t, os.WriteFile(audit, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600))
	must(t, os.WriteFile(admission, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: []\n"), 0o600))
	encryption := c.file("encryption.yaml")
	// Not Leases: the API server writes one about itself, which the others could not read.
	must(t, os.WriteFile(encryption, []byte(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [runtimeclasses.node.k8s.io]
  providers: [{aescbc: {keys: [{name: k, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}}, {identity: {}}]
`), 0o600))
	for _, test := range []struct {
		flag, rule string
		// reads is whether watches and lists of kubelets may be served.
		reads bool
	}{
		{"", "", true},
		{"--audit-policy-file=" + audit, "audit", false},
		{"--admission-control-config-file=" + admission, "admission-config", true},
		{"--encryption-provider-config=" + encryption, "encryption", true},
		{"--authorization-mode=RBAC", "authorization", false},
		{"--storage-media-type=application/json", "storage", true},
	} {
		address, stop := c.startServer(t, test.flag)
		c.writeConfiguration(t, append(c.Servers[:2:2], address), "/registry")
		ready := fmt.Sprintf("kube_gateway_server_ready{server=%q} 1\n", address)
		c.waitFor(t, startTimeout, "the API server is ready", func(page string) bool { return strings.Contains(page, ready) })
		if test.rule == "" {
			c.waitFor(t, startTimeout, "a third API server is permitted", permitted)
		} else {
			took := c.waitFor(t, startTimeout, test.flag+" refuses", refused)
			t.Logf("%s: refused %v after the first use", test.flag, took.Round(time.Millisecond))
			c.waitFor(t, startTimeout, "the reason is known", refusedBy(test.rule))
			time.Sleep(limit)
			if !refusedBy(test.rule)(c.page()) {
				t.Errorf("%s does not refuse for long", test.flag)
			}
			// On a busy machine, no reads are permitted now and then.
			leaseReads := test.reads && test.rule != "encryption" && test.rule != "storage"
			what := fmt.Sprintf("%s: reads are permitted: %v, and those of Leases: %v", test.flag, test.reads, leaseReads)
			c.waitFor(t, startTimeout, what, func(page string) bool {
				return page != "" && readsPermitted(page) == test.reads && leaseReadsPermitted(page) == leaseReads
			})
		}
		c.writeConfiguration(t, c.Servers, "/registry")
		c.waitFor(t, startTimeout, "without the API server the node path is permitted", permitted)
		c.waitFor(t, startTimeout, "without the API server reads are permitted", readsPermitted)
		stop()
	}
}

// startServer starts another API server with the arguments of the first one and another value of a flag. It ends with the test,
// or when the function is called.
func (c *cluster) startServer(t *testing.T, flag string) (string, func()) {
	t.Helper()
	first := c.Named(t, "kube-apiserver")
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", first.PID))
	must(t, err)
	address := testcluster.FreeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	args := []string{"--secure-port=" + port}
	if flag != "" {
		args = append(args, flag)
	}
	changed := func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return slices.ContainsFunc(args, func(other string) bool { return strings.HasPrefix(other, name+"=") })
	}
	rest := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")[1:]
	args = append(args, slices.DeleteFunc(rest, changed)...)
	log, err := os.Create(c.file("apiserver-" + port + ".log"))
	must(t, err)
	process := exec.Command(filepath.Join(c.Bin, "kube-apiserver"), args...)
	process.Stderr = log
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, process.Start())
	stop := func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	}
	t.Cleanup(stop)
	return address, stop
}

// testRestart kills an API server. A process at the same address could have other flags.
func testRestart(t *testing.T, c *cluster) {
	must(t, syscall.Kill(c.Named(t, "kube-apiserver-1").PID, syscall.SIGKILL))
	ready := fmt.Sprintf("kube_gateway_server_ready{server=%q} 1\n", c.Servers[1])
	c.waitFor(t, startTimeout, "the node path is refused, or the killed API server is not in use", func(page string) bool {
		return refused(page) || !strings.Contains(page, ready)
	})
	c.waitFor(t, startTimeout, "the other API server is enough", permitted)
	refusals := 0
	c.waitFor(t, startTimeout, "the new process is permitted", func(page string) bool {
		if strings.Contains(page, ready) && refused(page) {
			refusals++
		}
		return permitted(page) && strings.Contains(page, ready)
	})
	t.Logf("the new process was in use and refused on %d pages", refusals)
}

// testSlow makes the answers of both API servers late, which does not refuse, and then so late that nothing is known any more.
func testSlow(t *testing.T, c *cluster) {
	var proxies []*testcluster.Proxy
	var addresses []string
	for _, server := range c.Servers {
		proxy := testcluster.NewProxy(t, server)
		proxies, addresses = append(proxies, proxy), append(addresses, proxy.Address)
	}
	delay := func(delay time.Duration) {
		for _, proxy := range proxies {
			proxy.Delay(delay)
		}
	}
	c.useServers(t, addresses)
	refusals := 0
	// On a busy machine, it may be refused now and then.
	for range 3 {
		delay(slowness)
		refusals = 0
		for start := time.Now(); time.Since(start) < slowTime; time.Sleep(20 * time.Millisecond) {
			if page := c.page(); refused(page) || page != "" && !readsPermitted(page) {
				refusals++
			}
		}
		delay(0)
		c.waitFor(t, startTimeout, "fast API servers are permitted", permitted)
		if refusals == 0 {
			break
		}
		t.Logf("slow API servers were refused on %d pages:\n%s", refusals, c.logged())
	}
	if refusals > 0 {
		t.Error("slow API servers are refused each time")
	}
	delay(time.Minute)
	c.waitFor(t, startTimeout, "API servers that do not answer are refused", refused)
	delay(0)
	c.useServers(t, c.Servers)
}

// useServers exchanges the API servers, and waits until all others are examined.
func (c *cluster) useServers(t *testing.T, addresses []string) {
	t.Helper()
	c.writeConfiguration(t, addresses, "/registry")
	c.waitFor(t, startTimeout, "the API servers are ready", func(page string) bool {
		return !slices.ContainsFunc(addresses, func(address string) bool {
			return !strings.Contains(page, fmt.Sprintf("kube_gateway_server_ready{server=%q} 1\n", address))
		})
	})
	// What was permitted before counts until the next judgement.
	time.Sleep(limit)
	c.waitFor(t, startTimeout, "the API servers are permitted", func(page string) bool { return permitted(page) && readsPermitted(page) })
}

// logged returns what the detection has logged.
func (c *cluster) logged() string {
	log, _ := os.ReadFile(c.file("gateway.log"))
	var lines []string
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "node_path::detect") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-shownLines):], "")
}

// testSuspended suspends both API servers, so that the watches stand still.
func testSuspended(t *testing.T, c *cluster) {
	// Of a suspended API server, k1m would say so only after a while.
	for _, pid := range []int{c.Named(t, "kube-apiserver").PID, c.Named(t, "kube-apiserver-1").PID} {
		must(t, syscall.Kill(pid, syscall.SIGSTOP))
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	}
	took := c.waitFor(t, startTimeout, "watches that stand still refuse", refused)
	t.Logf("refused after %v", took.Round(time.Millisecond))
}

// testPermissions takes the gateway's permission to watch away.
func testPermissions(t *testing.T, c *cluster) {
	c.waitFor(t, startTimeout, "the node path is permitted", permitted)
	c.kubectl(t, "", "delete", "clusterrolebinding", "system:kube-gateway:node-path")
	c.waitFor(t, startTimeout, "without the permission the watches are stale", refusedBy("stale"))
	manifest, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", "kube-gateway", "node-path.yaml"))
	must(t, err)
	c.kubectl(t, string(manifest), "apply", "-f", "-")
	c.waitFor(t, startTimeout, "the node path is permitted", permitted)
}

// testStoreCredential calls the store with the gateway's certificate.
func testStoreCredential(t *testing.T, c *cluster) {
	certificate, err := tls.LoadX509KeyPair(c.storeCertificate, c.storeKey)
	must(t, err)
	ca, err := os.ReadFile(c.PKI("etcd/ca.crt"))
	must(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	transport := credentials.NewTLS(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{certificate}})
	conn, err := grpc.NewClient(strings.TrimPrefix(c.Named(t, "store").Address, "https://"), grpc.WithTransportCredentials(transport))
	must(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	kv := pb.NewKVClient(conn)
	if response, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte(leasePrefix + "kube-gateway-storage-probe")}); err != nil || len(response.Kvs) != 1 {
		t.Errorf("the probe is %v (error %v), want one key", response, err)
	}
	for _, key := range []string{"/registry/pods/", "/registry/leases/kube-system/x", "\x00"} {
		_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte{0}})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("a range from %q is not denied: %v", key, err)
		}
		if _, err := kv.Put(ctx, &pb.PutRequest{Key: []byte(key)}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("a put of %q is not denied: %v", key, err)
		}
	}
}
