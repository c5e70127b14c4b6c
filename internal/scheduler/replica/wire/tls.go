package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// TLS has the certificates for connections between replicas. Each replica uses one certificate as server
// and as client. It names the replica (see [membership.Identity]), so that no replica can speak for
// another one. Changed files are read again.
type TLS struct {
	logger      klog.Logger
	self        membership.Identity
	certificate *dynamiccertificates.DynamicCertKeyPairContent
	authority   *dynamiccertificates.DynamicFileCAContent

	mu sync.Mutex
	// own is the last valid certificate of this replica. roots are the CAs, as last read from bundle.
	own    *tls.Certificate
	roots  *x509.CertPool
	bundle []byte
	// open are the connections that are open.
	open map[*connection]bool
	// rejectedAt is the time at which the last rejected connection was logged.
	rejectedAt time.Time
}

// rejectedLogInterval is the shortest time between two log messages about rejected connections, because any
// client can cause them.
const rejectedLogInterval = 10 * time.Second

// NewTLS reads the certificate and key of this replica, and the CAs that sign the certificates of the
// replicas of its group. It returns an error if the certificate is not valid for this replica. It reads
// changed files until the context ends.
func NewTLS(ctx context.Context, self membership.Identity, certFile, keyFile, caFile string) (*TLS, error) {
	if err := self.Validate(); err != nil {
		return nil, err
	}
	certificate, err := dynamiccertificates.NewDynamicServingContentFromFiles("replica", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the replica certificate: %w", err)
	}
	authority, err := dynamiccertificates.NewDynamicCAContentFromFile("replicas", caFile)
	if err != nil {
		return nil, fmt.Errorf("reading the replica CA: %w", err)
	}
	t := &TLS{logger: klog.FromContext(ctx), self: self, certificate: certificate, authority: authority, open: map[*connection]bool{}}
	if err := t.load(); err != nil {
		return nil, fmt.Errorf("--replica-cert-file %s with --replica-ca-file %s: %w", certFile, caFile, err)
	}
	certificate.AddListener(t)
	authority.AddListener(t)
	go certificate.Run(ctx, 1)
	go authority.Run(ctx, 1)
	return t, nil
}

// Enqueue is called when a file has changed. If the new certificate is not valid for this replica, the
// previous one remains in use. Connections end whose other side the CAs no longer cover.
func (t *TLS) Enqueue() {
	if err := t.load(); err != nil {
		t.logger.Error(err, "The new replica certificate is invalid; using the previous one", "certificate", t.certificate.Name())
	}
	t.mu.Lock()
	connections := make([]*connection, 0, len(t.open))
	for c := range t.open {
		connections = append(connections, c)
	}
	t.mu.Unlock()
	for _, c := range connections {
		if _, err := t.verify(c.peer, c.usage); err != nil {
			t.logger.Info("Closing a connection to another replica, because its certificate is no longer valid", "replica", c.name, "err", err)
			_ = c.Close()
		}
	}
}

// load makes the current content of the files the certificates in use.
func (t *TLS) load() error {
	bundle := t.authority.CurrentCABundleContent()
	t.mu.Lock()
	if !bytes.Equal(bundle, t.bundle) {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(bundle)
		t.roots, t.bundle = roots, bundle
	}
	t.mu.Unlock()
	own, err := tls.X509KeyPair(t.certificate.CurrentCertKeyContent())
	if err != nil {
		return err
	}
	chain, err := parse(own.Certificate)
	if err != nil {
		return err
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		id, err := t.verify(chain, usage)
		if err != nil {
			return err
		}
		if id != t.self {
			return fmt.Errorf("the certificate is for %s, but this replica is %s; set --replica-name, or issue another certificate", id.URI(), t.self.URI())
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.own = &own
	return nil
}

// parse parses the certificates of a chain.
func parse(chain [][]byte) ([]*x509.Certificate, error) {
	var parsed []*x509.Certificate
	for _, der := range chain {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, cert)
	}
	return parsed, nil
}

// verify returns the identity in a certificate chain. It returns an error if no CA covers the chain, or
// if it does not belong to a replica of this group.
func (t *TLS) verify(chain []*x509.Certificate, usage x509.ExtKeyUsage) (membership.Identity, error) {
	if len(chain) == 0 {
		return membership.Identity{}, errors.New("the other side presented no certificate")
	}
	t.mu.Lock()
	options := x509.VerifyOptions{Roots: t.roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{usage}}
	t.mu.Unlock()
	for _, intermediate := range chain[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	if _, err := chain[0].Verify(options); err != nil {
		return membership.Identity{}, err
	}
	id, err := membership.IdentityOf(chain[0])
	if err == nil && id.Group != t.self.Group {
		err = fmt.Errorf("the certificate is for %s, not for group %s", id.URI(), t.self.Group)
	}
	return id, err
}

// certificateError is the reason for which the certificate of the other side was rejected.
type certificateError struct{ error }

// config returns the configuration for connections whose other side must have a certificate with a usage.
// If name is not "", the certificate must be for the replica of that name.
func (t *TLS) config(usage x509.ExtKeyUsage, name string) *tls.Config {
	own := func() (*tls.Certificate, error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.own, nil
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() },
		// VerifyConnection replaces the default check. It does not check host names, because the addresses
		// of replicas change.
		ClientAuth:         tls.RequestClientCert,
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			id, err := t.verify(state.PeerCertificates, usage)
			if err == nil && name != "" && id.Name != name {
				err = fmt.Errorf("the certificate is for replica %s, not for %s", id.Name, name)
			}
			if err != nil {
				return &certificateError{err}
			}
			return nil
		},
		// A resumed session would keep a certificate that is no longer valid.
		SessionTicketsDisabled: true,
	}
}

// serverCredentials returns the gRPC credentials of the server; without TLS if t is nil.
func (t *TLS) serverCredentials() credentials.TransportCredentials {
	if t == nil {
		return insecure.NewCredentials()
	}
	return &named{TransportCredentials: credentials.NewTLS(t.config(x509.ExtKeyUsageClientAuth, "")), tls: t, usage: x509.ExtKeyUsageClientAuth}
}

// clientCredentials returns the gRPC credentials for a connection to the replica of the given name; without
// TLS if t is nil.
func (t *TLS) clientCredentials(name string) credentials.TransportCredentials {
	if t == nil {
		return insecure.NewCredentials()
	}
	return &named{TransportCredentials: credentials.NewTLS(t.config(x509.ExtKeyUsageServerAuth, name)), tls: t, usage: x509.ExtKeyUsageServerAuth}
}

// logRejected counts a connection that was not established because of its certificates, and logs it.
func (t *TLS) logRejected(address net.Addr, err error) {
	rejectedConnections.Inc()
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.rejectedAt) < rejectedLogInterval {
		return
	}
	t.rejectedAt = time.Now()
	t.logger.Error(err, "Rejected a connection between replicas", "address", address)
}
