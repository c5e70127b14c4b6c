package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/k8s-1m/k8s-1m/internal/util/authority"
)

const specText = `
authorities:
- {name: store, secret: store-ca}
certificates:
- {authority: store, secret: server, commonName: mem-etcd, dnsNames: [mem-etcd.ns.svc], uris: ["k8s-1m://replica/g/n"], usages: [server, client]}
- {authority: store, secret: client, commonName: apiserver, usages: [client]}
`

func mustParse(t *testing.T, text string) Spec {
	t.Helper()
	spec, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// apply applies a spec and checks which Secrets were written.
func apply(t *testing.T, client kubernetes.Interface, spec Spec, now time.Time, want ...string) {
	t.Helper()
	written, err := Apply(t.Context(), client, "ns", spec, now)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(written, want) {
		t.Errorf("at %v Apply wrote %q, want %q", now, written, want)
	}
}

func TestApplyCreatesAndRenews(t *testing.T) {
	client, spec, start := fake.NewClientset(), mustParse(t, specText), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	apply(t, client, spec, start, "store-ca", "server", "client")
	verify(t, client, "server", "mem-etcd.ns.svc", start)
	apply(t, client, spec, start.Add(authority.LeafValidity-authority.LeafReserve-time.Hour))
	// Certificates expire long before their authority.
	apply(t, client, spec, start.Add(authority.LeafValidity-authority.LeafReserve+time.Hour), "server", "client")
	// Then there are two authorities, and the old one still signs.
	half := start.Add(authority.CAValidity/2 + time.Hour)
	apply(t, client, spec, half, "store-ca", "server", "client")
	verify(t, client, "server", "mem-etcd.ns.svc", half)
	// Later than all of them.
	late := start.Add(3 * authority.CAValidity)
	apply(t, client, spec, late, "store-ca", "server", "client")
	verify(t, client, "server", "mem-etcd.ns.svc", late)

	spec.Certificates[0].DNSNames = append(spec.Certificates[0].DNSNames, "other")
	apply(t, client, spec, late, "server")
	verify(t, client, "server", "other", late)
}

// verify checks that the certificate in a Secret is valid for a name.
func verify(t *testing.T, client kubernetes.Interface, name, host string, now time.Time) {
	t.Helper()
	secret, err := client.CoreV1().Secrets("ns").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	options := x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if _, err := pair.Leaf.Verify(options); err != nil {
		t.Error(err)
	}
}

func TestApplyLeavesOtherSecretsAlone(t *testing.T) {
	for _, name := range []string{"store-ca", "server"} {
		client := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}})
		if _, err := Apply(t.Context(), client, "ns", mustParse(t, specText), time.Now()); !errors.Is(err, errNotOurs) {
			t.Errorf("with a foreign Secret %s, Apply returned %v, want %v", name, err, errNotOurs)
		}
	}
}

func TestApplyKeepsDamagedAuthority(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "store-ca", Namespace: "ns", Labels: map[string]string{ManagedLabel: managed}}}
	client := fake.NewClientset(secret)
	if _, err := Apply(t.Context(), client, "ns", mustParse(t, specText), time.Now()); err == nil {
		t.Error("Apply replaced an authority that cannot be read")
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"unknown field":     "authority: []",
		"unknown authority": "certificates: [{authority: gone, secret: s, usages: [client]}]",
		"same secret":       "authorities: [{name: a, secret: s}, {name: b, secret: s}]",
		"no usage":          "{authorities: [{name: a, secret: s}], certificates: [{authority: a, secret: t}]}",
		"unknown usage":     "{authorities: [{name: a, secret: s}], certificates: [{authority: a, secret: t, usages: [any]}]}",
		"no secret":         "{authorities: [{name: a, secret: s}], certificates: [{authority: a, usages: [client]}]}",
	} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
