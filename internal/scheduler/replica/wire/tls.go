package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// TLS has the certificates for connections between replicas. Each replica uses one
// certificate as server and as client. Changed files are reloaded.
type TLS struct {
	certificate *dynamiccertificates.DynamicCertKeyPairContent
	authority   *dynamiccertificates.DynamicFileCAContent
}

// NewTLS reads the replica's certificate and key, and the CA that signs the certificates
// of all replicas. It reloads changed files until the context ends.
func NewTLS(ctx context.Context, certFile, keyFile, caFile string) (*TLS, error) {
	certificate, err := dynamiccertificates.NewDynamicServingContentFromFiles("replica", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the replica certificate: %w", err)
	}
	authority, err := dynamiccertificates.NewDynamicCAContentFromFile("replicas", caFile)
	if err != nil {
		return nil, fmt.Errorf("reading the replica CA: %w", err)
	}
	go certificate.Run(ctx, 1)
	go authority.Run(ctx, 1)
	return &TLS{certificate, authority}, nil
}

// config returns the configuration for both sides of a connection.
func (t *TLS) config() *tls.Config {
	own := func() (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(t.certificate.CurrentCertKeyContent())
		return &pair, err
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() },
		// verify replaces the default check. It requires a certificate of the CA from both sides.
		// It does not check host names, because all replicas have the same rights and their
		// addresses change.
		ClientAuth:         tls.RequireAnyClientCert,
		InsecureSkipVerify: true,
		VerifyConnection:   t.verify,
	}
}

// verify checks that the peer's certificate was signed by the CA.
func (t *TLS) verify(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the other replica presented no certificate")
	}
	options, ok := t.authority.VerifyOptions()
	if !ok {
		return errors.New("no CA is loaded to verify other replicas")
	}
	options.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	options.Intermediates = x509.NewCertPool()
	for _, intermediate := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	_, err := state.PeerCertificates[0].Verify(options)
	return err
}

// credentials returns the gRPC credentials; without TLS if t is nil.
func (t *TLS) credentials() credentials.TransportCredentials {
	if t == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(t.config())
}
