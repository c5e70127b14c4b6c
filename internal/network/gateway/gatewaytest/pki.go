// Package gatewaytest has what tests and benchmarks of the gateway need: a certificate authority for
// gateways and nodes.
package gatewaytest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
)

// PKI is a certificate authority. Its files are in a directory: ca.crt, crl.pem, NAME.crt and NAME.key.
type PKI struct {
	directory   string
	certificate *x509.Certificate
	key         crypto.Signer
	serial      int64
	serials     map[string]int64
}

// NewPKI makes an authority with a certificate "gateway" for an address, and an empty revocation list.
func NewPKI(directory string, gateway net.IP) (*PKI, error) {
	p := &PKI{directory: directory, serial: 1, serials: map[string]int64{}}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, SubjectKeyId: []byte{1, 2, 3},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	p.key = key
	if p.certificate, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	if err := p.write("ca.crt", "CERTIFICATE", der); err != nil {
		return nil, err
	}
	if err := p.Revoke(); err != nil {
		return nil, err
	}
	return p, p.issueFiles("gateway", &x509.Certificate{
		Subject: pkix.Name{CommonName: "gateway"}, IPAddresses: []net.IP{gateway},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// Roots returns the authority for clients.
func (p *PKI) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(p.certificate)
	return pool
}

// IssueNode makes the files of a client certificate for a node.
func (p *PKI) IssueNode(name string) error {
	return p.IssueClient(name, "system:node:"+name, "system:nodes")
}

// IssueClient makes the files of a client certificate.
func (p *PKI) IssueClient(file, user, group string) error {
	return p.issueFiles(file, clientTemplate(user, group))
}

// Node makes a client certificate for a node without files.
func (p *PKI) Node(name string) (tls.Certificate, error) {
	der, key, err := p.issue(name, clientTemplate("system:node:"+name, "system:nodes"))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

func clientTemplate(user, group string) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: []string{group}}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

func (p *PKI) issue(file string, template *x509.Certificate) (der []byte, key *ecdsa.PrivateKey, err error) {
	p.serial++
	p.serials[file] = p.serial
	template.SerialNumber = big.NewInt(p.serial)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(12*time.Hour)
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	der, err = x509.CreateCertificate(rand.Reader, template, p.certificate, key.Public(), p.key)
	return der, key, err
}

func (p *PKI) issueFiles(file string, template *x509.Certificate) error {
	der, key, err := p.issue(file, template)
	if err != nil {
		return err
	}
	if err := p.write(file+".crt", "CERTIFICATE", der); err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return p.write(file+".key", "PRIVATE KEY", private)
}

// Revoke publishes the list of all revoked certificates, which are named by their files.
func (p *PKI) Revoke(files ...string) error {
	list := &x509.RevocationList{Number: big.NewInt(time.Now().UnixNano()), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
	for _, file := range files {
		if p.serials[file] == 0 {
			return fmt.Errorf("no certificate %s", file)
		}
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{
			SerialNumber: big.NewInt(p.serials[file]), RevocationTime: time.Now(),
		})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, p.certificate, p.key)
	if err != nil {
		return err
	}
	return p.write("crl.pem", "X509 CRL", der)
}

// write replaces a file at once, because programs read it meanwhile.
func (p *PKI) write(file, kind string, der []byte) error {
	return atomicfile.Write(filepath.Join(p.directory, file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
