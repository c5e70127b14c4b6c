package gateway

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// knownDifferences are certificates that an API server accepts and the gateway rejects. docs/kube-gateway.md lists them.
var knownDifferences = []string{
	"key on P-521", "RSA key of 1024 bits", "a CA certificate as a client's", "version 1", "version 1 with extensions", "version 2",
	"critical policies", "empty list of uses", "valid since 1960",
}

var (
	oidCommonName       = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidOrganization     = asn1.ObjectIdentifier{2, 5, 4, 10}
	oidUnknown          = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 99999, 1}
	oidExtendedUse      = asn1.ObjectIdentifier{2, 5, 29, 37}
	oidAlternative      = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidKeyUsage         = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidConstraints      = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidNameConstraints  = asn1.ObjectIdentifier{2, 5, 29, 30}
	oidAuthorityKey     = asn1.ObjectIdentifier{2, 5, 29, 35}
	oidCertificatePol   = asn1.ObjectIdentifier{2, 5, 29, 32}
	oidSHA256WithRSA    = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}
	oidECDSAWithSHA256  = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}
	asn1Null            = asn1.RawValue{Tag: asn1.TagNull}
	tagUniversalString  = 28
	tagVisibleString    = 26
	tagTeletex          = asn1.TagT61String
	certificateUserName = pkix.Name{CommonName: "alice", Organization: []string{"dev"}}
)

// signWith signs a certificate for a given key.
func (a authority) signWith(t *testing.T, template *x509.Certificate, key crypto.Signer) tls.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// changed returns a user's certificate after a change of its template.
func (a authority) changed(t *testing.T, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	certificate := template(certificateUserName)
	change(certificate)
	return a.sign(t, certificate)
}

// keys returns certificates by their keys and signatures.
func (a authority) keys(t *testing.T) map[string]tls.Certificate {
	t.Setenv("GODEBUG", "rsa1024min=0")
	corpus := map[string]tls.Certificate{}
	for name, curve := range map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		must(t, err)
		corpus["key on "+name] = a.signWith(t, template(certificateUserName), key)
	}
	for _, bits := range []int{1024, 2048, 3072, 4096} {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		must(t, err)
		corpus[fmt.Sprintf("RSA key of %d bits", bits)] = a.signWith(t, template(certificateUserName), key)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	corpus["Ed25519 key"] = a.signWith(t, template(certificateUserName), ed)
	if _, isRSA := a.key.(*rsa.PrivateKey); isRSA {
		for _, algorithm := range []x509.SignatureAlgorithm{
			x509.SHA384WithRSA, x509.SHA512WithRSA, x509.SHA256WithRSAPSS, x509.SHA384WithRSAPSS, x509.SHA512WithRSAPSS,
		} {
			corpus["signed with "+algorithm.String()] = a.changed(t, func(c *x509.Certificate) { c.SignatureAlgorithm = algorithm })
		}
	}
	return corpus
}

