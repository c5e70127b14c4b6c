package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"os"
	"testing"
	"time"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         any
}

// clusterCA returns the CA of the cluster, which signs its users.
func (c *cluster) clusterCA(t *testing.T) authority {
	t.Helper()
	read := func(name string) []byte {
		text, err := os.ReadFile(c.PKI(name))
		must(t, err)
		block, _ := pem.Decode(text)
		if block == nil {
			t.Fatalf("%s has no PEM block", name)
		}
		return block.Bytes
	}
	certificate, err := x509.ParseCertificate(read("ca.crt"))
	must(t, err)
	der := read("ca.key")
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		var ecErr error
		if key, ecErr = x509.ParseECPrivateKey(der); ecErr != nil {
			rsaKey, rsaErr := x509.ParsePKCS1PrivateKey(der)
			must(t, rsaErr)
			key = rsaKey
		}
	}
	return authority{certificate, key}
}

// template returns a certificate of a user that is valid now.
func template(subject pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// sign returns a certificate with a new key.
func (a authority) sign(t *testing.T, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// newAuthority returns a CA that is signed by itself.
func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	ca := template(pkix.Name{CommonName: "another CA"})
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage, ca.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	must(t, err)
	certificate, err := x509.ParseCertificate(der)
	must(t, err)
	return authority{certificate, key}
}

// intermediate returns a CA that is signed by a.
func (a authority) intermediate(t *testing.T) authority {
	t.Helper()
	ca := template(pkix.Name{CommonName: "an intermediate CA"})
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage, ca.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	signed := a.sign(t, ca)
	certificate, err := x509.ParseCertificate(signed.Certificate[0])
	must(t, err)
	return authority{certificate, signed.PrivateKey}
}

// uidAttribute is a UID in the subject of a certificate.
func uidAttribute(uid string) pkix.AttributeTypeAndValue {
	return pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}, Value: uid}
}

// corpus returns client certificates by what they are.
func (c *cluster) corpus(t *testing.T) map[string][]tls.Certificate {
	ca := c.clusterCA(t)
	user := pkix.Name{CommonName: "alice", Organization: []string{"dev", "system:masters"}}
	change := func(subject pkix.Name, change func(*x509.Certificate)) []tls.Certificate {
		certificate := template(subject)
		change(certificate)
		return []tls.Certificate{ca.sign(t, certificate)}
	}
	same := func(*x509.Certificate) {}
	between := ca.intermediate(t)
	chained := between.sign(t, template(user))
	withChain := chained
	withChain.Certificate = append(withChain.Certificate[:1:1], between.certificate.Raw)
	uids := func(uids ...string) pkix.Name {
		name := user
		for _, uid := range uids {
			name.ExtraNames = append(name.ExtraNames, uidAttribute(uid))
		}
		return name
	}
	return map[string][]tls.Certificate{
		"none":                 nil,
		"valid":                change(user, same),
		"no groups":            change(pkix.Name{CommonName: "bob"}, same),
		"letters of Unicode":   change(pkix.Name{CommonName: "Jürgen 木", Organization: []string{"Gruppe ä"}}, same),
		"a comma":              change(pkix.Name{CommonName: "a,b", Organization: []string{"c,d", "e=f"}}, same),
		"a UID":                change(uids("u-1"), same),
		"two UIDs":             change(uids("u-1", "u-2"), same),
		"an empty UID":         change(uids(""), same),
		"no common name":       change(pkix.Name{Organization: []string{"system:masters"}}, same),
		"expired":              change(user, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
		"not valid yet":        change(user, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }),
		"for servers":          change(user, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }),
		"for any use":          change(user, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} }),
		"without a use":        change(user, func(c *x509.Certificate) { c.ExtKeyUsage = nil }),
		"with a DNS name":      change(user, func(c *x509.Certificate) { c.DNSNames = []string{"a.example"} }),
		"of another CA":        {newAuthority(t).sign(t, template(user))},
		"with an intermediate": {withChain},
		"without its issuer":   {chained},
	}
}

// blanks returns certificates whose names a header field would change. Only these may be judged
// differently from an API server: the gateway refuses them.
func (c *cluster) blanks(t *testing.T) map[string][]tls.Certificate {
	ca := c.clusterCA(t)
	sign := func(subject pkix.Name) []tls.Certificate { return []tls.Certificate{ca.sign(t, template(subject))} }
	return map[string][]tls.Certificate{
		"a group with a blank at its end": sign(pkix.Name{CommonName: "mallory", Organization: []string{"system:masters "}}),
		"a group with a tab at its start": sign(pkix.Name{CommonName: "mallory", Organization: []string{"\tsystem:masters"}}),
		"a name with a blank at its end":  sign(pkix.Name{CommonName: "system:kube-controller-manager "}),
		"a name with an end of line":      sign(pkix.Name{CommonName: "mallory\r\nX-Remote-Group: system:masters"}),
		"a group with a NUL":              sign(pkix.Name{CommonName: "mallory", Organization: []string{"a\x00b"}}),
	}
}
