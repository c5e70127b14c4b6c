package testcluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// ClientCertificate returns the certificate of a user that the cluster's CA has signed.
func (c *Cluster) ClientCertificate(t *testing.T, user string, groups ...string) tls.Certificate {
	t.Helper()
	return c.certificate(t, "", user, groups...)
}

// StoreCertificate writes a client certificate for the store with a common name, and its key. It returns their paths.
func (c *Cluster) StoreCertificate(t *testing.T, name string) (certificate, key string) {
	t.Helper()
	issued := c.certificate(t, "etcd/", name)
	private, err := x509.MarshalPKCS8PrivateKey(issued.PrivateKey)
	must(t, err)
	certificate, key = filepath.Join(c.Home, name+".crt"), filepath.Join(c.Home, name+".key")
	must(t, os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issued.Certificate[0]}), 0o600))
	must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return certificate, key
}

// certificate returns a client certificate that the CA in a directory of the PKI has signed.
func (c *Cluster) certificate(t *testing.T, directory, user string, groups ...string) tls.Certificate {
	t.Helper()
	read := func(name string) []byte {
		text, err := os.ReadFile(c.PKI(directory + name))
		must(t, err)
		block, _ := pem.Decode(text)
		return block.Bytes
	}
	ca, err := x509.ParseCertificate(read("ca.crt"))
	must(t, err)
	signer := parseKey(t, read("ca.key"))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: user, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, key.Public(), signer)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func parseKey(t *testing.T, der []byte) any {
	t.Helper()
	if key, err := x509.ParsePKCS8PrivateKey(der); err == nil {
		return key
	}
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key
	}
	key, err := x509.ParsePKCS1PrivateKey(der)
	must(t, err)
	return key
}
