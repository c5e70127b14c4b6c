// Package authority is a certificate authority that renews itself. It consists of one or more CAs. The next
// CA is added long before the current one expires, and signs certificates only when the current one cannot
// any more. So whoever verifies certificates has trusted a CA for months before it is used.
//
// The package does no I/O. Callers store the CAs, and pass the time.
package authority

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"
)

const (
	// CAValidity is the validity of a CA. The next CA is created caOverlap before the last one expires.
	CAValidity = 365 * 24 * time.Hour
	caOverlap  = CAValidity / 2
	// LeafValidity is the validity of a certificate. It is replaced when less than LeafReserve is left.
	LeafValidity = 30 * 24 * time.Hour
	LeafReserve  = LeafValidity / 3
	// The validity of a certificate starts backdate before its creation, because the clocks of
	// machines differ.
	backdate = 5 * time.Minute
	// maxCAs is more than Renew ever keeps.
	maxCAs = 4
)

// CA is a CA certificate with its private key.
type CA struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// Renew removes expired CAs, and adds a new one if the last one expires within half of [CAValidity].
// The oldest CA comes first.
func Renew(cas []CA, commonName string, now time.Time) (kept []CA, changed bool, err error) {
	for _, ca := range cas {
		if ca.Cert.NotAfter.After(now) {
			kept = append(kept, ca)
		}
	}
	changed = len(kept) != len(cas)
	if len(kept) > 0 && kept[len(kept)-1].Cert.NotAfter.Sub(now) > caOverlap {
		return kept, changed, nil
	}
	cert, key, err := pkiutil.NewCertificateAuthority(&pkiutil.CertConfig{
		Config:   certutil.Config{CommonName: commonName, NotBefore: now.Add(-backdate)},
		NotAfter: now.Add(CAValidity), EncryptionAlgorithm: kubeadm.EncryptionAlgorithmECDSAP256,
	})
	return append(kept, CA{cert, key}), true, err
}

// Issue returns a new certificate with the subject, the names and the usages of the template. It is
// signed by the oldest CA that does not expire before the certificate.
func Issue(cas []CA, template *x509.Certificate, now time.Time) (*tls.Certificate, error) {
	leaf := *template
	leaf.NotBefore, leaf.NotAfter = now.Add(-backdate), now.Add(LeafValidity)
	leaf.KeyUsage, leaf.BasicConstraintsValid = x509.KeyUsageDigitalSignature, true
	for _, ca := range cas {
		if !ca.Cert.NotAfter.Before(leaf.NotAfter) {
			return sign(ca, &leaf)
		}
	}
	return nil, errors.New("every CA expires before the certificate would")
}

func sign(ca CA, leaf *x509.Certificate) (*tls.Certificate, error) {
	key, err := pkiutil.GeneratePrivateKey(kubeadm.EncryptionAlgorithmECDSAP256)
	if err != nil {
		return nil, err
	}
	if leaf.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca.Cert, key.Public(), ca.Key)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: parsed}, err
}

// NeedsRenewal reports whether a certificate expires soon, or none of the CAs has signed it.
func NeedsRenewal(cert *x509.Certificate, cas []CA, now time.Time) bool {
	if cert.NotAfter.Sub(now) <= LeafReserve {
		return true
	}
	for _, ca := range cas {
		if cert.CheckSignatureFrom(ca.Cert) == nil {
			return false
		}
	}
	return true
}

// EncodeCerts returns the certificates of the CAs in PEM.
func EncodeCerts(cas []CA) []byte {
	var all []byte
	for _, ca := range cas {
		all = append(all, pkiutil.EncodeCertPEM(ca.Cert)...)
	}
	return all
}

// EncodeKeys returns the private keys of the CAs in PEM.
func EncodeKeys(cas []CA) ([]byte, error) {
	var all []byte
	for _, ca := range cas {
		key, err := keyutil.MarshalPrivateKeyToPEM(ca.Key)
		if err != nil {
			return nil, err
		}
		all = append(all, key...)
	}
	return all, nil
}

// Parse parses CAs from PEM: certificates, and private keys in the same order. Either may contain blocks of
// other types, which are skipped, so both may be the same data.
func Parse(certs, keys []byte) ([]CA, error) {
	parsed, err := certutil.ParseCertsPEM(certs)
	if err != nil {
		return nil, fmt.Errorf("CA certificates: %w", err)
	}
	if len(parsed) > maxCAs {
		return nil, fmt.Errorf("%d CA certificates, at most %d are expected", len(parsed), maxCAs)
	}
	var cas []CA
	for _, cert := range parsed {
		var block *pem.Block
		for block, keys = pem.Decode(keys); block != nil && block.Type == certutil.CertificateBlockType; {
			block, keys = pem.Decode(keys)
		}
		if block == nil {
			return nil, errors.New("fewer private keys than CA certificates")
		}
		key, err := keyutil.ParsePrivateKeyPEM(pem.EncodeToMemory(block))
		if err != nil {
			return nil, fmt.Errorf("CA keys: %w", err)
		}
		signer, ok := key.(crypto.Signer)
		if !ok || !cert.IsCA || !matches(cert, signer) {
			return nil, errors.New("a certificate is not a CA, or its private key is missing")
		}
		cas = append(cas, CA{cert, signer})
	}
	return cas, nil
}

// matches reports whether a private key belongs to a certificate.
func matches(cert *x509.Certificate, key crypto.Signer) bool {
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	return err == nil && bytes.Equal(public, cert.RawSubjectPublicKeyInfo)
}
