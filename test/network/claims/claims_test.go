// Package claims tests claims of prefixes in a cluster with a real API server, with the permissions of deploy/network/claims.yaml.
package claims

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/k8s-1m/k8s-1m/internal/network/address"
	"github.com/k8s-1m/k8s-1m/internal/network/claim"
	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

const (
	reuseAfter = time.Hour
	patience   = 2 * time.Minute
)

var (
	first     = netip.MustParsePrefix("2001:db8:5:0:0:1::/96")
	pool      = netip.MustParsePrefix("2001:db8:6::/64")
	strangers = netip.MustParsePrefix("2001:db8:8::/64")
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestClaims(t *testing.T) {
	c := testcluster.New(t, "claims", "k1m", "mem_etcd", "kube-apiserver", "kwok", "kubectl")
	c.Up(t, "--nodes", "2", "--without", "kube-controller-manager", "--without", "scheduler")
	kubectl(t, &c, "apply", "-f", "../../../deploy/network/claims.yaml")
	store := func(node string) claim.Store {
		t.Helper()
		s, err := claim.NewKubernetes(user(t, &c, "network-agent:"+node), claim.DefaultNamespace)
		must(t, err)
		return s
	}
	// The policy and the permissions take effect a moment after they were written.
	eventually(t, func() error { return claim.Take(t.Context(), store("node-000000"), first, "node-000000", reuseAfter) })
	tries := uint64(0)
	eventually(t, func() error {
		// An attempt that succeeds leaves its claim, so each one has another prefix.
		tries++
		prefix, err := address.Subnet(strangers, 96, tries)
		must(t, err)
		if err := claim.Take(t.Context(), store("node-000001"), prefix, "node-000000", reuseAfter); err == nil {
			return errors.New("an agent has claimed a prefix for another node")
		} else if !strings.Contains(err.Error(), "only for its own node") {
			return err
		}
		return nil
	})
	var held *claim.HeldError
	if err := claim.Take(t.Context(), store("node-000001"), first, "node-000001", reuseAfter); !errors.As(err, &held) || !held.Free.IsZero() || held.Claim.Node != "node-000000" {
		t.Errorf("a prefix of another node: %v", err)
	}
	seize(t, store("node-000001"), "node-000001")
	must(t, claim.Release(t.Context(), store("node-000000"), first, "node-000000"))
	if err := claim.Take(t.Context(), store("node-000001"), first, "node-000001", reuseAfter); !errors.As(err, &held) || held.Free.IsZero() {
		t.Errorf("a prefix that was just released: %v", err)
	}
	must(t, claim.Take(t.Context(), store("node-000001"), first, "node-000001", 0))
	t.Run("deleted-node", func(t *testing.T) { deletedNode(t, &c, store) })
	t.Run("race", func(t *testing.T) { race(t, store) })
}

// seize writes claims that an agent must not write, although it may write Leases: the API server refuses them.
func seize(t *testing.T, store claim.Store, node string) {
	t.Helper()
	for name, change := range map[string]func(*claim.Claim) (*claim.Claim, error){
		"takes the prefix that another node holds": func(c *claim.Claim) (*claim.Claim, error) {
			return &claim.Claim{Node: node, Since: c.Since}, nil
		},
		"takes it and marks it as released": func(c *claim.Claim) (*claim.Claim, error) {
			return &claim.Claim{Node: node, Since: c.Since, Released: time.Now()}, nil
		},
		"gives it to a third node": func(c *claim.Claim) (*claim.Claim, error) {
			return &claim.Claim{Node: "node-000002", Since: c.Since, Released: time.Now()}, nil
		},
		"changes a claim of another node": func(c *claim.Claim) (*claim.Claim, error) {
			return &claim.Claim{Node: c.Node, Since: c.Since.Add(-time.Hour)}, nil
		},
	} {
		err := store.Update(t.Context(), first, change)
		if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			t.Errorf("an agent that %s: %v", name, err)
		}
	}
}

// The prefix of a node that was deleted is free after some time.
func deletedNode(t *testing.T, c *testcluster.Cluster, store func(string) claim.Store) {
	before, err := claim.Assign(t.Context(), store("node-000000"), pool, 96, "node-000000", netip.Prefix{}, reuseAfter)
	must(t, err)
	kubectl(t, c, "delete", "node", "node-000000")
	var held *claim.HeldError
	if err := claim.Take(t.Context(), store("node-000001"), before, "node-000001", reuseAfter); !errors.As(err, &held) || held.Free.IsZero() {
		t.Errorf("the prefix of a node that was deleted: %v", err)
	}
	must(t, claim.Take(t.Context(), store("node-000001"), before, "node-000001", 0))
}

// Of many nodes that claim one prefix at the same time, one gets it.
func race(t *testing.T, store func(string) claim.Store) {
	prefix := netip.MustParsePrefix("2001:db8:7::/96")
	var wait sync.WaitGroup
	var mu sync.Mutex
	winners := 0
	for _, node := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		s := holderExists{store(node)}
		wait.Go(func() {
			err := claim.Take(t.Context(), s, prefix, node, reuseAfter)
			var held *claim.HeldError
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				winners++
			} else if !errors.As(err, &held) {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if winners != 1 {
		t.Errorf("%d nodes got the prefix", winners)
	}
}

// holderExists is a store of nodes without Node objects.
type holderExists struct{ claim.Store }

func (holderExists) Exists(context.Context, string) (bool, error) { return true, nil }

// user returns the configuration of a client with a certificate of an agent.
func user(t *testing.T, c *testcluster.Cluster, name string) *rest.Config {
	t.Helper()
	certificate := c.ClientCertificate(t, name, "k1m:network-agents")
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	must(t, err)
	config := rest.AnonymousClientConfig(testcluster.Admin(t, c.Kubeconfig(t), c.Servers[0]))
	config.CertData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})
	config.KeyData = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	return config
}

func kubectl(t *testing.T, c *testcluster.Cluster, args ...string) {
	t.Helper()
	args = append([]string{"--kubeconfig", c.Kubeconfig(t)}, args...)
	if out, err := exec.CommandContext(t.Context(), filepath.Join(c.Bin, "kubectl"), args...).CombinedOutput(); err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
}

// eventually calls a function until it returns no error.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
