package webhook

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"
)

const (
	// The next CA is created caOverlap before the current one expires, so that API servers trust it
	// for months before it signs a certificate.
	caValidity = 365 * 24 * time.Hour
	caOverlap  = caValidity / 2
	// A serving certificate is replaced when less than leafReserve of its validity is left.
	leafValidity = 30 * 24 * time.Hour
	leafReserve  = leafValidity / 3
	// The validity of a certificate starts backdate before its creation, because the clocks of
	// machines differ.
	backdate = 5 * time.Minute

	// Keys of the Secret: CA certificates and their private keys, both oldest first.
	caCertsKey = "ca.crt"
	caKeysKey  = "ca.key"
	// A Secret with more than maxCAs CAs was not written by this program, so it is replaced.
	maxCAs = 4
)

// authority issues the serving certificate of this process. All replicas use the same CAs, which are stored
// in a Secret.
type authority struct {
	client kubernetes.Interface
	name   string
	host   string
	now    func() time.Time

	mu   sync.Mutex
	cas  []ca
	leaf *tls.Certificate
}

// ca is a CA certificate with its private key.
type ca struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(client kubernetes.Interface, name, host string, now func() time.Time) *authority {
	return &authority{client: client, name: name, host: host, now: now}
}

// serving returns the serving certificate of this process; nil before the first ensure.
func (a *authority) serving() *tls.Certificate {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leaf
}

// bundle returns the certificates of all CAs in PEM, for the API servers.
func (a *authority) bundle() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return certsOf(a.cas)
}

// ensure creates or renews the CA and the serving certificate if necessary.
func (a *authority) ensure(ctx context.Context) error {
	cas, err := a.ensureCAs(ctx)
	if err != nil {
		return fmt.Errorf("maintaining the webhook CA: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cas = cas
	if a.leaf != nil && a.leaf.Leaf.NotAfter.Sub(a.now()) > leafReserve && signedByOneOf(a.leaf.Leaf, cas) {
		return nil
	}
	if a.leaf, err = a.issue(); err != nil {
		return fmt.Errorf("issuing the webhook certificate: %w", err)
	}
	return nil
}

// ensureCAs updates the Secret and returns the CAs in it. It returns an error if another process writes the
// Secret at the same time; the caller then tries again.
func (a *authority) ensureCAs(ctx context.Context) ([]ca, error) {
	secrets := a.client.CoreV1().Secrets(metav1.NamespaceSystem)
	secret, err := secrets.Get(ctx, a.name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return nil, err
	}
	if missing {
		secret = &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: a.name}, Type: v1.SecretTypeOpaque}
	}
	cas, err := parseCAs(secret.Data[caCertsKey], secret.Data[caKeysKey])
	if err != nil && !missing {
		klog.FromContext(ctx).Error(err, "Replacing the webhook CA, because its Secret is invalid", "secret", klog.KObj(secret))
	}
	kept, changed, err := a.renew(cas)
	if err != nil || !changed {
		return kept, err
	}
	keys, err := keysOf(kept)
	if err != nil {
		return nil, err
	}
	secret.Data = map[string][]byte{caCertsKey: certsOf(kept), caKeysKey: keys}
	if missing {
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	return kept, err
}

// renew removes expired CAs, and adds a new CA if the last one expires within caOverlap.
func (a *authority) renew(cas []ca) (kept []ca, changed bool, err error) {
	now := a.now()
	for _, ca := range cas {
		if ca.cert.NotAfter.After(now) {
			kept = append(kept, ca)
		}
	}
	changed = len(kept) != len(cas)
	if len(kept) > 0 && kept[len(kept)-1].cert.NotAfter.Sub(now) > caOverlap {
		return kept, changed, nil
	}
	cert, key, err := pkiutil.NewCertificateAuthority(&pkiutil.CertConfig{
		Config:   certutil.Config{CommonName: a.name + "-ca", NotBefore: now.Add(-backdate)},
		NotAfter: now.Add(caValidity), EncryptionAlgorithm: kubeadm.EncryptionAlgorithmECDSAP256,
	})
	return append(kept, ca{cert, key}), true, err
}

// issue returns a new serving certificate. It is signed by the oldest CA that does not expire before the
// certificate, because API servers have trusted that CA for the longest time. The caller holds the lock.
func (a *authority) issue() (*tls.Certificate, error) {
	now := a.now()
	config := &pkiutil.CertConfig{
		Config:   certutil.Config{CommonName: a.name, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, NotBefore: now.Add(-backdate)},
		NotAfter: now.Add(leafValidity), EncryptionAlgorithm: kubeadm.EncryptionAlgorithmECDSAP256,
	}
	if ip := net.ParseIP(a.host); ip != nil {
		config.AltNames.IPs = []net.IP{ip}
	} else {
		config.AltNames.DNSNames = []string{a.host}
	}
	for _, ca := range a.cas {
		if ca.cert.NotAfter.Before(config.NotAfter) {
			continue
		}
		cert, key, err := pkiutil.NewCertAndKey(ca.cert, ca.key, config)
		if err != nil {
			return nil, err
		}
		return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
	}
	return nil, errors.New("every CA expires before the certificate would")
}

// signedByOneOf reports whether one of the CAs has signed the certificate.
func signedByOneOf(cert *x509.Certificate, cas []ca) bool {
	for _, ca := range cas {
		if cert.CheckSignatureFrom(ca.cert) == nil {
			return true
		}
	}
	return false
}

// certsOf returns the certificates in PEM.
func certsOf(cas []ca) []byte {
	var all []byte
	for _, ca := range cas {
		all = append(all, pkiutil.EncodeCertPEM(ca.cert)...)
	}
	return all
}

// keysOf returns the private keys in PEM.
func keysOf(cas []ca) ([]byte, error) {
	var all []byte
	for _, ca := range cas {
		key, err := keyutil.MarshalPrivateKeyToPEM(ca.key)
		if err != nil {
			return nil, err
		}
		all = append(all, key...)
	}
	return all, nil
}

// parseCAs parses the CAs of a Secret. It returns an error if any part is invalid.
func parseCAs(certs, keys []byte) ([]ca, error) {
	parsed, err := certutil.ParseCertsPEM(certs)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", caCertsKey, err)
	}
	var cas []ca
	for _, cert := range parsed {
		var block *pem.Block
		if block, keys = pem.Decode(keys); block == nil {
			return nil, fmt.Errorf("%s has fewer keys than %s has certificates", caKeysKey, caCertsKey)
		}
		parsed, err := keyutil.ParsePrivateKeyPEM(pem.EncodeToMemory(block))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", caKeysKey, err)
		}
		key, ok := parsed.(crypto.Signer)
		if !ok || !cert.IsCA || !keyMatches(cert, key) {
			return nil, fmt.Errorf("%s has a certificate that is not a CA or whose key is not in %s", caCertsKey, caKeysKey)
		}
		cas = append(cas, ca{cert, key})
	}
	if len(cas) > maxCAs {
		return nil, fmt.Errorf("%s has %d certificates, at most %d are expected", caCertsKey, len(cas), maxCAs)
	}
	return cas, nil
}

// keyMatches reports whether a private key belongs to a certificate.
func keyMatches(cert *x509.Certificate, key crypto.Signer) bool {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	return err == nil && bytes.Equal(public, cert.RawSubjectPublicKeyInfo)
}
