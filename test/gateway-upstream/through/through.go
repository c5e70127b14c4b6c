// Package through puts kube-gateway in front of the API servers that Kubernetes' own tests start in their
// process. It is linked into their test binaries.
//
//	KUBE_GATEWAY       the program; empty: tests reach their API servers directly
//	KUBE_GATEWAY_LOGS  directory for its logs (none if empty)
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
)

// TB is what the package needs of a test.
type TB interface {
	Logf(format string, args ...any)
	Cleanup(func())
}

// Program returns the gateway's program, or an empty string if tests reach API servers directly.
func Program() string { return os.Getenv("KUBE_GATEWAY") }

// Prepare makes an API server accept the UID of a front proxy's users, which kubeadm's servers accept too, but test
// servers do not by default.
func Prepare(server *options.ServerRunOptions) {
	if Program() == "" || !utilfeature.DefaultFeatureGate.Enabled(genericfeatures.RemoteRequestHeaderUID) {
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
	return writePair(directory, "gateway-front-proxy", name, ca, key)
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
	if err := g.writeFiles(); err != nil {
		return nil, fmt.Errorf("prepare kube-gateway: %w", err)
	}
	if err := g.start(t); err != nil {
		return nil, fmt.Errorf("start kube-gateway: %w", err)
	}
	return g.client(client)
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
		pair, err := writePair(g.directory, "nobody", "nobody", nil, nil)
		if err != nil {
			return err
		}
		clientCA = pair.Cert
	}
	if g.proxy.Cert == "" {
		if g.proxy, err = writePair(g.directory, "front-proxy", "front-proxy", nil, nil); err != nil {
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
`, g.address, g.pages, cert, key, clientCA,
		g.server.SecureServing.Listener.Addr().String(), g.caFile, g.serverName,
		g.proxy.Cert, g.proxy.Key,
		first(header.UsernameHeaders, "X-Remote-User"), first(header.GroupHeaders, "X-Remote-Group"), first(header.ExtraHeaderPrefixes, "X-Remote-Extra-"))
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
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	ready := func() bool { page, err := g.page("/livez"); return err == nil && page == "ok" }
	for deadline := time.Now().Add(startTimeout); !ready(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not serve /livez after %v", g.pages, startTimeout)
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
	return config, nil
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
func writePair(directory, file, name string, ca *x509.Certificate, caKey *rsa.PrivateKey) (FrontProxy, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return FrontProxy{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if ca == nil {
		ca, caKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
	if err != nil {
		return FrontProxy{}, err
	}
	pair := FrontProxy{Cert: filepath.Join(directory, file+".crt"), Key: filepath.Join(directory, file+".key")}
	for path, block := range map[string]*pem.Block{
		pair.Cert: {Type: "CERTIFICATE", Bytes: der},
		pair.Key:  {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			return FrontProxy{}, err
		}
	}
	return pair, nil
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
