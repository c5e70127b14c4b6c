package wire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

const group = "group"

// authority is a CA that signs certificates.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string
	// serial is the serial number of the last certificate.
	serial int64
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, file: filepath.Join(t.TempDir(), "ca.crt")}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = a.newKey()
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	a.must(err)
	a.cert, err = x509.ParseCertificate(der)
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

// replicaCert returns the template of the certificate of a replica.
func replicaCert(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{membership.Identity{Group: group, Name: name}.URI()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// kubeletCert returns the template of a certificate as kubelets of a cluster have. It may have any host
// name.
func kubeletCert(node string) *x509.Certificate {
	return &x509.Certificate{
		Subject:  pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		NotAfter: time.Now().Add(time.Hour), DNSNames: []string{node},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// files are the TLS files of a process.
type files struct{ cert, key, ca string }

// issue writes the certificate of a template, its key, and the CA that the process trusts.
func (a *authority) issue(template *x509.Certificate, trusted ...*authority) files {
	folder := a.t.TempDir()
	f := files{filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"), filepath.Join(folder, "ca.crt")}
	a.reissue(f, template)
	f.trust(a.t, trusted...)
	return f
}

// reissue replaces the certificate and the key in the files of a process.
func (a *authority) reissue(f files, template *x509.Certificate) {
	a.serial++
	template.SerialNumber = big.NewInt(a.serial)
	key := a.newKey()
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	a.must(err)
	secret, err := x509.MarshalECPrivateKey(key)
	a.must(err)
	a.write(f.key, "EC PRIVATE KEY", secret)
	a.write(f.cert, "CERTIFICATE", der)
}

// trust replaces the CA file of a process.
func (f files) trust(t *testing.T, trusted ...*authority) {
	t.Helper()
	var bundle []byte
	for _, a := range trusted {
		content, err := os.ReadFile(a.file)
		a.must(err)
		bundle = append(bundle, content...)
	}
	if err := os.WriteFile(f.ca, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
}

// load returns the TLS of a process with these files, which is the replica of the given name.
func (f files) load(t *testing.T, name string) *TLS {
	t.Helper()
	certificates, err := NewTLS(t.Context(), membership.Identity{Group: group, Name: name}, f.cert, f.key, f.ca)
	if err != nil {
		t.Fatal(err)
	}
	return certificates
}

// stranger returns a TLS that presents the certificate in the files without checking it, as a hostile
// process would.
func (f files) stranger(t *testing.T) *TLS {
	t.Helper()
	good := newAuthority(t)
	certificates := good.issue(replicaCert("stranger"), good).load(t, "stranger")
	own, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := os.ReadFile(f.ca)
	if err != nil {
		t.Fatal(err)
	}
	certificates.own, certificates.roots = &own, x509.NewCertPool()
	certificates.roots.AppendCertsFromPEM(bundle)
	return certificates
}

// serveTLS starts a server and returns its address.
func serveTLS(t *testing.T, certificates *TLS, handler Handler) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = Serve(t.Context(), listener, certificates, handler, NewDialer(certificates)) }()
	return listener.Addr().String()
}

// TestOnlyReplicasOfTheGroupAreAccepted checks which clients a replica answers, and which servers it
// queries.
func TestOnlyReplicasOfTheGroupAreAccepted(t *testing.T) {
	replicaCA, clusterCA := newAuthority(t), newAuthority(t)
	otherGroup, clientOnly, expired, two := replicaCert("client"), replicaCert("client"), replicaCert("client"), replicaCert("client")
	otherGroup.URIs = []*url.URL{membership.Identity{Group: "other", Name: "client"}.URI()}
	clientOnly.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	expired.NotAfter = time.Now().Add(-time.Minute)
	two.URIs = append(two.URIs, membership.Identity{Group: group, Name: "server"}.URI())

	// The cluster's CA is trusted too, as in a group that was set up with it.
	address := serveTLS(t, replicaCA.issue(replicaCert("server"), replicaCA, clusterCA).load(t, "server"), &recorder{answer: &Answer{}})
	server := &membership.Branch{Member: membership.Member{Name: "server", Address: address}}
	claimed := &membership.Branch{Member: membership.Member{Name: "claimed", Address: address}}
	kubelet := clusterCA.issue(kubeletCert("client"), replicaCA)
	good := replicaCA.issue(replicaCert("client"), replicaCA, clusterCA)
	without := kubelet.stranger(t)
	without.own = &tls.Certificate{}
	impersonator := &membership.Branch{Member: membership.Member{Name: "server", Address: serveTLS(t, kubelet.stranger(t), &recorder{answer: &Answer{}})}}
	for name, c := range map[string]struct {
		client   *TLS
		to       *membership.Branch
		accepted bool
	}{
		"replica":                                {good.load(t, "client"), server, true},
		"no TLS":                                 {nil, server, false},
		"no certificate":                         {without, server, false},
		"certificate of another CA":              {newAuthority(t).issue(replicaCert("client"), replicaCA).stranger(t), server, false},
		"kubelet with a certificate of the CA":   {kubelet.stranger(t), server, false},
		"replica of another group":               {replicaCA.issue(otherGroup, replicaCA).stranger(t), server, false},
		"certificate without the client's usage": {replicaCA.issue(clientOnly, replicaCA).stranger(t), server, false},
		"expired certificate":                    {replicaCA.issue(expired, replicaCA).stranger(t), server, false},
		"certificate for two replicas":           {replicaCA.issue(two, replicaCA).stranger(t), server, false},
		"server with another name":               {good.load(t, "client"), claimed, false},
		"server with a kubelet's certificate":    {good.load(t, "client"), impersonator, false},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := NewDialer(c.client).Query(ctx, c.to, seedRequest())
		cancel()
		if (err == nil) != c.accepted {
			t.Errorf("%s: Query() = %v, want success: %v", name, err, c.accepted)
		}
	}
}

// send opens a connection to a server and sends batches. It returns the error with which the server ends
// the connection.
func send(t *testing.T, certificates *TLS, to membership.Member, batches ...*Batch) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	connection, err := NewDialer(certificates).connections.get(to, certificates)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{StreamName: "Send", ClientStreams: true, ServerStreams: true}, "/"+serviceName+"/Send")
	if err != nil {
		return err
	}
	for _, b := range batches {
		if err := stream.SendMsg(b); err != nil {
			break
		}
	}
	for err == nil {
		err = stream.RecvMsg(&Batch{})
	}
	return err
}

// TestSenderMustHaveTheNameInItsCertificate checks that a replica can only send batches in its own name,
// and that an attempt in the name of another replica does not end that replica's connection.
func TestSenderMustHaveTheNameInItsCertificate(t *testing.T) {
	ca, receiver := newAuthority(t), &recorder{}
	to := membership.Member{Name: "receiver", Address: serveTLS(t, ca.issue(replicaCert("receiver"), ca).load(t, "receiver"), receiver)}
	honest, hostile := ca.issue(replicaCert("honest"), ca).load(t, "honest"), ca.issue(replicaCert("hostile"), ca).load(t, "hostile")

	link := NewLink("honest", to, NewDialer(honest), func(context.Context, *Link) {})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); link.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "the honest replica is connected", func() bool { connections, _ := receiver.counts(); return connections == 1 })

	if err := send(t, hostile, to, &Batch{From: "honest", Kept: []Renewal{{UID: "forged"}}}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a batch in the name of another replica: %v, want code %v", err, codes.PermissionDenied)
	}
	if err := send(t, hostile, to, &Batch{From: "hostile"}, &Batch{From: "honest"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a second batch in the name of another replica: %v, want code %v", err, codes.InvalidArgument)
	}
	link.Send(func(b *Batch) { b.Kept = append(b.Kept, Renewal{UID: "own"}) })
	eventually(t, "a batch of the honest replica is received", func() bool {
		receiver.mu.Lock()
		defer receiver.mu.Unlock()
		return len(receiver.received) > 0
	})
	receiver.mu.Lock()
	defer receiver.mu.Unlock()
	if len(receiver.received) != 1 || receiver.received[0] != "own" || link.Connection() != 1 {
		t.Errorf("received %q over %d connections of the honest replica, want its own batch over 1", receiver.received, link.Connection())
	}
}

// TestCertificateMustBeForThisReplica checks that a replica does not start with a certificate that others
// reject.
func TestCertificateMustBeForThisReplica(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	serverOnly := replicaCert("a")
	serverOnly.ExtKeyUsage = serverOnly.ExtKeyUsage[:1]
	for want, f := range map[string]files{
		"the certificate is for k8s-1m://replica/group/b, but this replica is k8s-1m://replica/group/a": ca.issue(replicaCert("b"), ca),
		"certificate signed by unknown authority":                                                       ca.issue(replicaCert("a"), other),
		"incompatible key usage":                 ca.issue(serverOnly, ca),
		"the certificate has no URI of the form": ca.issue(kubeletCert("a"), ca),
	} {
		_, err := NewTLS(t.Context(), membership.Identity{Group: group, Name: "a"}, f.cert, f.key, f.ca)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("NewTLS() = %v, want one line with %q", err, want)
		}
	}
	if _, err := NewTLS(t.Context(), membership.Identity{Group: group, Name: "a/b"}, "", "", ""); err == nil || !strings.Contains(err.Error(), "slash") {
		t.Errorf("NewTLS() of a/b = %v, want an error with %q", err, "slash")
	}
}

