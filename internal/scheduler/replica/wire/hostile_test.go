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

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
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

// issue returns a certificate of this authority for a replica that trusts another one.
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

// TestCertificates checks that clients and servers reject peers whose certificate is not
// signed by their CA.
func TestCertificates(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	replica := membership.Branch{Member: membership.Member{Name: "server", Address: serveTLS(t, ours.issue(ours), &recorder{answer: &Answer{}})}}
	impostor := membership.Branch{Member: membership.Member{Name: "impostor", Address: serveTLS(t, others.issue(ours), &recorder{answer: &Answer{}})}}
	for _, c := range []struct {
		name   string
		dial   *Dialer
		branch *membership.Branch
		in     bool
	}{
		{"ours", NewDialer(ours.issue(ours)), &replica, true},
		{"a client of another authority", NewDialer(others.issue(ours)), &replica, false},
		{"no certificate", NewDialer(nil), &replica, false},
		{"a server of another authority", NewDialer(ours.issue(ours)), &impostor, false},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err := c.dial.Query(ctx, c.branch, seedRequest())
		cancel()
		if (err == nil) != c.in {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestLoopbackOnly checks that Serve requires certificates on other addresses.
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

// TestMalformed checks that malformed messages end the connection with a one-line error.
func TestMalformed(t *testing.T) {
	other := &recorder{answer: &Answer{}}
	address, stop := serve(t, "127.0.0.1:0", other)
	defer stop()
	dial := NewDialer(nil)
	connection, err := dial.connections.get(address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]any{
		"slot too large":   &Batch{From: "x", Listed: []Refresh{{Slots: []int{membership.SlotCount}}}},
		"negative slot":    &Batch{From: "x", Refreshed: []Refresh{{Slots: []int{-1}}}},
		"empty assignment": &Batch{From: "x", Assignments: []*Assignment{{}}},
		"nil assignment":   &Batch{From: "x", Assignments: []*Assignment{nil}},
		"huge term":        &Batch{From: "x", Status: &Status{Term: 1 << 62}},
		"no sender":        &Batch{},
		"not a batch":      []string{"not", "a", "batch"},
		"too large":        &Batch{From: "x", Kept: []types.UID{types.UID(strings.Repeat("x", maxMessage))}},
	} {
		stream, err := connection.NewStream(t.Context(), &grpc.StreamDesc{StreamName: "Send", ClientStreams: true, ServerStreams: true}, "/"+serviceName+"/Send")
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
	if _, complete := other.has(0); !complete {
		t.Error("a malformed batch was processed")
	}
	q := seedRequest()
	q.Query.Offers = -1
	if _, err := dial.Query(t.Context(), &membership.Branch{Member: membership.Member{Address: address}}, q); err == nil {
		t.Error("a malformed query was answered")
	}
}

// TestLinkOverflow checks that a link to a slow receiver drops its batch and sends
// everything again.
func TestLinkOverflow(t *testing.T) {
	slow := &blocked{recorder: recorder{}, release: make(chan struct{})}
	address, stop := serve(t, "127.0.0.1:0", slow)
	defer stop()
	link := NewLink("me", membership.Member{Name: "slow", Address: address}, NewDialer(nil), func(_ context.Context, l *Link) {
		l.Send(func(b *Batch) { b.Kept = append(b.Kept, "all") })
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go link.Run(ctx)
	eventually(t, "a connection", func() bool { return link.Connection() == 1 })
	object := make([]byte, 1<<20)
	for range 3 * maxPending >> 20 {
		link.Send(func(b *Batch) { b.Pods = append(b.Pods, Item{UID: "u", Object: object}) })
		link.mu.Lock()
		bytes := link.bytes
		link.mu.Unlock()
		if bytes > maxPending {
			t.Fatalf("%d bytes are pending", bytes)
		}
	}
	close(slow.release)
	eventually(t, "everything sent again", func() bool { begun, complete := slow.has(1); return begun >= 2 && complete })
}

// blocked is a recorder that processes no batch until release is closed.
type blocked struct {
	recorder
	release chan struct{}
}

func (b *blocked) Receive(from string, batch *Batch) error {
	<-b.release
	return b.recorder.Receive(from, batch)
}

// TestSessions checks that batches of an earlier connection are rejected after a later
// connection of the same replica has started.
func TestSessions(t *testing.T) {
	all := &sessions{latest: map[string]*session{}}
	first := all.begin("a")
	other := all.begin("b")
	second := all.begin("a")
	processes := func(s *session) bool { return s.process(func() error { return nil }) == nil }
	if processes(first) || !processes(second) || !processes(other) {
		t.Errorf("processed: first %v, second %v, other %v", processes(first), processes(second), processes(other))
	}
	all.end("a", first)
	if all.latest["a"] != second {
		t.Error("the end of the first session removed the second")
	}
}
