package webhook

import (
	"bytes"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	ca "github.com/k8s-1m/k8s-1m/internal/util/authority"
)

const (
	name = "test-intake"
	host = "127.0.0.1"
)

// manualClock is a clock that the test sets.
type manualClock struct{ time.Time }

func (c *manualClock) now() time.Time { return c.Time }

func (c *manualClock) advance(d time.Duration) { c.Time = c.Add(d) }

// newEnsuredAuthority returns an authority that has created or read its Secret.
func newEnsuredAuthority(t *testing.T, client kubernetes.Interface, c *manualClock) *authority {
	t.Helper()
	a := newAuthority(client, name, host, c.now)
	if err := a.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

// isTrusted reports whether a client with a CA bundle accepts the serving certificate for a host.
func isTrusted(t *testing.T, bundle []byte, a *authority, host string, c *manualClock) bool {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatalf("no certificates in %q", bundle)
	}
	_, err := a.serving().Leaf.Verify(x509.VerifyOptions{
		Roots: roots, DNSName: host, CurrentTime: c.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		t.Logf("verifying the serving certificate for %s: %v", host, err)
	}
	return err == nil
}

func TestReplicasShareTheCA(t *testing.T) {
	client, c := fake.NewClientset(), &manualClock{time.Now()}
	first := newEnsuredAuthority(t, client, c)
	second := newAuthority(client, name, "scheduler.example", c.now)
	if err := second.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.bundle(), second.bundle()) {
		t.Errorf("CA bundle of the second replica = %q, want %q as of the first", second.bundle(), first.bundle())
	}
	if !isTrusted(t, first.bundle(), first, host, c) {
		t.Errorf("the certificate of the first replica is not trusted for %s", host)
	}
	if !isTrusted(t, first.bundle(), second, "scheduler.example", c) {
		t.Error("the certificate of the second replica is not trusted for scheduler.example")
	}
	if isTrusted(t, first.bundle(), first, "127.0.0.2", c) {
		t.Errorf("the certificate for %s is trusted for 127.0.0.2", host)
	}
}

// TestCertificatesAreRenewed simulates three years. Clients with any of the last twelve weekly
// bundles must accept the current certificate.
func TestCertificatesAreRenewed(t *testing.T) {
	client, c := fake.NewClientset(), &manualClock{time.Now()}
	a := newEnsuredAuthority(t, client, c)
	bundles, leaves, cas := [][]byte{a.bundle()}, map[string]bool{}, map[string]bool{}
	for range 3 * 52 {
		c.advance(7 * 24 * time.Hour)
		if !isTrusted(t, bundles[len(bundles)-1], a, host, c) {
			t.Fatalf("at %v, before the renewal, the certificate is not trusted by the latest bundle", c.Time)
		}
		if err := a.ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, bundle := range bundles[max(0, len(bundles)-12):] {
			if !isTrusted(t, bundle, a, host, c) {
				t.Fatalf("at %v, after the renewal, the certificate is not trusted by a recent bundle", c.Time)
			}
		}
		if validity := a.serving().Leaf.NotAfter.Sub(c.Time); validity <= ca.LeafReserve {
			t.Fatalf("at %v the certificate is valid for %v, want more than %v", c.Time, validity, ca.LeafReserve)
		}
		bundles = append(bundles, a.bundle())
		leaves[a.serving().Leaf.SerialNumber.String()] = true
		cas[string(a.bundle())] = true
	}
	if len(leaves) < 36 || len(leaves) > 60 || len(cas) < 5 || len(cas) > 20 {
		t.Errorf("%d certificates and %d CA bundles in three years, want 36 to 60 and 5 to 20", len(leaves), len(cas))
	}
	if stored := secretOf(t, client); !bytes.Equal(stored.Data[caCertsKey], a.bundle()) {
		t.Errorf("CA certificates of the Secret = %q, want %q", stored.Data[caCertsKey], a.bundle())
	}
}

