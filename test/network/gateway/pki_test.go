package gateway

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pki is the certificate authority of a test.
type pki struct {
	directory   string
	certificate *x509.Certificate
	key         crypto.Signer
	serial      int64
	serials     map[string]int64
}

func newPKI(t *testing.T, directory string) *pki {
	t.Helper()
	p := &pki{directory: directory, serial: 1, serials: map[string]int64{}}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, SubjectKeyId: []byte{1, 2, 3},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	p.key = key
	p.certificate, err = x509.ParseCertificate(der)
	must(t, err)
	p.write(t, "ca.crt", "CERTIFICATE", der)
	p.issue(t, "gateway", &x509.Certificate{
		Subject: pkix.Name{CommonName: "gateway"}, IPAddresses: []net.IP{net.ParseIP(gatewayAddress)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	for _, name := range []string{"n1", "n2", "stranger"} {
		p.issueNode(t, name, "system:node:"+name, "system:nodes")
	}
	p.issueNode(t, "admin", "kubernetes-admin", "system:masters")
	p.revoke(t)
	return p
}

func (p *pki) issueNode(t *testing.T, file, user, group string) {
	t.Helper()
	p.issue(t, file, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: []string{group}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (p *pki) issue(t *testing.T, file string, template *x509.Certificate) {
	t.Helper()
	p.serial++
	p.serials[file] = p.serial
	template.SerialNumber = big.NewInt(p.serial)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(12*time.Hour)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, p.certificate, key.Public(), p.key)
	must(t, err)
	p.write(t, file+".crt", "CERTIFICATE", der)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	p.write(t, file+".key", "PRIVATE KEY", private)
}

// revoke publishes the list of revoked certificates.
func (p *pki) revoke(t *testing.T, files ...string) {
	t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(time.Now().UnixNano()), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
	for _, file := range files {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{
			SerialNumber: big.NewInt(p.serials[file]), RevocationTime: time.Now(),
		})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, p.certificate, p.key)
	must(t, err)
	p.write(t, "crl.pem", "X509 CRL", der)
}

func (p *pki) write(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	path := filepath.Join(p.directory, file)
	must(t, os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	must(t, os.Rename(path+".new", path))
}
