package certificates

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"

	"github.com/k8s-1m/k8s-1m/internal/util/authority"
)

const (
	// ManagedLabel is on all Secrets that this package writes. It changes no others.
	ManagedLabel = "k8s-1m.dev/certificates"
	managed      = "managed"

	caKey = "ca.crt"
)

// errNotOurs means that a Secret has one of the names, but somebody else created it.
var errNotOurs = errors.New("was not created by this command: delete it, or list another name")

// Apply creates and renews the certificates of a spec in a namespace, and returns the names of the Secrets that it
// wrote. Two processes may do so at the same time: one of them gets an error, and may try again.
func Apply(ctx context.Context, client kubernetes.Interface, namespace string, spec Spec, now time.Time) (written []string, err error) {
	a := applier{ctx: ctx, client: client, namespace: namespace, now: now}
	authorities := map[string][]authority.CA{}
	for _, ca := range spec.Authorities {
		if authorities[ca.Name], err = a.authority(ca); err != nil {
			return a.written, fmt.Errorf("secret %s/%s: %w", namespace, ca.Secret, err)
		}
	}
	for _, certificate := range spec.Certificates {
		if err := a.certificate(certificate, authorities[certificate.Authority]); err != nil {
			return a.written, fmt.Errorf("secret %s/%s: %w", namespace, certificate.Secret, err)
		}
	}
	return a.written, nil
}

// applier is one run of Apply.
type applier struct {
	ctx       context.Context
	client    kubernetes.Interface
	namespace string
	now       time.Time
	written   []string
}

// authority returns the CAs in the Secret of an authority, after it has created or renewed them if necessary.
func (a *applier) authority(ca Authority) ([]authority.CA, error) {
	secret, exists, err := a.get(ca.Secret)
	if err != nil {
		return nil, err
	}
	var stored []authority.CA
	if exists {
		// An authority that cannot be read is not replaced: what it has signed would be refused everywhere.
		if stored, err = authority.Parse(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err != nil {
			return nil, fmt.Errorf("%w; restore it, or delete it to replace all its certificates", err)
		}
	}
	cas, changed, err := authority.Renew(stored, ca.Name, a.now)
	if err != nil || !changed {
		return cas, err
	}
	keys, err := authority.EncodeKeys(cas)
	if err != nil {
		return nil, err
	}
	certs := authority.EncodeCerts(cas)
	return cas, a.put(secret, exists, map[string][]byte{corev1.TLSCertKey: certs, corev1.TLSPrivateKeyKey: keys, caKey: certs})
}

// certificate creates or renews a certificate, or replaces it if the spec has changed.
func (a *applier) certificate(c Certificate, cas []authority.CA) error {
	secret, exists, err := a.get(c.Secret)
	if err != nil {
		return err
	}
	template, err := c.template()
	if err != nil {
		return err
	}
	bundle := authority.EncodeCerts(cas)
	stored, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err == nil && matches(stored.Leaf, template) && !authority.NeedsRenewal(stored.Leaf, cas, a.now) {
		if bytes.Equal(secret.Data[caKey], bundle) {
			return nil
		}
		return a.put(secret, exists, map[string][]byte{
			corev1.TLSCertKey: secret.Data[corev1.TLSCertKey], corev1.TLSPrivateKeyKey: secret.Data[corev1.TLSPrivateKeyKey], caKey: bundle,
		})
	}
	issued, err := authority.Issue(cas, template, a.now)
	if err != nil {
		return err
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(issued.PrivateKey)
	if err != nil {
		return err
	}
	return a.put(secret, exists, map[string][]byte{corev1.TLSCertKey: pkiutil.EncodeCertPEM(issued.Leaf), corev1.TLSPrivateKeyKey: key, caKey: bundle})
}

// matches reports whether a certificate has the subject, the names and the usages of a template.
func matches(cert, template *x509.Certificate) bool {
	return cert.Subject.CommonName == template.Subject.CommonName && slices.Equal(cert.DNSNames, template.DNSNames) &&
		fmt.Sprint(cert.URIs) == fmt.Sprint(template.URIs) && slices.Equal(cert.ExtKeyUsage, template.ExtKeyUsage)
}

// get returns a Secret, and whether it exists. If not, it is empty.
func (a *applier) get(name string) (secret *corev1.Secret, exists bool, err error) {
	secret, err = a.client.CoreV1().Secrets(a.namespace).Get(a.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: a.namespace}, Type: corev1.SecretTypeTLS}, false, nil
	}
	if err == nil && secret.Labels[ManagedLabel] != managed {
		err = errNotOurs
	}
	return secret, true, err
}

// put creates a Secret, or updates it if it exists.
func (a *applier) put(secret *corev1.Secret, exists bool, data map[string][]byte) (err error) {
	metav1.SetMetaDataLabel(&secret.ObjectMeta, ManagedLabel, managed)
	secret.Data = data
	secrets := a.client.CoreV1().Secrets(a.namespace)
	if exists {
		_, err = secrets.Update(a.ctx, secret, metav1.UpdateOptions{})
	} else {
		_, err = secrets.Create(a.ctx, secret, metav1.CreateOptions{})
	}
	if err == nil {
		a.written = append(a.written, secret.Name)
	}
	return err
}
