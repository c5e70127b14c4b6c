package through

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509/pkix"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	rbacv1client "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	authzmodes "k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
)

const (
	// comparisons is the number of equal comparisons after which renewals are served.
	comparisons = 2
	// servedResources is the number of resources with a watch cache.
	servedResources = 9
	// readTimeout bounds the time in which the tests' own client is served. In some tests that is not permitted.
	readTimeout = 5 * time.Second
	// warmUpNode is the node whose Lease is renewed until renewals are served.
	warmUpNode = "k1m-warm-up"
	nodePrefix = "system:node:"
	protobuf   = "application/vnd.kubernetes.protobuf"
	// secretsOfPod is the number of Secrets to which one pod refers.
	secretsOfPod = 100
)

// loopbackUser is the user of the client that an API server has for itself, and that tests use.
var loopbackUser = pkix.Name{CommonName: user.APIServerUser, Organization: []string{user.SystemPrivilegedGroup}}

var (
	// authorities has the authority that signs the certificates of users, by the API server that trusts it.
	authorities sync.Map
	// gateways has the gateways with the node path by their addresses.
	gateways sync.Map
)

func manifests() string { return os.Getenv("KUBE_GATEWAY_NODE_PATH") }

func hasNodePath() bool { return manifests() != "" }

// prepareNodePath lets an API server permit the node path, as far as its test leaves that open: the Node authorizer
// decides, the server shows its flags, and it trusts a further CA for client certificates. The Node authorizer allows
// requests of nodes only, so it changes nothing for others.
func prepareNodePath(server *options.ServerRunOptions) error {
	if authorization := server.Authorization; authorization.AuthorizationConfigurationFile == "" && !slices.Contains(authorization.Modes, authzmodes.ModeNode) {
		if len(authorization.Modes) == 0 {
			authorization.Modes = []string{authzmodes.ModeAlwaysAllow}
		}
		authorization.Modes = append([]string{authzmodes.ModeNode}, authorization.Modes...)
	}
	// Otherwise the end of the server waits a minute for the end of the gateway's watches.
	server.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = time.Second
	if server.Flagz == nil {
		server.Flagz = flagz.NamedFlagSetsReader{FlagSets: server.Flags()}
	}
	file := server.Authentication.ClientCert.ClientCA
	if file == "" || server.Authentication.RequestHeader.ClientCAFile == "" {
		// The API server accepts neither certificates of clients nor the gateway's own user.
		return nil
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "gateway-users"}, key)
	if err != nil {
		return err
	}
	// Tests change this file while the server runs, so it must stay the server's.
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text = append(append(text, '\n'), encode("CERTIFICATE", ca.Raw)...)
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	authorities.Store(server, authority{ca, key})
	return nil
}

// configureNodePath turns the node path on, if the API server is prepared for it, and gives the gateway's user its
// permissions.
func (g *gateway) configureNodePath(t TB, client *rest.Config) error {
	users, ok := authorities.LoadAndDelete(g.server)
	if !ok {
		return nil
	}
	g.users = users.(authority)
	if slices.Contains(g.server.Authorization.Modes, authzmodes.ModeRBAC) {
		if err := grant(client); err != nil {
			// Some tests let nobody write.
			t.Logf("k1m: the gateway's user lacks permissions: %v", err)
		}
	}
	transport := g.server.Etcd.StorageConfig.Transport
	endpoint, err := storeURL(t, transport.ServerList[0])
	if err != nil {
		return err
	}
	files := ""
	for field, file := range map[string]string{"caFile": transport.TrustedCAFile, "certFile": transport.CertFile, "keyFile": transport.KeyFile} {
		if file != "" {
			files += fmt.Sprintf(", %s: %q", field, file)
		}
	}
	prefix := "/" + strings.Trim(g.server.Etcd.StorageConfig.Prefix, "/")
	g.nodePath = fmt.Sprintf(`nodePath:
  store: {endpoints: [%q], prefix: %q%s}
  leases: {mode: on, comparisons: %d}
  watches: {mode: on, references: true}
`, endpoint, prefix, files, comparisons)
	return nil
}