// extensions returns certificates by their extensions.
func (a authority) extensions(t *testing.T) map[string]tls.Certificate {
	corpus := map[string]tls.Certificate{}
	add := func(name string, extension pkix.Extension, more ...pkix.Extension) {
		corpus[name] = a.changed(t, func(c *x509.Certificate) {
			if extension.Id.Equal(oidExtendedUse) {
				c.ExtKeyUsage = nil
			}
			if extension.Id.Equal(oidKeyUsage) {
				c.KeyUsage = 0
			}
			c.ExtraExtensions = append([]pkix.Extension{extension}, more...)
		})
	}
	uses := func(ids ...asn1.ObjectIdentifier) []byte { return encode(t, ids) }
	clientAuth, serverAuth := asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 2}, asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 3, 1}
	garbage := []byte{0x30, 0x05, 1, 2, 3}
	add("unknown extension", pkix.Extension{Id: oidUnknown, Value: []byte{5, 0}})
	add("unknown critical extension", pkix.Extension{Id: oidUnknown, Critical: true, Value: []byte{5, 0}})
	add("the same extension twice", pkix.Extension{Id: oidUnknown, Value: []byte{5, 0}}, pkix.Extension{Id: oidUnknown, Value: []byte{5, 0}})
	add("critical use by clients", pkix.Extension{Id: oidExtendedUse, Critical: true, Value: uses(clientAuth)})
	add("use by clients and servers", pkix.Extension{Id: oidExtendedUse, Value: uses(serverAuth, clientAuth)})
	add("use by servers only", pkix.Extension{Id: oidExtendedUse, Value: uses(serverAuth)})
	add("unknown use only", pkix.Extension{Id: oidExtendedUse, Value: uses(oidUnknown)})
	add("unknown use and use by clients", pkix.Extension{Id: oidExtendedUse, Value: uses(oidUnknown, clientAuth)})
	add("empty list of uses", pkix.Extension{Id: oidExtendedUse, Value: uses()})
	add("damaged list of uses", pkix.Extension{Id: oidExtendedUse, Value: garbage})
	add("damaged alternative names", pkix.Extension{Id: oidAlternative, Value: garbage})
	add("alternative name that is not ASCII", pkix.Extension{Id: oidAlternative, Value: []byte{0x30, 0x03, 0x82, 0x01, 0xff}})
	add("IP address of three bytes", pkix.Extension{Id: oidAlternative, Value: []byte{0x30, 0x05, 0x87, 0x03, 1, 2, 3}})
	add("damaged key usage", pkix.Extension{Id: oidKeyUsage, Critical: true, Value: garbage})
	add("damaged basic constraints", pkix.Extension{Id: oidConstraints, Critical: true, Value: garbage})
	add("damaged name constraints", pkix.Extension{Id: oidNameConstraints, Critical: true, Value: garbage})
	add("damaged authority key", pkix.Extension{Id: oidAuthorityKey, Value: garbage})
	add("damaged policies", pkix.Extension{Id: oidCertificatePol, Value: garbage})
	add("wrong authority key", pkix.Extension{Id: oidAuthorityKey, Value: []byte{0x30, 0x06, 0x80, 0x04, 1, 2, 3, 4}})
	add("critical policies", pkix.Extension{Id: oidCertificatePol, Critical: true, Value: encode(t, []struct{ ID asn1.ObjectIdentifier }{{oidUnknown}})})
	add("no basic constraints of a CA", pkix.Extension{Id: oidConstraints, Value: []byte{0x30, 0x00}})
	corpus["a CA certificate as a client's"] = a.changed(t, func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true })
	corpus["key usage without signatures"] = a.changed(t, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment })
	corpus["no key usage"] = a.changed(t, func(c *x509.Certificate) { c.KeyUsage = 0 })
	return corpus
}

// times returns certificates by their validity.
func (a authority) times(t *testing.T) map[string]tls.Certificate {
	corpus := map[string]tls.Certificate{}
	add := func(name string, from, to time.Time) {
		corpus[name] = a.changed(t, func(c *x509.Certificate) { c.NotBefore, c.NotAfter = from, to })
	}
	now := time.Now()
	add("valid since 1960", time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC), now.Add(time.Hour))
	add("valid until 2100", now.Add(-time.Hour), time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))
	add("valid until 9999", now.Add(-time.Hour), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC))
	add("expired in 1990", time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC))
	add("valid in a minute", now.Add(time.Minute), now.Add(time.Hour))
	add("expired a minute ago", now.Add(-time.Hour), now.Add(-time.Minute))
	add("end before the start", now.Add(time.Hour), now.Add(-time.Hour))
	add("longer than its issuer", now.Add(-time.Hour), now.AddDate(1000, 0, 0))
	return corpus
}

