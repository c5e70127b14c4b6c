package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// replicaPKI is a directory with the certificates of replicas, at a time that the test sets.
type replicaPKI struct {
	t   *testing.T
	dir string
	now time.Time
}

func (p *replicaPKI) ensure(replicas ...string) {
	p.t.Helper()
	if err := EnsureReplicas(p.dir, "group", replicas, p.now); err != nil {
		p.t.Fatal(err)
	}
}

func (p *replicaPKI) read(name string) []byte {
	p.t.Helper()
	content, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return content
}

// leaf returns the certificate of a replica.
func (p *replicaPKI) leaf(replica string) *x509.Certificate {
	p.t.Helper()
	cert, key := ReplicaFiles(replica)
	pair, err := tls.X509KeyPair(p.read(cert), p.read(key))
	if err != nil {
		p.t.Fatal(err)
	}
	return pair.Leaf
}

// verify checks that a CA bundle covers a certificate for both sides of a connection.
func (p *replicaPKI) verify(bundle []byte, cert *x509.Certificate) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	var errs []error
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: p.now, KeyUsages: []x509.ExtKeyUsage{usage}})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// TestReplicasHaveCertificatesOfTheirOwnCA checks names, the CA, and file modes.
func TestReplicasHaveCertificatesOfTheirOwnCA(t *testing.T) {
	p := &replicaPKI{t, t.TempDir(), time.Now()}
	cluster := ensure(t, p.dir)
	p.ensure("a", "b")
	for _, name := range []string{"a", "b"} {
		cert := p.leaf(name)
		if id, err := membership.IdentityOf(cert); err != nil || id != (membership.Identity{Group: "group", Name: name}) {
			t.Errorf("identity in the certificate of %s = %v (error %v)", name, id, err)
		}
		if err := p.verify(p.read(ReplicaCAFile), cert); err != nil {
			t.Errorf("Verify() of the certificate of %s with the replica CA = %v, want nil", name, err)
		}
		if err := p.verify(p.read("ca.crt"), cert); err == nil {
			t.Errorf("the cluster CA covers the certificate of %s, want only the replica CA", name)
		}
		_, key := ReplicaFiles(name)
		if info, err := os.Stat(filepath.Join(p.dir, key)); err != nil || info.Mode().Perm() != privateMode {
			t.Errorf("Stat() of %s = %v, %v, want mode %o", key, info, err, privateMode)
		}
	}
	if err := p.verify(p.read(ReplicaCAFile), cluster.Cert); err == nil {
		t.Error("the replica CA covers the cluster CA, want only replicas")
	}
	before := p.leaf("a")
	p.ensure("a", "b")
	if !p.leaf("a").Equal(before) {
		t.Error("the second EnsureReplicas() has replaced a valid certificate")
	}
	if err := EnsureReplicas(p.dir, "other", []string{"a"}, p.now); err != nil {
		t.Fatal(err)
	}
	if id, err := membership.IdentityOf(p.leaf("a")); err != nil || id.Group != "other" {
		t.Errorf("identity after the group has changed = %v, %v, want group other", id, err)
	}
}

// TestReplicaCARotates simulates three years with a check per day. Replicas read the files at different
// times: one that still has the bundle of up to a month ago must accept certificates of today, and the
// other way round.
func TestReplicaCARotates(t *testing.T) {
	const month = 30
	p := &replicaPKI{t, t.TempDir(), time.Now()}
	var bundles [][]byte
	var leaves []*x509.Certificate
	cas := map[string]bool{}
	for day := range 3 * 365 {
		p.ensure("a")
		bundles, leaves = append(bundles, p.read(ReplicaCAFile)), append(leaves, p.leaf("a"))
		cas[string(bundles[day])] = true
		for earlier := max(0, day-month); earlier <= day; earlier += 7 {
			if err := p.verify(bundles[earlier], leaves[day]); err != nil {
				t.Fatalf("day %d: the certificate is not accepted by a replica with the CAs of day %d: %v", day, earlier, err)
			}
			if leaves[earlier].NotAfter.Before(p.now) {
				continue
			}
			if err := p.verify(bundles[day], leaves[earlier]); err != nil {
				t.Fatalf("day %d: the certificate of day %d is not accepted: %v", day, earlier, err)
			}
		}
		p.now = p.now.Add(24 * time.Hour)
	}
	if len(cas) < 5 {
		t.Errorf("%d different CA bundles in three years, want at least 5", len(cas))
	}
	if p.verify(bundles[0], leaves[len(leaves)-1]) == nil {
		t.Error("the first CA covers the certificate after three years, want it replaced")
	}
}

// TestUnreadableReplicaCAIsNotReplaced checks that a damaged CA is an error, and that a damaged
// certificate, which can be issued again, is replaced.
func TestUnreadableReplicaCAIsNotReplaced(t *testing.T) {
	p := &replicaPKI{t, t.TempDir(), time.Now()}
	p.ensure("a")
	damage := func(name string) {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte("garbage"), privateMode); err != nil {
			t.Fatal(err)
		}
	}
	cert, _ := ReplicaFiles("a")
	damage(cert)
	p.ensure("a")
	if err := p.verify(p.read(ReplicaCAFile), p.leaf("a")); err != nil {
		t.Errorf("Verify() of the replaced certificate = %v, want nil", err)
	}
	damage(replicaCAKeyFile)
	if err := EnsureReplicas(p.dir, "group", []string{"a"}, p.now); !errors.Is(err, ErrUnreadable) {
		t.Errorf("EnsureReplicas() with a damaged CA = %v, want %v", err, ErrUnreadable)
	}
	if content := p.read(replicaCAKeyFile); string(content) != "garbage" {
		t.Errorf("the damaged CA is %q after EnsureReplicas(), want it unchanged", content)
	}
}
