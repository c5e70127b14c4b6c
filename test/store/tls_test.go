package store

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
)

// startTLS starts mem_etcd with the certificates in dir and waits until it is ready.
func startTLS(t *testing.T, dir string, flags ...string) *server {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	metrics := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	args := append([]string{
		"--wal-mode", "none", "--listen-client-urls", "https://" + address, "--listen-metrics-urls", "http://" + metrics,
		"--cert-file", filepath.Join(dir, "server.crt"), "--key-file", filepath.Join(dir, "server.key"),
		"--trusted-ca-file", filepath.Join(dir, "ca.crt"),
	}, flags...)
	s := &server{t: t, address: metrics, args: args}
	s.start(binary(t, "mem_etcd"))
	s.address = address
	return s
}

// handshake connects with this TLS configuration and returns the state of the connection.
func handshake(address string, config *tls.Config) (tls.ConnectionState, error) {
	conn, err := tls.Dial("tcp", address, config)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	return conn.ConnectionState(), nil
}

// clientTLS returns the TLS configuration of a client with the certificate NAME.crt in dir.
func clientTLS(t *testing.T, a *authority, dir, name string) *tls.Config {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{RootCAs: a.pool, Certificates: []tls.Certificate{certificate}}
}

// TestCertificatesAreReloaded replaces the certificate, the key and the CA certificate of a running server.
// The server must use them for new connections, and must keep the previous ones if the new ones are invalid.
func TestCertificatesAreReloaded(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, filepath.Join(dir, "ca.crt"))
	ca.issue(t, dir, "server")
	ca.issue(t, dir, "client")
	config := clientTLS(t, ca, dir, "client")
	server := startTLS(t, dir)
	serverCertificate := func() string {
		t.Helper()
		state, err := handshake(server.address, config)
		if err != nil {
			t.Fatal(err)
		}
		return string(state.PeerCertificates[0].Raw)
	}
	first := serverCertificate()

	mustWrite(t, filepath.Join(dir, "server.crt"), "no certificate")
	for range 5 {
		if serverCertificate() != first {
			t.Fatal("the server does not keep the previous certificate while the file is invalid")
		}
	}
	const warning = "failed to reload certificates, keeping the previous ones"
	waitFor(t, "the warning about the invalid certificate", func() bool { return strings.Contains(server.log.String(), warning) })
	if count := strings.Count(server.log.String(), warning); count != 1 {
		t.Fatalf("the server logged %d warnings for 5 connections; want 1", count)
	}
	ca.issue(t, dir, "server")
	second := serverCertificate()
	if second == first {
		t.Fatal("the server does not use the new certificate")
	}
	if err := putOver(t, server.address, credentials.NewTLS(config)); err != nil {
		t.Fatal(err)
	}

	other := newAuthority(t, filepath.Join(dir, "ca.crt"))
	if err := putOver(t, server.address, credentials.NewTLS(config)); err == nil {
		t.Fatal("a client with a certificate of the previous CA was accepted")
	}
	other.issue(t, dir, "other")
	otherConfig := clientTLS(t, ca, dir, "other")
	if err := putOver(t, server.address, credentials.NewTLS(otherConfig)); err != nil {
		t.Fatal(err)
	}
}

// TestRevokedClients checks that a client is rejected after its certificate was added to the revocation list
// of a running server.
func TestRevokedClients(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, filepath.Join(dir, "ca.crt"))
	ca.issue(t, dir, "server")
	ca.issue(t, dir, "client")
	crl := filepath.Join(dir, "crl")
	revoke := func(number int64, serials ...int64) {
		t.Helper()
		template := &x509.RevocationList{Number: big.NewInt(number), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
		for _, serial := range serials {
			template.RevokedCertificateEntries = append(template.RevokedCertificateEntries,
				x509.RevocationListEntry{SerialNumber: big.NewInt(serial), RevocationTime: time.Now().Add(-time.Minute)})
		}
		der, err := x509.CreateRevocationList(rand.Reader, template, ca.certificate, ca.key)
		if err != nil {
			t.Fatal(err)
		}
		writePEM(t, crl, "X509 CRL", der)
	}
	revoke(1, 77)
	config := clientTLS(t, ca, dir, "client")
	server := startTLS(t, dir, "--client-crl-file", crl)
	if err := putOver(t, server.address, credentials.NewTLS(config)); err != nil {
		t.Fatal(err)
	}
	revoke(2, 2)
	if err := putOver(t, server.address, credentials.NewTLS(config)); err == nil {
		t.Fatal("a revoked client was accepted")
	}
}

func TestVersionsAndCipherSuites(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, filepath.Join(dir, "ca.crt"))
	ca.issue(t, dir, "server")
	ca.issue(t, dir, "client")
	config := clientTLS(t, ca, dir, "client")
	const suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
	maxTLS12 := startTLS(t, dir, "--tls-max-version", "TLS1.2", "--cipher-suites", suite)
	state, err := handshake(maxTLS12.address, config)
	if err != nil || state.Version != tls.VersionTLS12 || tls.CipherSuiteName(state.CipherSuite) != suite {
		t.Fatalf("the connection has TLS version %x and the cipher suite %s, error %v; want TLS 1.2 and %s",
			state.Version, tls.CipherSuiteName(state.CipherSuite), err, suite)
	}
	minTLS13 := startTLS(t, dir, "--tls-min-version", "TLS1.3")
	tls12Config := config.Clone()
	tls12Config.MaxVersion = tls.VersionTLS12
	if _, err := handshake(minTLS13.address, tls12Config); err == nil {
		t.Fatal("a server with --tls-min-version TLS1.3 accepted TLS 1.2")
	}
	if _, err := handshake(minTLS13.address, config); err != nil {
		t.Fatal(err)
	}
	output, err := memEtcd(t, append(minTLS13.args[:len(minTLS13.args)-2], "--cipher-suites", "TLS_RSA_WITH_RC4_128_SHA")...)
	if err == nil || !strings.Contains(output, "TLS_RSA_WITH_RC4_128_SHA is not available") {
		t.Fatalf("start with an unsupported cipher suite: error %v, output %s", err, output)
	}
}
