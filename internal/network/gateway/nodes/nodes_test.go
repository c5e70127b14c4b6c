package nodes

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/k8s-1m/k8s-1m/internal/network/claim"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/registry"
)

// sink keeps nodes.
type sink struct {
	mu    sync.Mutex
	nodes map[string]registry.Node
}

func (s *sink) SetNode(n registry.Node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[n.Name] = n
	if n.Name == "refused" {
		return errors.New("refused")
	}
	return nil
}

func (s *sink) DeleteNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, name)
}

func (s *sink) Names() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.nodes {
		names = append(names, name)
	}
	return names
}

func (s *sink) prefixes(name string) []netip.Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[name].Prefixes
}

func newSink(names ...string) *sink {
	s := &sink{nodes: map[string]registry.Node{}}
	for _, name := range names {
		s.nodes[name] = registry.Node{Name: name}
	}
	return s
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("condition does not hold after a minute")
		}
	}
}

func prefixes(texts ...string) (parsed []netip.Prefix) {
	for _, text := range texts {
		parsed = append(parsed, netip.MustParsePrefix(text))
	}
	return parsed
}

func TestFileThatChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nodes")
	write := func(content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`[{"name": "a", "prefixes": ["2001:db8:1::5/96"]}, {"name": "refused", "prefixes": []}]`)
	s := newSink("former")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- FromFile(ctx, path, time.Millisecond, s, quiet) }()
	eventually(t, func() bool { return reflect.DeepEqual(s.prefixes("a"), prefixes("2001:db8:1::/96")) })
	write("- name: [")
	time.Sleep(20 * time.Millisecond) // the nodes must not go meanwhile
	if s.prefixes("a") == nil {
		t.Error("a damaged file has removed nodes")
	}
	write("- name: b\n  prefixes: [2001:db8:2::/96]\n")
	eventually(t, func() bool { return reflect.DeepEqual(s.Names(), []string{"b"}) })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := FromFile(t.Context(), path+"-missing", time.Second, s, quiet); err == nil {
		t.Error("a missing file is no error")
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	for content, want := range map[string]string{
		"- name: a\n- name: a\n":                        "used twice",
		"- prefixes: [2001:db8::/96]\n":                 "empty",
		"- name: a\n  prefixes: [10.0.0.0/8]\n":         "not an IPv6 prefix",
		"- name: a\n  prefix: 2001:db8::/96\n":          "unknown field",
		"name: a\n":                                     "cannot unmarshal",
		"- name: a\n  prefixes: [\"2001:db8::/129\"]\n": "not an IPv6 prefix",
	} {
		if _, err := Parse([]byte(content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", content, err, want)
		}
	}
}

func kubernetesNode(name string, change func(*core.Node)) *core.Node {
	n := &core.Node{ObjectMeta: meta.ObjectMeta{Name: name}, Spec: core.NodeSpec{PodCIDRs: []string{"10.1.0.0/24", "2001:db8:1::/96"}}}
	if change != nil {
		change(n)
	}
	return n
}

func TestAddressesOfANode(t *testing.T) {
	const annotation = "example.com/prefix"
	n := kubernetesNode("a", func(n *core.Node) {
		n.Annotations = map[string]string{annotation: "2001:db8:7::/80, 2001:db8:1::/96,garbage"}
		n.Status.Addresses = []core.NodeAddress{
			{Type: core.NodeInternalIP, Address: "2001:db8:ff::1"}, {Type: core.NodeInternalIP, Address: "192.0.2.1"},
			{Type: core.NodeHostName, Address: "2001:db8:ff::2"}, {Type: core.NodeInternalIP, Address: "fe80::1"},
			{Type: core.NodeExternalIP, Address: "2001:db8:7::9"},
		}
	})
	got, err := convert(n, annotation, prefixes("2001:db8:3::/96"))
	if want := prefixes("2001:db8:3::/96", "2001:db8:1::/96", "2001:db8:7::/80", "2001:db8:ff::1/128"); !reflect.DeepEqual(got.Prefixes, want) {
		t.Errorf("prefixes %v; want %v", got.Prefixes, want)
	}
	if err == nil || !strings.Contains(err.Error(), "garbage") {
		t.Errorf("error %v", err)
	}
	if got, err := convert(n, "", nil); err != nil || len(got.Prefixes) != 3 {
		t.Errorf("without the annotation: %v, %v", got.Prefixes, err)
	}
	if got, _ := convert(&core.Node{Status: n.Status}, "", nil); len(got.Prefixes) != 0 {
		t.Errorf("a node without a prefix: %v", got.Prefixes)
	}
}

// claimLease is the Lease with which a node claims a prefix.
func claimLease(node string, change func(*coordination.Lease)) *coordination.Lease {
	since := meta.NewMicroTime(time.Unix(1, 0))
	l := &coordination.Lease{
		ObjectMeta: meta.ObjectMeta{Name: "prefix-20010db8000500000000000100000000-96", Namespace: claim.DefaultNamespace},
		Spec:       coordination.LeaseSpec{HolderIdentity: &node, AcquireTime: &since},
	}
	if change != nil {
		change(l)
	}
	return l
}

func TestClaimsOfPrefixes(t *testing.T) {
	bare := func(n *core.Node) { n.Spec.PodCIDRs = nil }
	client := fake.NewClientset(kubernetesNode("a", bare), kubernetesNode("b", bare), claimLease("a", nil))
	s := newSink()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- FromKubernetes(ctx, client, Options{ClaimsNamespace: claim.DefaultNamespace}, s, quiet)
	}()
	want := prefixes("2001:db8:5:0:0:1::/96")
	eventually(t, func() bool { return reflect.DeepEqual(s.prefixes("a"), want) && len(s.Names()) == 2 })
	api := client.CoordinationV1().Leases(claim.DefaultNamespace)
	released := func(l *coordination.Lease) {
		l.Annotations = map[string]string{"network.k8s-1m.dev/released": "2026-01-01T00:00:00Z"}
	}
	if _, err := api.Update(ctx, claimLease("a", released), meta.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(s.prefixes("a")) == 0 })
	if _, err := api.Update(ctx, claimLease("b", nil), meta.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return reflect.DeepEqual(s.prefixes("b"), want) })
	if err := api.Delete(ctx, claimLease("b", nil).Name, meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(s.prefixes("b")) == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWatchOfACluster(t *testing.T) {
	client := fake.NewClientset(kubernetesNode("a", nil))
	s := newSink("deleted while the gateway was down")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- FromKubernetes(ctx, client, Options{}, s, quiet) }()
	eventually(t, func() bool { return reflect.DeepEqual(s.Names(), []string{"a"}) })
	api := client.CoreV1().Nodes()
	if _, err := api.Create(ctx, kubernetesNode("b", nil), meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(s.Names()) == 2 })
	changed := kubernetesNode("b", func(n *core.Node) { n.Spec.PodCIDRs = []string{"2001:db8:9::/96"} })
	if _, err := api.Update(ctx, changed, meta.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return reflect.DeepEqual(s.prefixes("b"), prefixes("2001:db8:9::/96")) })
	if err := api.Delete(ctx, "a", meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return reflect.DeepEqual(s.Names(), []string{"b"}) })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A node in memory has what convert reads, and nothing else.
func TestNodesInMemoryAreSmall(t *testing.T) {
	n := kubernetesNode("a", func(n *core.Node) {
		n.Annotations = map[string]string{"prefix": "2001:db8:7::/80", "volumes": strings.Repeat("x", 1000)}
		n.Labels = map[string]string{"a": "b"}
		n.Status.Addresses = []core.NodeAddress{{Type: core.NodeInternalIP, Address: "2001:db8:ff::1"}}
		n.Status.Images = []core.ContainerImage{{Names: []string{"image"}}}
	})
	stripped, ok := strip(n, "prefix").(*core.Node)
	if !ok || len(stripped.Annotations) != 1 || stripped.Labels != nil || stripped.Status.Images != nil {
		t.Fatalf("in memory is %+v", stripped)
	}
	want, _ := convert(n, "prefix", nil)
	if got, err := convert(stripped, "prefix", nil); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("converted %+v, %v; want %+v", got, err, want)
	}
	if deleted := (cache.DeletedFinalStateUnknown{Key: "a"}); strip(deleted, "prefix") != any(deleted) {
		t.Error("another object has changed")
	}
}
