package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	ca "github.com/k8s-1m/k8s-1m/internal/util/authority"
)

const apiServer = "kube-apiserver-webhook-client"

// clientCA is a CA of client certificates.
type clientCA struct {
	t   *testing.T
	cas []ca.CA
}

func newClientCA(t *testing.T) *clientCA {
	t.Helper()
	cas, _, err := ca.Renew(nil, "clients", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &clientCA{t, cas}
}

// issue returns a certificate.
func (c *clientCA) issue(name string, usage x509.ExtKeyUsage) tls.Certificate {
	c.t.Helper()
	cert, err := ca.Issue(c.cas, &x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{usage}}, time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	return *cert
}

func writeCAs(t *testing.T, file string, cas ...*clientCA) {
	t.Helper()
	var bundle []byte
	for _, c := range cas {
		bundle = append(bundle, ca.EncodeCerts(c.cas)...)
	}
	if err := os.WriteFile(file, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestOnlyAPIServersMaySendPods checks which clients the webhook accepts if client certificates are
// required, and that their CA can be replaced while it runs.
func TestOnlyAPIServersMaySendPods(t *testing.T) {
	before, after, other, file := newClientCA(t), newClientCA(t), newClientCA(t), filepath.Join(t.TempDir(), "ca.crt")
	writeCAs(t, file, before)
	s := newServerFixture(t, fake.NewClientset(), func(o *Options) { o.ClientCAFile, o.ClientNames = file, []string{"another", apiServer} })
	old, next := before.issue(apiServer, x509.ExtKeyUsageClientAuth), after.issue(apiServer, x509.ExtKeyUsageClientAuth)
	s.eventually("the API server is accepted", func() error { return s.callWith(old) })
	<-s.pods
	for want, certificates := range map[string][]tls.Certificate{
		"no client certificate":        nil,
		"unknown authority":            {other.issue(apiServer, x509.ExtKeyUsageClientAuth)},
		"system:node:a":                {before.issue("system:node:a", x509.ExtKeyUsageClientAuth)},
		"incompatible key usage":       {before.issue(apiServer, x509.ExtKeyUsageServerAuth)},
		"signed by unknown authority ": {next},
	} {
		err := s.callWith(certificates...)
		if err == nil || !strings.Contains(err.Error(), "401") || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("calling the webhook: %v, want 401 and %q", err, want)
		}
	}
	if len(s.pods) != 0 {
		t.Errorf("%d pods were delivered by clients that are not API servers, want 0", len(s.pods))
	}

	writeCAs(t, file, before, after)
	s.eventually("the new CA is accepted", func() error { return s.callWith(next) })
	if err := s.callWith(old); err != nil {
		t.Errorf("calling the webhook with a certificate of the old CA while both are trusted: %v, want success", err)
	}
	writeCAs(t, file, after)
	s.eventually("the old CA is rejected", func() error {
		if err := s.callWith(old); err == nil || !strings.Contains(err.Error(), "401") {
			return fmt.Errorf("a certificate of the old CA: %v, want 401", err)
		}
		return nil
	})
	if err := s.callWith(next); err != nil {
		t.Errorf("calling the webhook with a certificate of the new CA: %v, want success", err)
	}
}

// TestAcceptedConnectionIsCheckedAgain checks that a connection on which pods were sent is rejected
// after the CA of its certificate was removed.
func TestAcceptedConnectionIsCheckedAgain(t *testing.T) {
	before, after, file := newClientCA(t), newClientCA(t), filepath.Join(t.TempDir(), "ca.crt")
	writeCAs(t, file, before)
	c, err := newClients(t.Context(), Options{ClientCAFile: file, ClientNames: []string{apiServer}})
	if err != nil {
		t.Fatal(err)
	}
	cert := before.issue(apiServer, x509.ExtKeyUsageClientAuth)
	connection := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert.Leaf}}
	for range 2 {
		if err := c.check(connection); err != nil {
			t.Fatalf("check() = %v, want nil", err)
		}
	}
	writeCAs(t, file, after)
	if err := c.authority.RunOnce(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := c.check(connection); err == nil {
		t.Error("check() after the CA was removed = nil, want an error")
	}
}

func TestUnreadableClientCAIsAnError(t *testing.T) {
	_, err := newClients(t.Context(), Options{ClientCAFile: filepath.Join(t.TempDir(), "none"), ClientNames: []string{apiServer}})
	if err == nil || !strings.Contains(err.Error(), "--intake-client-ca-file") {
		t.Errorf("newClients() with a missing file = %v, want an error with the flag", err)
	}
}
