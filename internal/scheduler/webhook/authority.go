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
	// A CA is joined by its successor halfway, so that API servers trust both for long
	// before the first certificate of the new one.
	caValidity = 365 * 24 * time.Hour
	caOverlap  = caValidity / 2
	// A serving certificate is replaced with a third of its time left.
	leafValidity = 30 * 24 * time.Hour
	leafReserve  = leafValidity / 3
	// Clocks may differ by so much.
	backdate = 5 * time.Minute

	// What the Secret has: certificates, and their keys in the same order, oldest first.
	caCertsKey = "ca.crt"
	caKeysKey  = "ca.key"
	// Secrets with more are somebody else's work.
	maxCAs = 4
)

// authority makes this process's serving certificate, from a CA that all replicas
// share through a Secret.
type authority struct {
	client kubernetes.Interface
	name   string
	host   string
	now    func() time.Time

	mu   sync.Mutex
	cas  []ca
	leaf *tls.Certificate
}

// ca is a CA that signs, or will.
type ca struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(client kubernetes.Interface, name, host string, now func() time.Time) *authority {
	return &authority{client: client, name: name, host: host, now: now}
}

// serving is the certificate of this process.
func (a *authority) serving() *tls.Certificate {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leaf
}

// bundle is what API servers are to trust.
func (a *authority) bundle() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return certsOf(a.cas)
}

// ensure makes whatever is missing, or ends soon.
func (a *authority) ensure(ctx context.Context) error {
	cas, err := a.ensureCAs(ctx)
	if err != nil {
		return fmt.Errorf("keeping the CA of the webhook: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cas = cas
	if a.leaf != nil && a.leaf.Leaf.NotAfter.Sub(a.now()) > leafReserve && signedByOneOf(a.leaf.Leaf, cas) {
		return nil
	}
	if a.leaf, err = a.issue(); err != nil {
		return fmt.Errorf("making the certificate of the webhook: %w", err)
	}
	return nil
}

// ensureCAs brings the Secret up to date and returns the CAs in it. Whoever else does
// so at the same time wins: then it is read again.
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
		klog.FromContext(ctx).Error(err, "The CA of the webhook is replaced", "secret", klog.KObj(secret))
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

// renew drops CAs that have ended, and adds one if the last is past its middle.
func (a *authority) renew(cas []ca) (kept []ca, changed bool, err error) {
	now := a.now()
	for _, one := range cas {
		if one.cert.NotAfter.After(now) {
			kept = append(kept, one)
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

// issue makes a serving certificate by the oldest CA that outlives it: API servers
// have known it for longest. The lock is held.
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
	for _, one := range a.cas {
		if one.cert.NotAfter.Before(config.NotAfter) {
			continue
		}
		cert, key, err := pkiutil.NewCertAndKey(one.cert, one.key, config)
		if err != nil {
			return nil, err
		}
		return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
	}
	return nil, errors.New("no CA lives long enough")
}

func signedByOneOf(cert *x509.Certificate, cas []ca) bool {
	for _, one := range cas {
		if cert.CheckSignatureFrom(one.cert) == nil {
			return true
		}
	}
	return false
}

func certsOf(cas []ca) []byte {
	var all []byte
	for _, one := range cas {
		all = append(all, pkiutil.EncodeCertPEM(one.cert)...)
	}
	return all
}

func keysOf(cas []ca) ([]byte, error) {
	var all []byte
	for _, one := range cas {
		key, err := keyutil.MarshalPrivateKeyToPEM(one.key)
		if err != nil {
			return nil, err
		}
		all = append(all, key...)
	}
	return all, nil
}

// parseCAs reads what a Secret has; nothing of it is used if something is wrong.
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
		key, signs := parsed.(crypto.Signer)
		if !signs || !cert.IsCA || !belong(cert, key) {
			return nil, fmt.Errorf("%s and %s do not belong together", caCertsKey, caKeysKey)
		}
		cas = append(cas, ca{cert, key})
	}
	if len(cas) > maxCAs {
		return nil, fmt.Errorf("%s has %d certificates", caCertsKey, len(cas))
	}
	return cas, nil
}

func belong(cert *x509.Certificate, key crypto.Signer) bool {
	of, err := x509.MarshalPKIXPublicKey(key.Public())
	return err == nil && bytes.Equal(of, cert.RawSubjectPublicKeyInfo)
}
