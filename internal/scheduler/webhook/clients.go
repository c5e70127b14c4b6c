package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// clients decides which clients may send pods. An API server has a client certificate for webhooks if its
// AdmissionConfiguration refers to a kubeconfig with one.
type clients struct {
	// authority has the CAs of the API servers' certificates; nil if no certificate is required. Its
	// file is read again when it changes.
	authority *dynamiccertificates.DynamicFileCAContent
	// names are the accepted common names.
	names []string
	// verified is the last certificate that was accepted.
	verified atomic.Pointer[verifiedClient]
}

// verifiedClient is a client certificate that was accepted with CAs.
type verifiedClient struct {
	leaf  *x509.Certificate
	roots *x509.CertPool
}

// newClients reads the CA file of the options. It reads it again when it changes, until the context ends.
func newClients(ctx context.Context, o Options) (*clients, error) {
	if o.ClientCAFile == "" {
		return &clients{}, nil
	}
	authority, err := dynamiccertificates.NewDynamicCAContentFromFile("intake-client", o.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("--intake-client-ca-file: %w", err)
	}
	go authority.Run(ctx, 1)
	return &clients{authority: authority, names: o.ClientNames}, nil
}

// configure makes a server request certificates from its clients. A client without one gets an answer to
// its request, which says what is missing.
func (c *clients) configure(config *tls.Config) {
	if c.authority != nil {
		config.ClientAuth = tls.RequestClientCert
	}
}

// check returns an error if a client on a connection may not send pods.
func (c *clients) check(state *tls.ConnectionState) error {
	if c.authority == nil {
		return nil
	}
	if state == nil || len(state.PeerCertificates) == 0 {
		return errors.New("no client certificate: configure one for this webhook in the API server's AdmissionConfiguration")
	}
	options, ok := c.authority.VerifyOptions()
	if !ok {
		return errors.New("no CA is loaded to verify client certificates")
	}
	leaf := state.PeerCertificates[0]
	// Verifying a signature for each request would cost a tenth of the CPU time of the request.
	if v := c.verified.Load(); v != nil && v.roots == options.Roots && v.leaf.Equal(leaf) && time.Now().Before(leaf.NotAfter) {
		return nil
	}
	options.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	options.Intermediates = x509.NewCertPool()
	for _, intermediate := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	if _, err := leaf.Verify(options); err != nil {
		return err
	}
	if !slices.Contains(c.names, leaf.Subject.CommonName) {
		return fmt.Errorf("client certificate of %q, which is not in --intake-client-names", leaf.Subject.CommonName)
	}
	c.verified.Store(&verifiedClient{leaf, options.Roots})
	return nil
}
