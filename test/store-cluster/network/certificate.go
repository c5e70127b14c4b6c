package network

import (
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

	"github.com/k8s-1m/k8s-1m/internal/util/storemembers"
)

// PeerTLS writes a CA and one certificate for members at all these addresses.
func PeerTLS(t *testing.T, hosts []net.IP) storemembers.TLSFiles {
	t.Helper()
	dir := t.TempDir()
	files := storemembers.TLSFiles{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "peer.crt"), Key: filepath.Join(dir, "peer.key")}
	ca := template(1, "store members")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caKey := newKey(t)
	writePEM(t, files.CA, "CERTIFICATE", sign(t, ca, ca, caKey, caKey))
	peer := template(2, "store member")
	peer.IPAddresses = hosts
	peer.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	key := newKey(t)
	writePEM(t, files.Cert, "CERTIFICATE", sign(t, peer, ca, key, caKey))
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	writePEM(t, files.Key, "PRIVATE KEY", der)
	return files
}

func template(serial int64, name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(7 * 24 * time.Hour),
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return key
}

// sign returns a certificate that the key of its parent signs.
func sign(t *testing.T, certificate, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, certificate, parent, key.Public(), parentKey)
	must(t, err)
	return der
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
