package pki

import (
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
)

func ensure(t *testing.T, dir string) *Authority {
	t.Helper()
	authority, err := Ensure(dir, "test", "10.96.0.0/12", net.ParseIP("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

func TestCertificatesHaveNamesOfKubeadmAndAreKept(t *testing.T) {
	dir := t.TempDir()
	first := ensure(t, dir)
	names := []string{
		"ca.crt", "apiserver.crt", "apiserver-kubelet-client.crt", "apiserver-etcd-client.crt", "front-proxy-ca.crt",
		"front-proxy-client.crt", "etcd/ca.crt", "etcd/server.crt", "etcd/peer.crt", "etcd/healthcheck-client.crt", "etcd/kube-gateway-client.crt", "sa.pub", "sa.key",
	}
	before := map[string]string{}
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		before[name] = string(content)
	}
	if second := ensure(t, dir); !second.Cert.Equal(first.Cert) {
		t.Error("the second Ensure() created another CA, want the first kept")
	}
	for _, name := range names {
		if content, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(content) != before[name] {
			t.Errorf("the second Ensure() changed %s (error %v)", name, err)
		}
	}
}

func TestServingCertificatesAreValidForLoopback(t *testing.T) {
	dir := t.TempDir()
	authority := ensure(t, dir)
	roots := x509.NewCertPool()
	roots.AddCert(authority.Cert)
	for _, name := range []string{"apiserver.crt", "kube-scheduler.crt", "dist-scheduler.crt", "kube-controller-manager.crt", "kube-gateway.crt"} {
		certs, err := cert.CertsFromFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := certs[0].Verify(x509.VerifyOptions{DNSName: "127.0.0.1", Roots: roots}); err != nil {
			t.Errorf("Verify() of %s for 127.0.0.1 = %v, want nil", name, err)
		}
	}
}

// TestGatewayHasNamesOfTheAPIServers checks that clients may reach a gateway by each name of the API servers.
func TestGatewayHasNamesOfTheAPIServers(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir)
	read := func(file string) *x509.Certificate {
		certs, err := cert.CertsFromFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		return certs[0]
	}
	server, gateway := read("apiserver.crt"), read("kube-gateway.crt")
	for _, name := range append(server.DNSNames, "10.96.0.1") {
		if err := gateway.VerifyHostname(name); err != nil {
			t.Errorf("VerifyHostname() of the gateway's certificate = %v, want nil", err)
		}
	}
	if len(server.DNSNames) == 0 {
		t.Error("the certificate of the API servers has no names")
	}
}

func TestUnreadableCertificateIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	ensure(t, dir)
	path := filepath.Join(dir, "apiserver.crt")
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(dir, "test", "10.96.0.0/12", net.ParseIP("127.0.0.1")); !errors.Is(err, ErrUnreadable) {
		t.Errorf("Ensure() with an unreadable certificate = %v, want %v", err, ErrUnreadable)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "garbage" {
		t.Errorf("the certificate after Ensure() = %q (error %v), want it unchanged", content, err)
	}
}

func TestKubeconfigHasUserAndServer(t *testing.T) {
	content, err := Kubeconfig("test", "https://127.0.0.1:1", ensure(t, t.TempDir()), Scheduler)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := cert.ParseCertsPEM(config.CertData)
	if err != nil || certs[0].Subject.CommonName != Scheduler.CommonName || config.Host != "https://127.0.0.1:1" {
		t.Errorf("kubeconfig has subject %v and host %s (error %v), want %s and https://127.0.0.1:1", certs[0].Subject, config.Host, err, Scheduler.CommonName)
	}
}