// subjects returns certificates by their names.
func (a authority) subjects(t *testing.T) map[string]tls.Certificate {
	corpus := map[string]tls.Certificate{}
	add := func(name string, attributes ...[]pkixAttribute) {
		corpus[name] = a.changed(t, func(c *x509.Certificate) { c.RawSubject = subject(t, attributes...) })
	}
	one := func(id asn1.ObjectIdentifier, tag int, value string) []pkixAttribute {
		return []pkixAttribute{{id, asn1.RawValue{Tag: tag, Bytes: []byte(value)}}}
	}
	common := func(tag int, value string) []pkixAttribute { return one(oidCommonName, tag, value) }
	group := func(tag int, value string) []pkixAttribute { return one(oidOrganization, tag, value) }
	utf8 := asn1.TagUTF8String
	alice := common(utf8, "alice")
	add("PrintableString", common(asn1.TagPrintableString, "alice"))
	add("PrintableString with an at sign", common(asn1.TagPrintableString, "al@ice"))
	add("PrintableString with an asterisk", common(asn1.TagPrintableString, "al*ice"))
	add("PrintableString with an ampersand", common(asn1.TagPrintableString, "al&ice"))
	add("PrintableString with an umlaut", common(asn1.TagPrintableString, "j\xfcrgen"))
	add("IA5String", common(asn1.TagIA5String, "al@ice"))
	add("IA5String beyond ASCII", common(asn1.TagIA5String, "j\xfcrgen"))
	add("NumericString", common(asn1.TagNumericString, "12 34"))
	add("NumericString with letters", common(asn1.TagNumericString, "12a"))
	add("T61String", common(tagTeletex, "j\xfcrgen"))
	add("BMPString", common(asn1.TagBMPString, "\x00a\x26\x03"))
	add("BMPString of odd length", common(asn1.TagBMPString, "\x00a\x26"))
	add("BMPString with surrogates", common(asn1.TagBMPString, "\xd8\x3d\xde\x00"))
	add("BMPString with a lone surrogate", common(asn1.TagBMPString, "\xd8\x3d\x00a"))
	add("BMPString ended by zeros", common(asn1.TagBMPString, "\x00a\x00\x00"))
	add("UniversalString", common(tagUniversalString, "\x00\x00\x00a"))
	add("VisibleString", common(tagVisibleString, "alice"))
	add("GeneralString", common(asn1.TagGeneralString, "alice"))
	add("UTF8String that is not UTF-8", common(utf8, "al\xff\xfeice"))
	add("integer as a name", common(asn1.TagInteger, "\x05"))
	add("empty common name", common(utf8, ""))
	add("two common names", alice, common(utf8, "bob"))
	add("second common name is empty", alice, common(utf8, ""))
	add("common name and group in one set", append(slices.Clone(alice), group(utf8, "dev")...))
	add("two groups in one set", alice, append(group(utf8, "b"), group(utf8, "a")...))
	add("the same group twice", alice, group(utf8, "dev"), group(utf8, "dev"))
	add("group as a PrintableString", alice, group(asn1.TagPrintableString, "dev"))
	add("group as a BMPString", alice, group(asn1.TagBMPString, "\x00d\x00e\x00v"))
	add("group before the common name", group(utf8, "dev"), alice)
	add("group with a plus sign", alice, group(utf8, "a+b=c,d"))
	add("group of an unknown type", alice, group(tagUniversalString, "\x00\x00\x00a"))
	add("name of 5,000 letters", common(utf8, strings.Repeat("a", 5000)))
	add("group of 5,000 letters", alice, group(utf8, strings.Repeat("a", 5000)))
	add("name with a colon and a slash", common(utf8, "system:node:a/b"))
	add("name with a zero-width blank", common(utf8, "alice\u200b"))
	add("name with a no-break blank", common(utf8, "\u00a0alice\u00a0"))
	add("name with control characters of Unicode", common(utf8, "a\u0085b\u2028c"))
	add("unknown attribute", alice, one(oidUnknown, utf8, "x"))
	add("no names at all")
	many := [][]pkixAttribute{alice}
	for i := range 300 {
		many = append(many, group(utf8, fmt.Sprintf("group-%d", i)))
	}
	add("300 groups", many...)
	return corpus
}

