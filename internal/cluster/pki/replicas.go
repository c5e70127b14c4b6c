package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
	"github.com/k8s-1m/k8s-1m/internal/util/atomicfile"
	"github.com/k8s-1m/k8s-1m/internal/util/authority"
)

// Files of the certificate authority of the scheduler replicas. It signs nothing else, so that no other
// certificate of the cluster is accepted by a replica.
const (
	// ReplicaCAFile has the CA certificates that a replica trusts.
	ReplicaCAFile = "replica-ca.crt"
	// replicaCAKeyFile has the same certificates and their private keys, so that both change at once.
	replicaCAKeyFile = "replica-ca.key"

	replicaCAName = "dist-scheduler-replicas"
)

const (
	publicMode  = 0o644
	privateMode = 0o600
)

// ReplicaFiles returns the names of the files with the certificate of a scheduler replica and its key.
func ReplicaFiles(replica string) (cert, key string) {
	return "replica-" + replica + ".crt", "replica-" + replica + ".key"
}

// EnsureReplicas creates the certificate authority of the scheduler replicas, and a certificate for each
// replica, or renews them if they expire soon. It may be called while the replicas run: they read
// changed files again. They trust the next CA for months before it signs a certificate.
func EnsureReplicas(dir, group string, replicas []string, now time.Time) error {
	cas, err := ensureReplicaCAs(dir, now)
	if err != nil {
		return err
	}
	for _, name := range replicas {
		if err := ensureReplica(dir, membership.Identity{Group: group, Name: name}, cas, now); err != nil {
			return err
		}
	}
	return nil
}

// ensureReplicaCAs reads the CAs, creates or renews them if necessary, and writes the file that replicas
// read.
func ensureReplicaCAs(dir string, now time.Time) ([]authority.CA, error) {
	path := filepath.Join(dir, replicaCAKeyFile)
	content, err := os.ReadFile(path)
	var cas []authority.CA
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err == nil:
		if cas, err = authority.Parse(content, content); err != nil {
			return nil, unreadable(dir, replicaCAKeyFile, err)
		}
	default:
		return nil, unreadable(dir, replicaCAKeyFile, err)
	}
	cas, changed, err := authority.Renew(cas, replicaCAName, now)
	if err != nil {
		return nil, fmt.Errorf("renewing the CA of the scheduler replicas: %w", err)
	}
	if changed {
		keys, err := authority.EncodeKeys(cas)
		if err != nil {
			return nil, err
		}
		if err := atomicfile.Write(path, append(authority.EncodeCerts(cas), keys...), privateMode); err != nil {
			return nil, err
		}
	}
	bundle, path := authority.EncodeCerts(cas), filepath.Join(dir, ReplicaCAFile)
	if stored, err := os.ReadFile(path); err == nil && bytes.Equal(stored, bundle) {
		return cas, nil
	}
	return cas, atomicfile.Write(path, bundle, publicMode)
}

// ensureReplica writes a certificate of a replica, unless a valid one exists.
func ensureReplica(dir string, id membership.Identity, cas []authority.CA, now time.Time) error {
	certFile, keyFile := ReplicaFiles(id.Name)
	certFile, keyFile = filepath.Join(dir, certFile), filepath.Join(dir, keyFile)
	if pair, err := tls.LoadX509KeyPair(certFile, keyFile); err == nil {
		stored, err := membership.IdentityOf(pair.Leaf)
		if err == nil && stored == id && !authority.NeedsRenewal(pair.Leaf, cas, now) {
			return nil
		}
	}
	pair, err := authority.Issue(cas, &x509.Certificate{
		Subject: pkix.Name{CommonName: id.Name}, URIs: []*url.URL{id.URI()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, now)
	if err != nil {
		return fmt.Errorf("certificate of scheduler replica %s: %w", id.Name, err)
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(pair.PrivateKey)
	if err != nil {
		return fmt.Errorf("key of scheduler replica %s: %w", id.Name, err)
	}
	// A replica that reads the files between the two writes keeps its previous certificate.
	return errors.Join(atomicfile.Write(keyFile, key, privateMode), atomicfile.Write(certFile, pkiutil.EncodeCertPEM(pair.Leaf), publicMode))
}