// grant creates the roles in the manifests.
func grant(client *rest.Config) error {
	direct, err := kubernetes.NewForConfig(client)
	if err != nil {
		return err
	}
	for _, name := range []string{"node-path.yaml", "watches.yaml", "references.yaml"} {
		file, err := os.Open(filepath.Join(manifests(), name))
		if err != nil {
			return err
		}
		err = createAll(direct, yaml.NewYAMLReader(bufio.NewReader(file)))
		_ = file.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func createAll(client kubernetes.Interface, documents *yaml.YAMLReader) error {
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		if err != nil {
			return err
		}
		err = wait.PollUntilContextTimeout(context.Background(), pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
			err := create(ctx, client.RbacV1(), object)
			if apierrors.IsNotFound(err) {
				// The server has not created the namespace yet.
				return false, nil
			}
			return true, err
		})
		if err != nil {
			return err
		}
	}
}

// create creates a role or binding. It may exist already.
func create(ctx context.Context, client rbacv1client.RbacV1Interface, object runtime.Object) error {
	var err error
	switch object := object.(type) {
	case *rbacv1.ClusterRole:
		_, err = client.ClusterRoles().Create(ctx, object, metav1.CreateOptions{})
	case *rbacv1.ClusterRoleBinding:
		_, err = client.ClusterRoleBindings().Create(ctx, object, metav1.CreateOptions{})
	case *rbacv1.Role:
		_, err = client.Roles(object.Namespace).Create(ctx, object, metav1.CreateOptions{})
	case *rbacv1.RoleBinding:
		_, err = client.RoleBindings(object.Namespace).Create(ctx, object, metav1.CreateOptions{})
	default:
		err = fmt.Errorf("%T is neither a role nor a binding", object)
	}
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Certificate returns the configuration of the same client with a certificate in place of its credentials, if its user
// is known: that of a token in the API server's token file, or a node that the client impersonates. It then waits until
// the gateway serves requests of nodes. Without the node path it returns the configuration as it is.
func Certificate(client *rest.Config) *rest.Config {
	g := gatewayOf(client)
	if g == nil {
		return client
	}
	subject, ok := g.user(client)
	if !ok {
		return client
	}
	config, err := g.kubelet(client, subject)
	if err != nil {
		g.log("k1m: sign the certificate of %s: %v", subject.CommonName, err)
		return client
	}
	g.wait(client)
	return config
}

// gatewayOf returns the gateway that a client uses; nil if it has no node path.
func gatewayOf(client *rest.Config) *gateway {
	found, _ := gateways.Load(strings.TrimPrefix(client.Host, "https://"))
	g, _ := found.(*gateway)
	return g
}

// user returns the user of a client, if it is known.
func (g *gateway) user(client *rest.Config) (pkix.Name, bool) {
	if name := client.Impersonate.UserName; name != "" {
		// Whoever has a certificate is authenticated.
		groups := slices.DeleteFunc(slices.Clone(client.Impersonate.Groups), func(group string) bool { return group == user.AllAuthenticated })
		return pkix.Name{CommonName: name, Organization: groups}, strings.HasPrefix(name, nodePrefix)
	}
	tokens := g.server.Authentication.TokenFile
	if tokens == nil || tokens.TokenFile == "" {
		return pkix.Name{}, false
	}
	file, err := os.Open(tokens.TokenFile)
	if err != nil {
		return pkix.Name{}, false
	}
	defer file.Close()
	reader := csv.NewReader(file)
	reader.FieldsPerRecord = -1
	records, _ := reader.ReadAll()
	for _, record := range records {
		if len(record) > 3 && record[0] == client.BearerToken {
			return pkix.Name{CommonName: record[1], Organization: strings.Split(record[3], ",")}, true
		}
	}
	return pkix.Name{}, false
}

// withCertificate returns a client's configuration with the certificate of a user in place of its credentials.
func (g *gateway) withCertificate(client *rest.Config, subject pkix.Name) (*rest.Config, error) {
	config := rest.CopyConfig(client)
	config.BearerToken, config.Impersonate = "", rest.ImpersonationConfig{}
	var err error
	config.CertData, config.KeyData, err = sign(subject, g.users)
	return config, err
}

// loopback returns the configuration of the tests' own client with a certificate. Only the tests of authentication need its
// token: they add other tokens to this configuration, and a certificate would win.
func (g *gateway) loopback(client *rest.Config) (*rest.Config, error) {
	if directory, err := os.Getwd(); err != nil || filepath.Base(directory) == "auth" {
		return client, err
	}
	config, err := g.withCertificate(client, loopbackUser)
	if err != nil {
		return nil, err
	}
	if err := g.readUntilServed(config); err != nil {
		g.log("k1m: the node path does not serve the tests' own client: %v", err)
	}
	return config, nil
}

// reads are requests that are served if RBAC allows them: the gateway asks an API server at the first one.
var reads = []string{
	"/api/v1/pods?fieldSelector=spec.nodeName=" + warmUpNode,
	"/api/v1/nodes?fieldSelector=metadata.name=" + warmUpNode,
	"/api/v1/services?",
	"/apis/discovery.k8s.io/v1/endpointslices?",
	"/apis/storage.k8s.io/v1/csidrivers?",
	"/apis/node.k8s.io/v1/runtimeclasses?",
}

// readUntilServed lists and watches each resource until the gateway forwards none of these requests. They are not counted.
func (g *gateway) readUntilServed(config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	last, err := g.page("/metrics")
	for err == nil {
		for _, path := range reads {
			for _, verb := range []string{"", "&watch=true&timeoutSeconds=1"} {
				if body, err := client.CoreV1().RESTClient().Get().RequestURI(path + "&resourceVersion=0" + verb).Stream(ctx); err == nil {
					_ = body.Close()
				}
			}
		}
		var page string
		if page, err = g.page("/metrics"); err == nil && sum(page, forwardedReads) == sum(last, forwardedReads) {
			g.uncounted = counts(page)
			return nil
		}
		last = page
		if ctx.Err() != nil {
			return fmt.Errorf("%w; rules that refuse it: %s", ctx.Err(), refused.FindAllString(page, -1))
		}
		time.Sleep(pollInterval)
	}
	return err
}

// kubelet returns the configuration of a client that encodes as a kubelet does.
func (g *gateway) kubelet(client *rest.Config, subject pkix.Name) (*rest.Config, error) {
	config, err := g.withCertificate(client, subject)
	if err != nil {
		return nil, err
	}
	config.ContentType, config.AcceptContentTypes = protobuf, protobuf+",application/json"
	return config, nil
}

// wait waits, at the first call, until the gateway serves requests of nodes. What it sends for that is not counted.
func (g *gateway) wait(client *rest.Config) {
	g.warmUp.Do(func() {
		config, err := g.kubelet(client, pkix.Name{CommonName: nodePrefix + warmUpNode, Organization: []string{user.NodesGroup}})
		if err == nil {
			err = g.renewUntilServing(config)
		}
		if err != nil {
			g.log("k1m: the node path does not serve: %v", err)
		}
		if page, err := g.page("/metrics"); err == nil {
			g.uncounted = counts(page)
		}
	})
}

// renewUntilServing renews a Lease until renewals are served and all watch caches serve.
func (g *gateway) renewUntilServing(config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	holder := warmUpNode
	lease, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: warmUpNode},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for ; ctx.Err() == nil; time.Sleep(pollInterval) {
		page, err := g.page("/metrics")
		if err != nil {
			return err
		}
		if sum(page, leaseState) == 2 && sum(page, cachesServing) == servedResources {
			return leases.Delete(ctx, warmUpNode, metav1.DeleteOptions{})
		}
		now := metav1.NowMicro()
		lease.Spec.RenewTime = &now
		if lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	page, _ := g.page("/metrics")
	return fmt.Errorf("%w; rules that refuse it: %s", ctx.Err(), refused.FindAllString(page, -1))
}

// Metrics of the gateway.
var (
	leaseState     = regexp.MustCompile(`(?m)^kube_gateway_node_path_lease_state (\d+)`)
	cachesServing  = regexp.MustCompile(`(?m)^kube_gateway_node_path_cache_serving\{.* (\d+)`)
	references     = regexp.MustCompile(`(?m)^kube_gateway_node_path_references\{.* (\d+)`)
	forwardedReads = regexp.MustCompile(`(?m)^kube_gateway_node_path_reads_total\{.*result="forwarded".* (\d+)`)
	refused        = regexp.MustCompile(`(?m)^kube_gateway_node_path_refused\{.* 1$`)
)

// counters are the counts in the report on a gateway, in their order.
var counters = []struct {
	name   string
	sample *regexp.Regexp
}{
	{"renewals", regexp.MustCompile(`(?m)^kube_gateway_node_path_lease_renewals_total\{reason="",.* (\d+)`)},
	{"lists", regexp.MustCompile(`(?m)^kube_gateway_node_path_reads_total\{reason="",.*result="served",verb="list"\} (\d+)`)},
	{"watches", regexp.MustCompile(`(?m)^kube_gateway_node_path_reads_total\{reason="",.*result="served",verb="watch"\} (\d+)`)},
	{"continued", regexp.MustCompile(`(?m)^kube_gateway_node_path_reads_total\{reason="",.*result="continued",.* (\d+)`)},
	{"events", regexp.MustCompile(`(?m)^kube_gateway_node_path_events_total (\d+)`)},
	{"forwarded", regexp.MustCompile(`(?m)^kube_gateway_node_path_(?:reads|lease_renewals)_total\{.*result="forwarded".* (\d+)`)},
}

// sum returns the sum of all samples that match.
func sum(page string, sample *regexp.Regexp) int {
	sum := 0
	for _, match := range sample.FindAllStringSubmatch(page, -1) {
		value, _ := strconv.Atoi(match[1])
		sum += value
	}
	return sum
}

func counts(page string) []int {
	var counts []int
	for _, counter := range counters {
		counts = append(counts, sum(page, counter.sample))
	}
	return counts
}

// served describes how many requests the node path served. served.awk reads it.
func (g *gateway) served(page string) string {
	text := ""
	for i, count := range counts(page) {
		if g.uncounted != nil {
			count -= g.uncounted[i]
		}
		text += fmt.Sprintf(" %s=%d", counters[i].name, count)
	}
	return text[1:]
}

// Kubelet returns the configuration of a client of a node's kubelet.
func Kubelet(client *rest.Config, node string) *rest.Config {
	config := rest.CopyConfig(client)
	config.Impersonate = rest.ImpersonationConfig{UserName: nodePrefix + node, Groups: []string{user.NodesGroup}}
	return Certificate(config)
}

// ReferToSecrets creates pods of a node that refer to the Secrets s0, s1, … of a namespace, and waits until the gateway
// knows: a kubelet may read only what its pods refer to.
func ReferToSecrets(ctx context.Context, config *rest.Config, namespace, node string, count int) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for first := 0; first < count; first += secretsOfPod {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("refers-%d", first)},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		for i := first; i < min(first+secretsOfPod, count); i++ {
			pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: fmt.Sprintf("s%d", i)})
		}
		if _, err := client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	g := gatewayOf(config)
	if g == nil {
		return nil
	}
	return wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(context.Context) (bool, error) {
		page, err := g.page("/metrics")
		return sum(page, references) >= count, err
	})
}
