package enroll

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/registry"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

// fakeRegistry answers with an error or an address.
type fakeRegistry struct {
	err        error
	registered string
	left       string
}

func (f *fakeRegistry) Register(name string, _ wireguard.PublicKey, c registry.Certificate, _ time.Time) (registry.Registration, error) {
	f.registered = name
	return registry.Registration{Peer: registry.Peer{IPv4: netip.MustParseAddr("10.64.0.9")}, Certificate: c}, f.err
}

func (f *fakeRegistry) Leave(name string) bool {
	f.left = name
	return name == "a"
}

func certificate(user, group string) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: []string{group}}, SerialNumber: big.NewInt(7), NotAfter: time.Now().Add(time.Hour),
	}
}

// call sends a request with a certificate that the TLS server has verified.
func call(t *testing.T, s *Server, method, path, body string, c *x509.Certificate) (int, string) {
	t.Helper()
	request := httptest.NewRequest(method, path, strings.NewReader(body))
	request.TLS = &tls.ConnectionState{}
	if c != nil {
		request.TLS.VerifiedChains = [][]*x509.Certificate{{c}}
	}
	recorder := httptest.NewRecorder()
	s.ServeHTTP(recorder, request)
	return recorder.Code, recorder.Body.String()
}

func newServer(r *fakeRegistry) *Server {
	return &Server{
		Template: Response{PublicKey: "k", Port: 51820, MTU: 1420}, Registry: r,
		Revoked: func(serial string) bool { return serial == "13" }, Now: time.Now, Count: func(int) {},
	}
}

func validBody(t *testing.T) string {
	key, err := wireguard.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return `{"publicKey":"` + key.Public().String() + `"}`
}

func TestNodeRegistersAndLeaves(t *testing.T) {
	r := &fakeRegistry{}
	s := newServer(r)
	node := certificate("system:node:a", "system:nodes")
	status, body := call(t, s, "POST", Path, validBody(t), node)
	var response Response
	if err := json.Unmarshal([]byte(body), &response); err != nil || status != 200 || response.IPv4 != "10.64.0.9" || response.Port != 51820 || r.registered != "a" {
		t.Errorf("status %d, body %s, registered %q", status, body, r.registered)
	}
	if status, _ := call(t, s, "DELETE", Path, "", node); status != 200 || r.left != "a" {
		t.Errorf("status %d, left %q", status, r.left)
	}
	if status, _ := call(t, s, "DELETE", Path, "", certificate("system:node:b", "system:nodes")); status != 404 {
		t.Errorf("a node that is not registered leaves: status %d", status)
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	node := certificate("system:node:a", "system:nodes")
	revoked := certificate("system:node:a", "system:nodes")
	revoked.SerialNumber = big.NewInt(13)
	expired := certificate("system:node:a", "system:nodes")
	expired.NotAfter = time.Now().Add(-time.Second)
	for name, c := range map[string]struct {
		method, path, body string
		certificate        *x509.Certificate
		status             int
	}{
		"no certificate":    {"POST", Path, validBody(t), nil, 401},
		"user":              {"POST", Path, validBody(t), certificate("admin", "system:masters"), 403},
		"other group":       {"POST", Path, validBody(t), certificate("system:node:a", "system:masters"), 403},
		"no name":           {"POST", Path, validBody(t), certificate("system:node:", "system:nodes"), 403},
		"revoked":           {"POST", Path, validBody(t), revoked, 403},
		"expired":           {"POST", Path, validBody(t), expired, 403},
		"other path":        {"POST", "/", validBody(t), node, 404},
		"other method":      {"PUT", Path, validBody(t), node, 405},
		"no body":           {"POST", Path, "", node, 400},
		"no JSON":           {"POST", Path, "\x00\xff", node, 400},
		"no key":            {"POST", Path, `{}`, node, 400},
		"key of low order":  {"POST", Path, `{"publicKey":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}`, node, 400},
		"too long":          {"POST", Path, `{"publicKey":"` + strings.Repeat("A", 10000) + `"}`, node, 400},
		"wrong type of key": {"POST", Path, `{"publicKey":[]}`, node, 400},
	} {
		t.Run(name, func(t *testing.T) {
			r := &fakeRegistry{}
			status, body := call(t, newServer(r), c.method, c.path, c.body, c.certificate)
			var failure Failure
			if err := json.Unmarshal([]byte(body), &failure); err != nil || status != c.status || failure.Error == "" || r.registered != "" {
				t.Errorf("status %d, body %s, registered %q; want status %d", status, body, r.registered, c.status)
			}
		})
	}
}

func TestErrorsOfTheRegistry(t *testing.T) {
	for err, status := range map[error]int{
		registry.ErrUnknownNode: 404, registry.ErrConflict: 409, registry.ErrNoPrefix: 409, registry.ErrFull: 503, errors.New("other"): 500,
	} {
		r := &fakeRegistry{err: fmt.Errorf("node a: %w", err)}
		if got, body := call(t, newServer(r), "POST", Path, validBody(t), certificate("system:node:a", "system:nodes")); got != status {
			t.Errorf("%v: status %d, body %s", err, got, body)
		}
	}
}

// authority writes CA certificates and revocation lists to a directory.
func authority(t *testing.T, directory, name string) (revoke func(serials ...int64) []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, SubjectKeyId: []byte(name), Subject: pkix.Name{CommonName: name},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(directory, name), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return func(serials ...int64) []byte {
		list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
		for _, serial := range serials {
			list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: big.NewInt(serial), RevocationTime: time.Now()})
		}
		der, err := x509.CreateRevocationList(rand.Reader, list, parsed, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
	}
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRevocationLists(t *testing.T) {
	directory := t.TempDir()
	own, other := authority(t, directory, "ca"), authority(t, directory, "other")
	file := filepath.Join(directory, "crl")
	writeFile(t, file, own(5))
	r, err := NewRevocations(file, filepath.Join(directory, "ca"))
	if err != nil {
		t.Fatal(err)
	}
	if !r.Revoked("5") || r.Revoked("6") {
		t.Error("the list was not read")
	}
	for name, content := range map[string][]byte{"other CA": other(6), "empty": nil, "garbage": []byte("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")} {
		writeFile(t, file, content)
		if err := r.Reload(); err == nil {
			t.Errorf("%s: no error", name)
		}
		if !r.Revoked("5") || r.Revoked("6") {
			t.Errorf("%s: the former list does not hold", name)
		}
	}
	writeFile(t, file, append(own(6), own(7)...))
	if err := r.Reload(); err != nil || r.Revoked("5") || !r.Revoked("6") || !r.Revoked("7") {
		t.Errorf("new lists: %v", err)
	}
	if none, err := NewRevocations("", ""); err != nil || none.Revoked("5") {
		t.Errorf("without a list: %v", err)
	}
}
