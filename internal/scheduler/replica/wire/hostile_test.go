package wire

import (
	"context"
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
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
)

// authority signs certificates of replicas.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, file: filepath.Join(t.TempDir(), "ca.crt")}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = template, a.newKey()
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	a.must(err)
	a.write(a.file, "CERTIFICATE", der)
	return a
}

func (a *authority) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.must(err)
	return key
}

func (a *authority) write(path, kind string, der []byte) {
	a.must(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// issue makes a certificate; whoever has it trusts those by some authority.
func (a *authority) issue(trusted *authority) *TLS {
	key, folder := a.newKey(), a.t.TempDir()
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "replica"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	a.must(err)
	secret, err := x509.MarshalECPrivateKey(key)
	a.must(err)
	cert, keyFile := filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	a.write(cert, "CERTIFICATE", der)
	a.write(keyFile, "EC PRIVATE KEY", secret)
	certificates, err := NewTLS(a.t.Context(), cert, keyFile, trusted.file)
	a.must(err)
	return certificates
}

func serveTLS(t *testing.T, certificates *TLS, handler Handler) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = Serve(t.Context(), listener, certificates, handler, NewDialer(certificates)) }()
	return listener.Addr().String()
}

// TestCertificates: only those get in, and are believed, whose certificate is by the
// authority of the replicas.
func TestCertificates(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	member := Branch{Member: Member{Name: "server", Address: serveTLS(t, ours.issue(ours), &recorder{answered: &Answer{}})}}
	impostor := Branch{Member: Member{Name: "impostor", Address: serveTLS(t, others.issue(ours), &recorder{answered: &Answer{}})}}
	for _, c := range []struct {
		name   string
		dial   *Dialer
		branch *Branch
		in     bool
	}{
		{"ours", NewDialer(ours.issue(ours)), &member, true},
		{"a client of another authority", NewDialer(others.issue(ours)), &member, false},
		{"no certificate", NewDialer(nil), &member, false},
		{"a server of another authority", NewDialer(ours.issue(ours)), &impostor, false},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err := c.dial.Ask(ctx, c.branch, seedQuestion())
		cancel()
		if (err == nil) != c.in {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestLoopbackOnly: without certificates nobody else is answered.
func TestLoopbackOnly(t *testing.T) {
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := Serve(t.Context(), listener, nil, &recorder{}, NewDialer(nil)); err == nil || !strings.Contains(err.Error(), "need certificates") {
		t.Errorf("served on all addresses: %v", err)
	}
}

// TestMalformed: what cannot be ends the connection with one line, and nothing else.
func TestMalformed(t *testing.T) {
	other := &recorder{answered: &Answer{}}
	address, stop := serve(t, "127.0.0.1:0", other)
	defer stop()
	dial := NewDialer(nil)
	connection, err := dial.connections.get(address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]any{
		"a slot beyond":       &Batch{From: "x", Listed: []Refresh{{Slots: []int{Slots}}}},
		"a slot below":        &Batch{From: "x", Refreshed: []Refresh{{Slots: []int{-1}}}},
		"an empty assignment": &Batch{From: "x", Assignments: []*Assignment{{}}},
		"no assignment":       &Batch{From: "x", Assignments: []*Assignment{nil}},
		"a huge term":         &Batch{From: "x", Status: &Status{Term: 1 << 62}},
		"nobody":              &Batch{},
		"something else":      []string{"not", "a", "batch"},
		"too much":            &Batch{From: "x", Kept: []types.UID{types.UID(strings.Repeat("x", maxMessage))}},
	} {
		stream, err := connection.NewStream(t.Context(), &grpc.StreamDesc{StreamName: "Tell", ClientStreams: true, ServerStreams: true}, "/"+serviceName+"/Tell")
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.SendMsg(b)
		for err = nil; err == nil; {
			err = stream.RecvMsg(&Batch{})
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, told := other.has(0); !told {
		t.Error("something was taken")
	}
	q := seedQuestion()
	q.Ask.Offers = -1
	if _, err := dial.Ask(t.Context(), &Branch{Member: Member{Address: address}}, q); err == nil {
		t.Error("a malformed question was answered")
	}
}

// TestLinkOverflow: a replica that does not keep up is told everything anew.
func TestLinkOverflow(t *testing.T) {
	slow := &blocked{recorder: recorder{}, release: make(chan struct{})}
	address, stop := serve(t, "127.0.0.1:0", slow)
	defer stop()
	link := NewLink("me", Member{Name: "slow", Address: address}, NewDialer(nil), func(_ context.Context, l *Link) {
		l.Tell(func(b *Batch) { b.Kept = append(b.Kept, "all") })
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go link.Run(ctx)
	eventually(t, "a connection", func() bool { return link.Connection() == 1 })
	object := make([]byte, 1<<20)
	for range 3 * maxPending >> 20 {
		link.Tell(func(b *Batch) { b.Pods = append(b.Pods, Item{UID: "u", Object: object}) })
		link.mu.Lock()
		bytes := link.bytes
		link.mu.Unlock()
		if bytes > maxPending {
			t.Fatalf("%d bytes are pending", bytes)
		}
	}
	close(slow.release)
	eventually(t, "everything told anew", func() bool { begun, told := slow.has(1); return begun >= 2 && told })
}

// blocked takes nothing until it may.
type blocked struct {
	recorder
	release chan struct{}
}

func (b *blocked) Receive(from string, batch *Batch) error {
	<-b.release
	return b.recorder.Receive(from, batch)
}

// TestSessions: what an earlier connection still delivers is not taken after a later one
// has begun.
func TestSessions(t *testing.T) {
	all := &sessions{latest: map[string]*session{}}
	first := all.begin("a")
	other := all.begin("b")
	second := all.begin("a")
	taken := func(s *session) bool { return s.take(func() error { return nil }) == nil }
	if taken(first) || !taken(second) || !taken(other) {
		t.Errorf("taken: first %v, second %v, other %v", taken(first), taken(second), taken(other))
	}
	all.end("a", first)
	if all.latest["a"] != second {
		t.Error("the end of the first ends the second")
	}
}
