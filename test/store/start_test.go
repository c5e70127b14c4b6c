package store

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// TestRefusesToStart checks that mem_etcd exits with a one-line message if it cannot start.
func TestRefusesToStart(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	inUse := startMemEtcd(t)
	etcdData, newer, garbage := t.TempDir(), t.TempDir(), t.TempDir()
	mustWrite(t, filepath.Join(etcdData, "member", "snap", "db"), "x")
	mustWrite(t, filepath.Join(newer, "IDENTITY"), "format 99\n")
	mustWrite(t, filepath.Join(newer, "wal", "README"), "x")
	mustWrite(t, filepath.Join(garbage, "not-a-key.pem"), "x")
	pem := filepath.Join(garbage, "not-a-key.pem")
	withoutLog := filepath.Join(t.TempDir(), "data")
	killed := startMemEtcd(t, "--data-dir", withoutLog)
	mustPut(t, killed.dial(), "k", "v")
	killed.kill()
	if err := os.RemoveAll(filepath.Join(withoutLog, "wal")); err != nil {
		t.Fatal(err)
	}
	free := fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	for _, test := range []struct {
		name string
		args []string
		code int
		line string
	}{
		{"unknown flag", []string{"--frobnicate"}, 2, "unexpected argument '--frobnicate'"},
		{"port in use", []string{"--listen-client-urls", "http://" + listener.Addr().String(), "--wal-mode", "none"}, 1, "Address already in use"},
		{"directory in use", []string{"--listen-client-urls", free, "--data-dir", inUse.args[1]}, 1, "is in use by another process"},
		{"directory of etcd", []string{"--listen-client-urls", free, "--data-dir", etcdData}, 1, "contains the data of etcd"},
		{"directory of a newer version", []string{"--listen-client-urls", free, "--data-dir", newer}, 1, "has format 99"},
		{"directory that cannot be created", []string{"--listen-client-urls", free, "--data-dir", "/proc/nothing"}, 1, "create data directory /proc/nothing"},
		{"regular file at the path of the socket", []string{"--listen-client-urls", "unix://" + pem, "--wal-mode", "none"}, 1, "listen on unix://"},
		{"directory without its log", []string{"--listen-client-urls", free, "--data-dir", withoutLog}, 1, "the directory of the log is missing"},
		{"missing certificate", []string{"--listen-client-urls", "https://127.0.0.1:1", "--cert-file", "/nowhere", "--key-file", "/nowhere"}, 1, "read the certificates in /nowhere"},
		{"invalid certificate", []string{"--listen-client-urls", "https://127.0.0.1:1", "--cert-file", pem, "--key-file", pem}, 1, "contains no PEM certificate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			output, err := exec.Command(binary(t, "mem_etcd"), append(test.args, "--log-level", "error")...).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != test.code {
				t.Fatalf("mem_etcd ended with %v; want exit code %d: %s", err, test.code, output)
			}
			text := strings.TrimSpace(string(output))
			if !strings.Contains(text, test.line) || !strings.HasPrefix(text, "mem_etcd: ") || strings.Contains(text, "\n") {
				t.Fatalf("mem_etcd printed %q; want one line that starts with \"mem_etcd: \" and contains %q", text, test.line)
			}
		})
	}
	if _, err := os.Stat(pem); err != nil {
		t.Fatalf("the regular file at the path of the socket was removed: %v", err)
	}
	if get(t, inUse.dial(), "k") != "" {
		t.Fatal("the server whose data directory is in use contains an unexpected key")
	}
}

// TestDamagedLogIsRefused checks that mem_etcd does not start if a bit in a durable record of the log is
// flipped.
func TestDamagedLogIsRefused(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "fsync")
	a := s.dial()
	for range 10 {
		mustPut(t, a, "key", "value")
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(s.args[1], "wal", "*.wal"))
	if err != nil || len(segments) != 1 {
		t.Fatalf("the log has the segments %v, error %v; want 1", segments, err)
	}
	content, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	// Damage the first record and the last acknowledged one.
	last := bytes.LastIndex(content, []byte("value"))
	for _, offset := range []int{60, last} {
		damaged := bytes.Clone(content)
		damaged[offset] ^= 1
		mustWrite(t, segments[0], string(damaged))
		output, err := exec.Command(s.cmd.Path, s.args...).CombinedOutput()
		if err == nil || !strings.Contains(string(output), filepath.Base(segments[0])+" is corrupt at offset") {
			t.Fatalf("start with a flipped bit at offset %d: error %v, output %s", offset, err, output)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	s := startMemEtcd(t, "--listen-client-urls", "unix://"+path)
	if err := putOver(t, "unix://"+path, insecure.NewCredentials()); err != nil {
		t.Fatal(err)
	}
	// A killed server leaves its socket file behind. The restarted server must replace it.
	s.kill()
	s.restart()
	if err := putOver(t, "unix://"+path, insecure.NewCredentials()); err != nil {
		t.Fatal(err)
	}
}

// TestMetricsListener checks that --listen-metrics-urls serves metrics, health and version, but not gRPC.
func TestMetricsListener(t *testing.T) {
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	s := startMemEtcd(t, "--listen-metrics-urls", "http://"+address)
	mustPut(t, s.dial(), "k", "v")
	for path, expected := range map[string]string{
		"/metrics":         "etcd_debugging_mvcc_current_revision 2",
		"/health":          `{"health":"true","reason":""}`,
		"/readyz?verbose=": "[+]data_corruption ok",
		"/livez":           "ok",
		"/version":         `"etcdcluster":"3.7.0"`,
	} {
		response, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(body), expected) {
			t.Fatalf("%s: status %v, body %s, error %v; want %q", path, response.Status, body, err, expected)
		}
	}
	if err := putOver(t, address, insecure.NewCredentials()); err == nil {
		t.Fatal("the metrics listener accepted a put")
	}
}

