package webhook

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
)

const (
	name = "test-intake"
	host = "127.0.0.1"
)

// calendar is a clock that the test sets.
type calendar struct{ time.Time }

func (c *calendar) now() time.Time { return c.Time }

func (c *calendar) pass(d time.Duration) { c.Time = c.Add(d) }

func ensured(t *testing.T, client kubernetes.Interface, c *calendar) *authority {
	t.Helper()
	a := newAuthority(client, name, host, c.now)
	if err := a.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

// trusted reports whether a client with a bundle accepts the serving certificate for a host.
func trusted(t *testing.T, bundle []byte, a *authority, host string, c *calendar) bool {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatalf("no certificates in %q", bundle)
	}
	_, err := a.serving().Leaf.Verify(x509.VerifyOptions{
		Roots: roots, DNSName: host, CurrentTime: c.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		t.Log(err)
	}
	return err == nil
}

func TestReplicasShareTheCA(t *testing.T) {
	client, c := fake.NewClientset(), &calendar{time.Now()}
	first := ensured(t, client, c)
	second := newAuthority(client, name, "scheduler.example", c.now)
	if err := second.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.bundle(), second.bundle()) {
		t.Error("the second replica has a different CA")
	}
	if !trusted(t, first.bundle(), first, host, c) || !trusted(t, first.bundle(), second, "scheduler.example", c) {
		t.Error("a certificate is not trusted")
	}
	if trusted(t, first.bundle(), first, "127.0.0.2", c) {
		t.Error("a certificate is valid for another host")
	}
}

// TestCertificatesAreRenewed simulates three years. A client with a bundle that is some days
// old must accept the current certificate.
func TestCertificatesAreRenewed(t *testing.T) {
	client, c := fake.NewClientset(), &calendar{time.Now()}
	a := ensured(t, client, c)
	bundles, leaves, cas := [][]byte{a.bundle()}, map[string]bool{}, map[string]bool{}
	for range 3 * 52 {
		c.pass(7 * 24 * time.Hour)
		if !trusted(t, bundles[len(bundles)-1], a, host, c) {
			t.Fatalf("at %v the certificate is not trusted until it is renewed", c.Time)
		}
		if err := a.ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, bundle := range bundles[max(0, len(bundles)-12):] {
			if !trusted(t, bundle, a, host, c) {
				t.Fatalf("at %v the certificate is not trusted by a recent bundle", c.Time)
			}
		}
		if left := a.serving().Leaf.NotAfter.Sub(c.Time); left <= leafReserve {
			t.Fatalf("at %v the certificate has %v left", c.Time, left)
		}
		bundles = append(bundles, a.bundle())
		leaves[a.serving().Leaf.SerialNumber.String()] = true
		cas[string(a.bundle())] = true
	}
	if len(leaves) < 36 || len(leaves) > 60 || len(cas) < 5 || len(cas) > 20 {
		t.Errorf("%d certificates by %d bundles in three years", len(leaves), len(cas))
	}
	if stored := secretOf(t, client); !bytes.Equal(stored.Data[caCertsKey], a.bundle()) {
		t.Error("the Secret has different CAs")
	}
}

func TestNothingIsRenewedEarly(t *testing.T) {
	client, c := fake.NewClientset(), &calendar{time.Now()}
	a := ensured(t, client, c)
	leaf, bundle := a.serving(), a.bundle()
	client.ClearActions()
	c.pass(time.Hour)
	if err := a.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.serving() != leaf || !bytes.Equal(a.bundle(), bundle) || len(client.Actions()) != 1 {
		t.Errorf("renewed, by %v", client.Actions())
	}
}

func secretOf(t *testing.T, client kubernetes.Interface) *v1.Secret {
	t.Helper()
	secret, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// TestBrokenSecretIsReplaced checks that an invalid Secret is replaced.
func TestBrokenSecretIsReplaced(t *testing.T) {
	for what, change := range map[string]func(secret, other *v1.Secret){
		"empty":       func(s, _ *v1.Secret) { s.Data = nil },
		"garbage":     func(s, _ *v1.Secret) { s.Data[caCertsKey] = []byte("garbage") },
		"no key":      func(s, _ *v1.Secret) { delete(s.Data, caKeysKey) },
		"another key": func(s, other *v1.Secret) { s.Data[caKeysKey] = other.Data[caKeysKey] },
	} {
		t.Run(what, func(t *testing.T) {
			client, c := fake.NewClientset(), &calendar{time.Now()}
			a := ensured(t, client, c)
			elsewhere := fake.NewClientset()
			ensured(t, elsewhere, c)
			secret := secretOf(t, client)
			change(secret, secretOf(t, elsewhere))
			if _, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := a.ensure(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !trusted(t, a.bundle(), a, host, c) {
				t.Error("the certificate is not signed by the stored CA")
			}
			if next := ensured(t, client, c); !bytes.Equal(next.bundle(), a.bundle()) {
				t.Error("the next leader has a different CA")
			}
		})
	}
}