// TestRotationOfTheCA replaces the CA of two connected replicas, as an operator does: first both trust
// the old and the new CA, then each gets a certificate of the new one, and then the old one is removed.
// The connection must not end before that, each replica must be reachable at each step, and a
// certificate of the old CA must be worthless in the end, also on a connection that is open.
func TestRotationOfTheCA(t *testing.T) {
	before, after := newAuthority(t), newAuthority(t)
	serverFiles, clientFiles, leakedFiles := before.issue(replicaCert("server"), before), before.issue(replicaCert("client"), before), before.issue(replicaCert("leaked"), before, after)
	server, client, leaked := serverFiles.load(t, "server"), clientFiles.load(t, "client"), leakedFiles.load(t, "leaked")
	receiver := &recorder{answer: &Answer{}}
	to := membership.Branch{Member: membership.Member{Name: "server", Address: serveTLS(t, server, receiver)}}
	query := func(dialer *Dialer) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := dialer.Query(ctx, &to, seedRequest())
		return err
	}
	leakedDialer := NewDialer(leaked)
	queryLeaked := func() error { return query(leakedDialer) }
	if err := queryLeaked(); err != nil {
		t.Fatal(err)
	}
	link := NewLink("client", to.Member, NewDialer(client), func(context.Context, *Link) {})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); link.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "the replicas are connected", func() bool { return link.Connection() == 1 })

	isNew := func(certificates *TLS) func() bool {
		return func() bool {
			certificates.mu.Lock()
			defer certificates.mu.Unlock()
			chain, err := parse(certificates.own.Certificate)
			return err == nil && chain[0].CheckSignatureFrom(after.cert) == nil
		}
	}
	trusts := func(certificates *TLS, count int) func() bool {
		return func() bool {
			certificates.mu.Lock()
			defer certificates.mu.Unlock()
			return strings.Count(string(certificates.bundle), "BEGIN") == count
		}
	}
	step := func(name string, change func(), done func() bool) {
		t.Helper()
		change()
		eventually(t, name+": the files are read", done)
		if err := query(NewDialer(client)); err != nil {
			t.Errorf("%s: Query() = %v, want success", name, err)
		}
	}
	step("both CAs in the server", func() { serverFiles.trust(t, before, after) }, trusts(server, 2))
	step("both CAs in the client", func() { clientFiles.trust(t, before, after) }, trusts(client, 2))
	step("new certificate of the client", func() { after.reissue(clientFiles, replicaCert("client")) }, isNew(client))
	step("new certificate of the server", func() { after.reissue(serverFiles, replicaCert("server")) }, isNew(server))
	if err := queryLeaked(); err != nil {
		t.Errorf("Query() with a certificate of the old CA while both are trusted = %v, want success", err)
	}
	if connections := link.Connection(); connections != 1 || !link.Down().IsZero() {
		t.Errorf("the link has had %d connections while both CAs were trusted, want 1 that has not ended", connections)
	}
	step("only the new CA in the client", func() { clientFiles.trust(t, after) }, trusts(client, 1))
	step("only the new CA in the server", func() { serverFiles.trust(t, after) }, trusts(server, 1))
	eventually(t, "a certificate of the old CA is rejected on the open connection", func() bool { return queryLeaked() != nil })
	eventually(t, "the link has connected again with the new certificates", func() bool { return link.Connection() > 1 && link.Down().IsZero() })
}

// TestInvalidNewCertificateIsNotUsed checks that a replica keeps its certificate if the file is replaced
// by one that other replicas would reject.
func TestInvalidNewCertificateIsNotUsed(t *testing.T) {
	ca := newAuthority(t)
	f := ca.issue(replicaCert("server"), ca)
	server := f.load(t, "server")
	to := membership.Branch{Member: membership.Member{Name: "server", Address: serveTLS(t, server, &recorder{answer: &Answer{}})}}
	before := server.own
	ca.reissue(f, replicaCert("another"))
	eventually(t, "the file is read", func() bool {
		cert, _ := server.certificate.CurrentCertKeyContent()
		content, err := os.ReadFile(f.cert)
		return err == nil && string(cert) == string(content)
	})
	time.Sleep(50 * time.Millisecond)
	server.mu.Lock()
	kept := server.own == before
	server.mu.Unlock()
	if !kept {
		t.Error("the replica uses a certificate for another replica, want the previous one")
	}
	if _, err := NewDialer(ca.issue(replicaCert("client"), ca).load(t, "client")).Query(t.Context(), &to, seedRequest()); err != nil {
		t.Errorf("Query() = %v, want success", err)
	}
}
