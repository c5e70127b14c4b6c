// Package through puts kube-gateway in front of the API servers that Kubernetes' own tests start in their
// process. It is linked into their test binaries.
//
//	KUBE_GATEWAY            the program; empty: tests reach their API servers directly
//	KUBE_GATEWAY_LOGS       directory for its logs (none if empty)
//	KUBE_GATEWAY_NODE_PATH  directory of the manifests with what the gateway's user needs for the node path, which is
//	                        then on; empty: it is off
package through

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	genericfeatures "k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

const (
	startTimeout = 30 * time.Second
	pollInterval = 20 * time.Millisecond
	uidHeader    = "X-Remote-Uid"
	// notAccepting is the answer of a gateway that accepts no clients yet.
	notAccepting = "the watch caches are not filled yet"
)

// TB is what the package needs of a test.
type TB interface {
	Logf(format string, args ...any)
	Cleanup(func())
}

// Program returns the gateway's program, or an empty string if tests reach API servers directly.
func Program() string { return os.Getenv("KUBE_GATEWAY") }

// Prepare makes an API server accept the UID of a front proxy's users, which kubeadm's servers accept too, but test
// servers do not by default. With the node path, it prepares the server for that, too.
func Prepare(server *options.ServerRunOptions) error {
	if Program() == "" {
		return nil
	}
	prepareUID(server)
	if !hasNodePath() {
		return nil
	}
	return prepareNodePath(server)
}

func prepareUID(server *options.ServerRunOptions) {
	if !utilfeature.DefaultFeatureGate.Enabled(genericfeatures.RemoteRequestHeaderUID) {
		return
	}
	if header := server.Authentication.RequestHeader; header != nil && header.ClientCAFile != "" && len(header.UIDHeaders) == 0 {
		header.UIDHeaders = []string{uidHeader}
	}
}

// FrontProxy names the files of a front-proxy certificate that the API server accepts.
type FrontProxy struct{ Cert, Key string }

// SignFrontProxy creates a front-proxy certificate for one of the names that the API server allows.
func SignFrontProxy(directory string, ca *x509.Certificate, key *rsa.PrivateKey, names []string) (FrontProxy, error) {
	if Program() == "" {
		return FrontProxy{}, nil
	}
	name := "front-proxy-client"
	if len(names) > 0 {
		name = names[0]
	}
	return writePair(directory, "gateway-front-proxy", pkix.Name{CommonName: name}, authority{ca, key})
}

// Start starts a gateway in front of an API server and returns the configuration of the same client for it. The
// gateway ends with the test.
func Start(t TB, server *options.ServerRunOptions, client *rest.Config, proxy FrontProxy) (*rest.Config, error) {
	if Program() == "" {
		return client, nil
	}
	directory, err := os.MkdirTemp("", "gateway")
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	g := &gateway{server: server, directory: directory, proxy: proxy}
	if hasNodePath() {
		if err := g.configureNodePath(t, client); err != nil {
			return nil, fmt.Errorf("prepare the node path: %w", err)
		}
	}
	if err := g.writeFiles(); err != nil {
		return nil, fmt.Errorf("prepare kube-gateway: %w", err)
	}
	if err := g.start(t); err != nil {
		return nil, fmt.Errorf("start kube-gateway: %w", err)
	}
	return g.client(client)
}

// authority is a CA.
type authority struct {
	cert *x509.Certificate
	key  *rsa.PrivateKey
}

// gateway is a running gateway.
type gateway struct {
	server         *options.ServerRunOptions
	directory      string
	proxy          FrontProxy
	address, pages string
	certFile       string
	caFile         string
	serverName     string
	// nodePath is the section nodePath of the configuration, and users signs the certificates of clients. Both are empty
	// without the node path.
	nodePath string
	users    authority
	// warmUp runs once before the node path is used, and uncounted are the counts after it.
	warmUp    sync.Once
	uncounted []int
	// log writes into the log of the test.
	log func(format string, args ...any)
}

// writeFiles writes the gateway's configuration. The gateway serves with the API server's certificate, so that clients
// that verify it succeed.
func (g *gateway) writeFiles() error {
	pair := g.server.SecureServing.ServerCert
	cert, key := pair.CertKey.CertFile, pair.CertKey.KeyFile
	if cert == "" {
		cert = filepath.Join(pair.CertDirectory, pair.PairName+".crt")
		key = filepath.Join(pair.CertDirectory, pair.PairName+".key")
	}
	g.certFile, g.caFile = cert, filepath.Join(g.directory, "server-ca.crt")
	var err error
	if g.serverName, err = writeIssuer(cert, g.caFile); err != nil {
		return err
	}
	clientCA := g.server.Authentication.ClientCert.ClientCA
	if clientCA == "" {
		// The API server accepts no client certificate, so the gateway must not accept one either.
		pair, err := writePair(g.directory, "nobody", pkix.Name{CommonName: "nobody"}, authority{})
		if err != nil {
			return err
		}
		clientCA = pair.Cert
	}
	if g.proxy.Cert == "" {
		if g.proxy, err = writePair(g.directory, "front-proxy", pkix.Name{CommonName: "front-proxy"}, authority{}); err != nil {
			return err
		}
	}
	if g.address, g.pages, err = freeAddresses(); err != nil {
		return err
	}
	header := g.server.Authentication.RequestHeader
	text := fmt.Sprintf(`apiVersion: gateway.k8s-1m.dev/v1alpha1
kind: GatewayConfiguration
listen: {address: %q, metricsAddress: %q, certFile: %q, keyFile: %q, clientCaFile: %q}
upstream: {servers: [%q], caFile: %q, serverName: %q, probePeriod: 100ms}
requestHeader: {certFile: %q, keyFile: %q, usernameHeader: %q, groupHeader: %q, extraHeaderPrefix: %q}
%s`, g.address, g.pages, cert, key, clientCA,
		g.server.SecureServing.Listener.Addr().String(), g.caFile, g.serverName,
		g.proxy.Cert, g.proxy.Key,
		first(header.UsernameHeaders, "X-Remote-User"), first(header.GroupHeaders, "X-Remote-Group"), first(header.ExtraHeaderPrefixes, "X-Remote-Extra-"),
		g.nodePath)
	return os.WriteFile(g.config(), []byte(text), 0o600)
}

