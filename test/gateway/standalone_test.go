package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/k8s-1m/k8s-1m/test/testcluster"
)

// frontProxyName is the common name of the gateway's front-proxy certificate in tests without a cluster.
const frontProxyName = "front-proxy-client"

// received is a request as a backend received it.
type received struct {
	Method, URI, Proto, Host string
	// Peer is the common name of the certificate of the connection.
	Peer    string
	Fields  http.Header
	Body    string
	Trailer http.Header
	// Err is the error of reading the body.
	Err error
}

// String returns the parts of a request that smuggling would change.
func (r received) String() string {
	text := fmt.Sprintf("%s %s %q", r.Method, r.URI, r.Body)
	if r.Err != nil {
		text += " " + r.Err.Error()
	}
	return text
}

// backend is an API server's stand-in that records all requests. It uses the same HTTP library as kube-apiserver.
type backend struct {
	address string
	// handle answers a request whose body has been read.
	handle http.HandlerFunc

	mutex    sync.Mutex
	requests []received
}

// standalone is a gateway in front of a backend, without a cluster.
type standalone struct {
	*backend
	gateway, metrics string
	directory        string
	process          *exec.Cmd
	clients, servers authority
}

// newStandalone starts a backend and a gateway. Lines in extra are added to the configuration. Both end with the test.
func newStandalone(t *testing.T, handle http.HandlerFunc, extra ...string) *standalone {
	t.Helper()
	s := &standalone{
		backend: &backend{handle: handle}, directory: t.TempDir(),
		clients: newAuthority(t), servers: newAuthority(t),
		gateway: testcluster.FreeAddress(t), metrics: testcluster.FreeAddress(t),
	}
	proxies := newAuthority(t)
	s.startBackend(t, proxies)
	serving := template(pkix.Name{CommonName: "server"})
	serving.ExtKeyUsage, serving.IPAddresses = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []net.IP{net.IPv4(127, 0, 0, 1)}
	writePair(t, s.file("serving"), s.servers.sign(t, serving))
	writePair(t, s.file("front-proxy"), proxies.sign(t, template(pkix.Name{CommonName: frontProxyName})))
	writeCertificate(t, s.file("client-ca.crt"), s.clients.certificate.Raw)
	writeCertificate(t, s.file("server-ca.crt"), s.servers.certificate.Raw)
	s.startGateway(t, extra)
	return s
}

func (s *standalone) file(name string) string { return filepath.Join(s.directory, name) }

func (s *standalone) startGateway(t *testing.T, extra []string) {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: gateway.k8s-1m.dev/v1alpha1
kind: GatewayConfiguration
listen: {address: %q, metricsAddress: %q, certFile: serving.crt, keyFile: serving.key, clientCaFile: client-ca.crt, handshakesPerSecond: 100000}
upstream: {servers: [%q], caFile: server-ca.crt}
requestHeader: {certFile: front-proxy.crt, keyFile: front-proxy.key}
%s
`, s.gateway, s.metrics, s.address, strings.Join(extra, "\n"))
	must(t, os.WriteFile(s.file("gateway.yaml"), []byte(text), 0o600))
	s.process = testcluster.StartGateway(t, testcluster.Binaries(t), s.file("gateway.yaml"), s.file("gateway.log"))
	testcluster.Eventually(t, startTimeout, "the gateway is ready", func() bool { return testcluster.Page(s.metrics, "/readyz") == "ok" })
}

// startBackend starts the backend. It asks for a certificate of the CA of front proxies.
func (s *standalone) startBackend(t *testing.T, proxies authority) {
	t.Helper()
	serving := template(pkix.Name{CommonName: "kube-apiserver"})
	serving.ExtKeyUsage, serving.IPAddresses = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []net.IP{net.IPv4(127, 0, 0, 1)}
	pool := x509.NewCertPool()
	pool.AddCert(proxies.certificate)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{s.servers.sign(t, serving)},
		ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: pool,
		NextProtos: []string{"h2", "http/1.1"},
	})
	must(t, err)
	s.address = listener.Addr().String()
	server := &http.Server{
		Handler: http.HandlerFunc(s.serve), ErrorLog: log.New(io.Discard, "", 0),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 250},
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

func (b *backend) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/readyz" || r.URL.Path == "/metrics" {
		return
	}
	request := received{Method: r.Method, URI: r.RequestURI, Proto: r.Proto, Host: r.Host, Fields: r.Header.Clone()}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		request.Peer = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	body, err := io.ReadAll(r.Body)
	request.Body, request.Err, request.Trailer = string(body), err, r.Trailer
	b.mutex.Lock()
	b.requests = append(b.requests, request)
	b.mutex.Unlock()
	if b.handle != nil {
		b.handle(w, r)
	}
}

// of returns the requests whose URI contains a text.
func (b *backend) of(text string) []received {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	var found []received
	for _, request := range b.requests {
		if strings.Contains(request.URI, text) {
			found = append(found, request)
		}
	}
	return found
}

// user returns a certificate of a user of the gateway.
func (s *standalone) user(t *testing.T, name string, groups ...string) tls.Certificate {
	return s.clients.sign(t, template(pkix.Name{CommonName: name, Organization: groups}))
}

// dial opens a connection of one protocol. An empty certificate means none.
func dial(t *testing.T, address, protocol string, certificate tls.Certificate) *tls.Conn {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}
	if certificate.Certificate != nil {
		config.Certificates = []tls.Certificate{certificate}
	}
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: startTimeout}, "tcp", address, config)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// alive fails the test unless the gateway serves a new client as before.
func (s *standalone) alive(t *testing.T) {
	t.Helper()
	client := httpClient(t, []tls.Certificate{s.user(t, "somebody")}, true)
	client.Timeout = startTimeout
	response, err := client.Get("https://" + s.gateway + "/alive")
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("the gateway no longer serves new clients: %v %v", response, err)
	}
	_ = response.Body.Close()
}

// residentKiB returns the resident memory of the gateway.
func (s *standalone) residentKiB(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.process.Process.Pid))
	must(t, err)
	lines := strings.Split(string(text), "\n")
	i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "VmRSS:") })
	var kib int
	_, err = fmt.Sscanf(lines[i], "VmRSS: %d kB", &kib)
	must(t, err)
	return kib
}

// writePair writes a certificate and its key as NAME.crt and NAME.key.
func writePair(t *testing.T, name string, pair tls.Certificate) {
	t.Helper()
	writeCertificate(t, name+".crt", pair.Certificate...)
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	must(t, err)
	must(t, os.WriteFile(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
}

func writeCertificate(t *testing.T, name string, chain ...[]byte) {
	t.Helper()
	var text []byte
	for _, der := range chain {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	must(t, os.WriteFile(name, text, 0o600))
}