// chains returns certificates by the CAs between them and the cluster's CA.
func (a authority) chains(t *testing.T) map[string]tls.Certificate {
	corpus := map[string]tls.Certificate{}
	ca := func(issuer authority, name string, change func(*x509.Certificate)) authority {
		certificate := template(pkix.Name{CommonName: name})
		certificate.IsCA, certificate.BasicConstraintsValid = true, true
		certificate.KeyUsage, certificate.ExtKeyUsage = x509.KeyUsageCertSign, nil
		change(certificate)
		signed := issuer.sign(t, certificate)
		parsed, err := x509.ParseCertificate(signed.Certificate[0])
		must(t, err)
		return authority{parsed, signed.PrivateKey}
	}
	leaf := func(issuer authority, chain ...authority) tls.Certificate {
		signed := issuer.sign(t, template(certificateUserName))
		for _, c := range chain {
			signed.Certificate = append(signed.Certificate, c.certificate.Raw)
		}
		return signed
	}
	between := func(name string, change func(*x509.Certificate)) {
		issuer := ca(a, "between", change)
		corpus["issuer "+name] = leaf(issuer, issuer)
	}
	same := func(*x509.Certificate) {}
	between("that is valid", same)
	between("that is expired", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	between("that is not valid yet", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) })
	between("that is not a CA", func(c *x509.Certificate) { c.IsCA = false })
	between("without basic constraints", func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = false, false })
	between("that must not sign", func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature })
	between("for servers only", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	between("for clients only", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
	between("for any use", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} })
	between("with an unknown critical extension", func(c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{{Id: oidUnknown, Critical: true, Value: []byte{5, 0}}}
	})
	between("for other DNS names", func(c *x509.Certificate) {
		c.PermittedDNSDomainsCritical, c.PermittedDNSDomains = true, []string{"example.com"}
	})
	between("for other addresses", func(c *x509.Certificate) {
		c.PermittedDNSDomainsCritical, c.PermittedIPRanges = true, []*net.IPNet{{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}}
	})
	first := ca(a, "first", func(c *x509.Certificate) { c.MaxPathLenZero = true })
	second := ca(first, "second", same)
	corpus["a longer chain than allowed"] = leaf(second, second, first)
	first = ca(a, "first", same)
	second = ca(first, "second", same)
	corpus["two issuers"] = leaf(second, second, first)
	corpus["two issuers in the wrong order"] = leaf(second, first, second)
	corpus["the first of two issuers is missing"] = leaf(second, first)
	corpus["the second of two issuers is missing"] = leaf(second, second)
	corpus["with the CA itself"] = leaf(a, a)
	corpus["with an unrelated certificate"] = leaf(a, newAuthority(t))
	corpus["issuer twice"] = leaf(first, first, first)
	constrained := ca(a, "constrained", func(c *x509.Certificate) {
		c.PermittedDNSDomainsCritical, c.PermittedDNSDomains = true, []string{"example.com"}
	})
	for _, name := range []string{"a.example.com", "a.example.org"} {
		certificate := template(certificateUserName)
		certificate.DNSNames = []string{name}
		signed := constrained.sign(t, certificate)
		signed.Certificate = append(signed.Certificate, constrained.certificate.Raw)
		corpus["name constraint with "+name] = signed
	}
	impostor := newAuthority(t)
	impostor.certificate = &x509.Certificate{Subject: a.certificate.Subject, RawSubject: a.certificate.RawSubject, SubjectKeyId: a.certificate.SubjectKeyId, PublicKey: impostor.certificate.PublicKey}
	corpus["another CA with the same name"] = leaf(impostor)
	return corpus
}

// pkixAttribute is a part of a name, with any value.
type pkixAttribute struct {
	Type  asn1.ObjectIdentifier
	Value asn1.RawValue
}

// subject encodes a name. Each argument is a set of attributes.
func subject(t *testing.T, sets ...[]pkixAttribute) []byte {
	t.Helper()
	name := []asn1.RawValue{}
	for _, attributes := range sets {
		var content []byte
		for _, attribute := range attributes {
			content = append(content, encode(t, attribute)...)
		}
		name = append(name, asn1.RawValue{Tag: asn1.TagSet, IsCompound: true, Bytes: content})
	}
	return encode(t, name)
}

func encode(t *testing.T, value any) []byte {
	t.Helper()
	der, err := asn1.Marshal(value)
	must(t, err)
	return der
}

// tbsCertificate is the signed part of a certificate. crypto/x509 does not create all of its forms.
type tbsCertificate struct {
	Version    int `asn1:"optional,explicit,default:0,tag:0"`
	Serial     *big.Int
	Algorithm  pkix.AlgorithmIdentifier
	Issuer     asn1.RawValue
	Validity   struct{ From, To time.Time }
	Subject    asn1.RawValue
	Key        asn1.RawValue
	Extensions []pkix.Extension `asn1:"omitempty,optional,explicit,tag:3"`
}

