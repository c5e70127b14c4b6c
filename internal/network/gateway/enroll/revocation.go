package enroll

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync"
)

// Revocations are the serial numbers of revoked certificates, from a file with certificate revocation
// lists (RFC 5280) in PEM. Without a file, no certificate is revoked.
type Revocations struct {
	path    string
	issuers []*x509.Certificate

	mu      sync.RWMutex
	serials map[string]struct{}
	loaded  []byte // the content that serials are from
}

// NewRevocations reads a file. The lists must be signed by certificates of the CA file.
func NewRevocations(path, caFile string) (*Revocations, error) {
	r := &Revocations{path: path}
	if path == "" {
		return r, nil
	}
	data, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("CA certificates: %w", err)
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		issuer, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("CA certificates: %s: %w", caFile, err)
		}
		r.issuers = append(r.issuers, issuer)
	}
	return r, r.Reload()
}

// Reload reads the file again if it has changed. After an error, the former lists hold.
func (r *Revocations) Reload() error {
	if r.path == "" {
		return nil
	}
	data, err := os.ReadFile(r.path)
	if err != nil {
		return fmt.Errorf("revocation list: %w", err)
	}
	r.mu.RLock()
	same := r.loaded != nil && bytes.Equal(data, r.loaded)
	r.mu.RUnlock()
	if same {
		return nil
	}
	serials, err := r.parse(data)
	if err != nil {
		return fmt.Errorf("revocation list: %s: %w", r.path, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serials, r.loaded = serials, data
	return nil
}

func (r *Revocations) parse(data []byte) (map[string]struct{}, error) {
	serials := map[string]struct{}{}
	lists := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "X509 CRL" {
			continue
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, err
		}
		if !r.signed(list) {
			return nil, errors.New("a list is not signed by a client CA")
		}
		lists++
		for _, entry := range list.RevokedCertificateEntries {
			serials[entry.SerialNumber.String()] = struct{}{}
		}
	}
	if lists == 0 {
		return nil, errors.New(`no block "X509 CRL" in PEM`)
	}
	return serials, nil
}

func (r *Revocations) signed(list *x509.RevocationList) bool {
	for _, issuer := range r.issuers {
		if list.CheckSignatureFrom(issuer) == nil {
			return true
		}
	}
	return false
}

// Revoked is true if a certificate has been revoked. The serial number is decimal.
func (r *Revocations) Revoked(serial string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, revoked := r.serials[serial]
	return revoked
}