// TestTrafficIsCounted checks etcd's metrics of the bytes received from and sent to clients.
func TestTrafficIsCounted(t *testing.T) {
	const large = 100_000
	s := startMemEtcd(t)
	a := s.dial()
	mustPut(t, a, "small", "")
	traffic := func() (received, sent int) {
		return readMetric(t, s.address, "etcd_network_client_grpc_received_bytes_total"), readMetric(t, s.address, "etcd_network_client_grpc_sent_bytes_total")
	}
	receivedBefore, sentBefore := traffic()
	mustPut(t, a, "k", strings.Repeat("v", large))
	for range 2 {
		if _, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("k")}); err != nil {
			t.Fatal(err)
		}
	}
	received, sent := traffic()
	received, sent = received-receivedBefore, sent-sentBefore
	if received < large || received > large*11/10 || sent < 2*large || sent > large*21/10 {
		t.Errorf("for 1 put and 2 reads of %d bytes, the metrics count %d received and %d sent bytes", large, received, sent)
	}
}

// TestClientCertificates checks that --client-cert-auth accepts only clients with a certificate, with HTTP/2
// and HTTP/1.1.
func TestClientCertificates(t *testing.T) {
	dir := t.TempDir()
	authority := newAuthority(t, filepath.Join(dir, "ca.crt"))
	authority.issue(t, dir, "server")
	authority.issue(t, dir, "client")
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	startMemEtcd(t, "--cert-file", filepath.Join(dir, "server.crt"), "--key-file", filepath.Join(dir, "server.key"),
		"--trusted-ca-file", filepath.Join(dir, "ca.crt"), "--client-cert-auth", "--listen-client-urls", "https://"+address)

	withoutCertificate := &tls.Config{RootCAs: authority.pool}
	withCertificate := withoutCertificate.Clone()
	certificate, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
	if err != nil {
		t.Fatal(err)
	}
	withCertificate.Certificates = []tls.Certificate{certificate}
	if err := putOver(t, address, credentials.NewTLS(withCertificate)); err != nil {
		t.Fatal(err)
	}
	if err := putOver(t, address, credentials.NewTLS(withoutCertificate)); err == nil {
		t.Fatal("a client without a certificate was accepted")
	}
	if err := putOver(t, address, insecure.NewCredentials()); err == nil {
		t.Fatal("a client without TLS was accepted")
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: withCertificate}}
	response, err := client.Get("https://" + address + "/version")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); !strings.Contains(string(body), `"etcdserver":"3.7`) {
		t.Fatalf("/version over HTTP/1.1 returned %s", body)
	}
}

// putOver opens a connection with these credentials, puts a key and returns the error.
func putOver(t *testing.T, address string, transport credentials.TransportCredentials) error {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(transport))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = newAPI(conn).kv.Put(t.Context(), &pb.PutRequest{Key: []byte("k")})
	return err
}

// mustWrite writes a file and creates its directory.
func mustWrite(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// authority is a certificate authority for tests.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pool        *x509.CertPool
}

// newAuthority creates a certificate authority and writes its certificate to path.
func newAuthority(t *testing.T, path string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, path, "CERTIFICATE", der)
	pool := x509.NewCertPool()
	pool.AddCert(certificate)
	return &authority{certificate, key, pool}
}

// issue writes NAME.crt and NAME.key: a certificate with serial number 2, valid for servers and clients.
func (a *authority) issue(t *testing.T, dir, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, filepath.Join(dir, name+".crt"), "CERTIFICATE", der)
	writePEM(t, filepath.Join(dir, name+".key"), "PRIVATE KEY", private)
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	mustWrite(t, path, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
}