// handmade returns certificates that crypto/x509 does not create.
func (a authority) handmade(t *testing.T) map[string]tls.Certificate {
	corpus := map[string]tls.Certificate{}
	add := func(name string, change func(*tbsCertificate)) { corpus[name] = a.signRaw(t, change) }
	add("handmade, version 3", func(*tbsCertificate) {})
	add("version 1", func(c *tbsCertificate) { c.Version, c.Extensions = 0, nil })
	add("version 1 with extensions", func(c *tbsCertificate) { c.Version = 0 })
	add("version 2", func(c *tbsCertificate) { c.Version, c.Extensions = 1, nil })
	add("version 4", func(c *tbsCertificate) { c.Version = 3 })
	add("negative serial number", func(c *tbsCertificate) { c.Serial = big.NewInt(-5) })
	add("serial number 0", func(c *tbsCertificate) { c.Serial = big.NewInt(0) })
	add("serial number of 30 bytes", func(c *tbsCertificate) { c.Serial = new(big.Int).Lsh(big.NewInt(1), 239) })
	add("no extensions", func(c *tbsCertificate) { c.Extensions = nil })
	add("another algorithm inside", func(c *tbsCertificate) { c.Algorithm.Algorithm = oidUnknown })
	return corpus
}

// signRaw signs a certificate that is encoded field by field.
func (a authority) signRaw(t *testing.T, change func(*tbsCertificate)) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	must(t, err)
	algorithm := pkix.AlgorithmIdentifier{Algorithm: oidECDSAWithSHA256}
	if _, isRSA := a.key.(*rsa.PrivateKey); isRSA {
		algorithm = pkix.AlgorithmIdentifier{Algorithm: oidSHA256WithRSA, Parameters: asn1Null}
	}
	certificate := tbsCertificate{
		Version: 2, Serial: big.NewInt(time.Now().UnixNano()), Algorithm: algorithm,
		Issuer:  asn1.RawValue{FullBytes: a.certificate.RawSubject},
		Subject: asn1.RawValue{FullBytes: subject(t, []pkixAttribute{{oidCommonName, asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte("alice")}}})},
		Key:     asn1.RawValue{FullBytes: public},
		Extensions: []pkix.Extension{{
			Id: oidExtendedUse, Value: encode(t, []asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 2}}),
		}},
	}
	certificate.Validity.From, certificate.Validity.To = time.Now().Add(-time.Hour).UTC(), time.Now().Add(time.Hour).UTC()
	change(&certificate)
	signed := encode(t, certificate)
	digest := sha256.Sum256(signed)
	signature, err := a.key.(crypto.Signer).Sign(rand.Reader, digest[:], crypto.SHA256)
	must(t, err)
	der := encode(t, struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: signed}, algorithm, asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// testCertificates checks that the gateway judges client certificates as an API server does: it accepts the same ones,
// for the same users. Whether a certificate is rejected in the handshake or by status 401 is not compared.
func testCertificates(t *testing.T, c *cluster) {
	ca := c.clusterCA(t)
	all := map[string]tls.Certificate{}
	for _, part := range []map[string]tls.Certificate{ca.keys(t), ca.extensions(t), ca.times(t), ca.subjects(t), ca.chains(t), ca.handmade(t)} {
		maps.Copy(all, part)
	}
	accepted := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		direct, through := c.verdict(t, c.Servers[0], all[name]), c.verdict(t, c.gateway, all[name])
		if direct != rejected {
			accepted++
		}
		known := slices.Contains(knownDifferences, name)
		switch {
		case known && direct == through:
			t.Errorf("%s: no difference from an API server, but it is listed as one: %s", name, through)
		case known && through != rejected:
			t.Errorf("%s: the gateway: %s, want a rejection", name, through)
		case !known && direct != through:
			t.Errorf("%s:\nan API server: %.300s\nthe gateway:   %.300s", name, direct, through)
		}
	}
	t.Logf("%d certificates, %d accepted by an API server", len(all), accepted)
	if accepted < 40 || accepted > len(all)-40 {
		t.Errorf("the corpus is not varied: an API server accepts %d of %d", accepted, len(all))
	}
}

// rejected is the verdict on a certificate that does not identify a user.
const rejected = "rejected"

// verdict returns the user of a certificate.
func (c *cluster) verdict(t *testing.T, address string, certificate tls.Certificate) string {
	t.Helper()
	client := httpClient(t, []tls.Certificate{certificate}, true)
	// A client chooses a certificate by the names of CAs that a server sends. The corpus has others too.
	client.Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &certificate, nil
	}
	defer client.CloseIdleConnections()
	code, user, err := tryWhoami(t, client, address, nil)
	if err != nil || code == http.StatusUnauthorized {
		return rejected
	}
	return describe(code, user)
}