func (g *gateway) config() string { return filepath.Join(g.directory, "gateway.yaml") }

func first(values []string, otherwise string) string {
	if len(values) == 0 {
		return otherwise
	}
	return values[0]
}

// start starts the process and waits until it accepts clients. It does not wait until the API server is ready: some
// tests keep it from becoming ready.
func (g *gateway) start(t TB) error {
	g.log = t.Logf
	var log io.Writer
	if logs := os.Getenv("KUBE_GATEWAY_LOGS"); logs != "" {
		file, err := os.CreateTemp(logs, "gateway-*.log")
		if err != nil {
			return err
		}
		defer file.Close()
		log = file
		t.Logf("k1m: log of kube-gateway: %s", file.Name())
	}
	process := exec.Command(Program(), "--config", g.config(), "--log-level", "debug")
	process.Stderr = log
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := process.Start(); err != nil {
		return err
	}
	t.Cleanup(func() {
		g.report(t)
		gateways.Delete(g.address)
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	accepts := func() bool { page, err := g.page("/readyz"); return err == nil && page != notAccepting }
	for deadline := time.Now().Add(startTimeout); !accepts(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not say that clients are accepted after %v", g.pages, startTimeout)
		}
	}
	return nil
}

// handshakes matches the number of handshakes if there were any.
var handshakes = regexp.MustCompile(`(?m)^kube_gateway_tls_handshake_wait_seconds_count [1-9]`)

// report prints whether the test used its gateway. summary.awk reads it.
func (g *gateway) report(t TB) {
	page, err := g.page("/metrics")
	if err != nil {
		t.Logf("k1m: left: kube-gateway has ended: %v", err)
		return
	}
	if !handshakes.MatchString(page) {
		t.Logf("k1m: left: no client connected to kube-gateway")
		return
	}
	t.Logf("k1m: attached: clients connected to kube-gateway")
	if g.nodePath != "" {
		t.Logf("k1m: served: %s", g.served(page))
	}
}

// page returns a page of the gateway. It leaves no connection open, because the tests look for leaked goroutines.
func (g *gateway) page(path string) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + g.pages + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// client returns a client's configuration with the gateway's address and certificate. An API server has a certificate
// of its own for the loopback client of its process, which the gateway does not have.
func (g *gateway) client(direct *rest.Config) (*rest.Config, error) {
	config := rest.CopyConfig(direct)
	config.Host = "https://" + g.address
	ca, err := os.ReadFile(g.caFile)
	if err != nil {
		return nil, err
	}
	if direct.CAFile == "" {
		config.CAData, config.ServerName = ca, g.serverName
	}
	if g.users.cert == nil {
		return config, nil
	}
	gateways.Store(g.address, g)
	return g.loopback(config)
}

// writeIssuer copies the certificates of a serving certificate's file, with its CA, and returns a name in it.
func writeIssuer(cert, copied string) (string, error) {
	text, err := os.ReadFile(cert)
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", fmt.Errorf("%s has no PEM block", cert)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(copied, text, 0o600); err != nil {
		return "", err
	}
	if len(leaf.DNSNames) > 0 {
		return leaf.DNSNames[0], nil
	}
	if len(leaf.IPAddresses) > 0 {
		return leaf.IPAddresses[0].String(), nil
	}
	return strings.TrimSpace(leaf.Subject.CommonName), nil
}

// writePair creates a client certificate, signed by a CA or by itself, and writes it with its key.
func writePair(directory, file string, subject pkix.Name, ca authority) (FrontProxy, error) {
	cert, key, err := sign(subject, ca)
	if err != nil {
		return FrontProxy{}, err
	}
	pair := FrontProxy{Cert: filepath.Join(directory, file+".crt"), Key: filepath.Join(directory, file+".key")}
	for path, text := range map[string][]byte{pair.Cert: cert, pair.Key: key} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return FrontProxy{}, err
		}
	}
	return pair, nil
}

// sign creates a client certificate, signed by a CA or by itself. It returns the certificate and its key as PEM.
func sign(subject pkix.Name, ca authority) (certPEM, keyPEM []byte, err error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      subject,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if ca.cert == nil {
		ca = authority{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", der), encode("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// freeAddresses returns two loopback addresses with ports that were free.
func freeAddresses() (string, string, error) {
	var addresses [2]string
	for i := range addresses {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		defer listener.Close()
		addresses[i] = listener.Addr().String()
	}
	return addresses[0], addresses[1], nil
}
