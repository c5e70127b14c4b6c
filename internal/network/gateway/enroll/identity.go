package enroll

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"strings"
)

const (
	userPrefix = "system:node:"
	nodesGroup = "system:nodes"
)

// NodeName returns the name of the node that a client certificate is for.
func NodeName(certificate *x509.Certificate) (string, error) {
	name, isNode := strings.CutPrefix(certificate.Subject.CommonName, userPrefix)
	if !isNode || name == "" || !slices.Contains(certificate.Subject.Organization, nodesGroup) {
		return "", fmt.Errorf("certificate of %q is not that of a node: use the client certificate of kubelet, with the common name %sNAME and the organization %s",
			certificate.Subject.CommonName, userPrefix, nodesGroup)
	}
	return name, nil
}

// ReadCertificates reads all certificates of a PEM file.
func ReadCertificates(path string) (*x509.CertPool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("CA certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("CA certificates: %s has no certificate in PEM", path)
	}
	return pool, nil
}

// ServerTLS returns the TLS configuration of the server. The server's own certificate is read again for
// each connection, so that it can be renewed.
func ServerTLS(certificate, key string, clients *x509.CertPool) (*tls.Config, error) {
	load := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("certificate of the gateway: %w", err)
		}
		return &pair, nil
	}
	if _, err := load(nil); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, GetCertificate: load,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
	}, nil
}