func TestCertificatesAreNotRenewedEarly(t *testing.T) {
	client, c := fake.NewClientset(), &manualClock{time.Now()}
	a := newEnsuredAuthority(t, client, c)
	leaf, bundle := a.serving(), a.bundle()
	client.ClearActions()
	c.advance(time.Hour)
	if err := a.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.serving() != leaf || !bytes.Equal(a.bundle(), bundle) || len(client.Actions()) != 1 {
		t.Errorf("ensure() after an hour renewed a certificate or wrote the Secret: API calls %v, want one read", client.Actions())
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
	for name, change := range map[string]func(secret, other *v1.Secret){
		"no data":               func(s, _ *v1.Secret) { s.Data = nil },
		"malformed certificate": func(s, _ *v1.Secret) { s.Data[caCertsKey] = []byte("garbage") },
		"no key":                func(s, _ *v1.Secret) { delete(s.Data, caKeysKey) },
		"key of another CA":     func(s, other *v1.Secret) { s.Data[caKeysKey] = other.Data[caKeysKey] },
	} {
		t.Run(name, func(t *testing.T) {
			client, c := fake.NewClientset(), &manualClock{time.Now()}
			a := newEnsuredAuthority(t, client, c)
			otherClient := fake.NewClientset()
			newEnsuredAuthority(t, otherClient, c)
			secret := secretOf(t, client)
			change(secret, secretOf(t, otherClient))
			if _, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := a.ensure(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !isTrusted(t, a.bundle(), a, host, c) {
				t.Error("the certificate is not signed by the stored CA")
			}
			if next := newEnsuredAuthority(t, client, c); !bytes.Equal(next.bundle(), a.bundle()) {
				t.Errorf("CA bundle of the next leader = %q, want %q", next.bundle(), a.bundle())
			}
		})
	}
}

// TestForeignSecretIsNotOverwritten checks that a Secret of the same name that this program did not create
// is left alone, and that the error names it and the remedy.
func TestForeignSecretIsNotOverwritten(t *testing.T) {
	c := &manualClock{time.Now()}
	other := fake.NewClientset()
	otherCA := newAuthority(other, "other", host, c.now)
	if err := otherCA.ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	stored, err := other.CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), "other", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for kind, data := range map[string]map[string][]byte{
		"password":                {"password": []byte("x")},
		"no data":                 nil,
		"another program's CA":    {caCertsKey: stored.Data[caCertsKey], caKeysKey: stored.Data[caKeysKey]},
		"certificate without key": {caCertsKey: stored.Data[caCertsKey]},
	} {
		secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem}, Data: data}
		client := fake.NewClientset(secret)
		err := newAuthority(client, name, host, c.now).ensure(t.Context())
		if err == nil || !strings.Contains(err.Error(), "kube-system/"+name+" exists and was not created by dist-scheduler") {
			t.Errorf("%s: ensure() = %v, want an error that names the Secret", kind, err)
		}
		if got := secretOf(t, client); !equality.Semantic.DeepEqual(got, secret) {
			t.Errorf("%s: the Secret is %v after ensure(), want it unchanged", kind, got)
		}
	}
}

// TestSecretOfEarlierVersionIsKept checks that the CA in a Secret without label, as earlier versions wrote
// it, is kept, and that the Secret gets the label.
func TestSecretOfEarlierVersionIsKept(t *testing.T) {
	client, c := fake.NewClientset(), &manualClock{time.Now()}
	before := newEnsuredAuthority(t, client, c).bundle()
	secret := secretOf(t, client)
	secret.Labels = nil
	if _, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if after := newEnsuredAuthority(t, client, c).bundle(); !bytes.Equal(after, before) {
		t.Errorf("CA bundle = %q, want %q as before", after, before)
	}
	if label := secretOf(t, client).Labels[ManagedByLabel]; label != managedBy {
		t.Errorf("label %s = %q, want %q", ManagedByLabel, label, managedBy)
	}
}
