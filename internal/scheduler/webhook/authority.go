package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	ca "github.com/k8s-1m/k8s-1m/internal/util/authority"
)

const (
	// Keys of the Secret: CA certificates and their private keys, both oldest first.
	caCertsKey = "ca.crt"
	caKeysKey  = "ca.key"
	// ManagedByLabel is on the Secret and on the ValidatingWebhookConfiguration. An object of the same name
	// without it belongs to somebody else, and is left alone.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "dist-scheduler"
)

// errNotOurs is returned for an object that this program did not create.
var errNotOurs = errors.New("exists and was not created by dist-scheduler; choose another --intake-name, or delete it")

// authority issues the serving certificate of this process. All replicas use the same CAs, which are stored
// in a Secret.
type authority struct {
	client kubernetes.Interface
	name   string
	host   string
	now    func() time.Time

	mu   sync.Mutex
	cas  []ca.CA
	leaf *tls.Certificate
}

func newAuthority(client kubernetes.Interface, name, host string, now func() time.Time) *authority {
	return &authority{client: client, name: name, host: host, now: now}
}

// serving returns the serving certificate of this process; nil before the first ensure.
func (a *authority) serving() *tls.Certificate {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leaf
}

// bundle returns the certificates of all CAs in PEM, for the API servers.
func (a *authority) bundle() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return ca.EncodeCerts(a.cas)
}

// ensure creates or renews the CA and the serving certificate if necessary.
func (a *authority) ensure(ctx context.Context) error {
	cas, err := a.ensureCAs(ctx)
	if err != nil {
		return fmt.Errorf("maintaining the webhook CA: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cas = cas
	if a.leaf != nil && !ca.NeedsRenewal(a.leaf.Leaf, cas, a.now()) {
		return nil
	}
	if a.leaf, err = ca.Issue(cas, a.template(), a.now()); err != nil {
		return fmt.Errorf("issuing the webhook certificate: %w", err)
	}
	return nil
}

// ensureCAs updates the Secret and returns the CAs in it. It returns an error if another process writes
// the Secret at the same time; the caller then tries again. It does not change a Secret that this
// program did not create.
func (a *authority) ensureCAs(ctx context.Context) ([]ca.CA, error) {
	secrets := a.client.CoreV1().Secrets(metav1.NamespaceSystem)
	secret, err := secrets.Get(ctx, a.name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return nil, err
	}
	if missing {
		secret = &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: a.name, Namespace: metav1.NamespaceSystem}, Type: v1.SecretTypeOpaque}
	}
	cas, err := ca.Parse(secret.Data[caCertsKey], secret.Data[caKeysKey])
	switch {
	case missing:
	case secret.Labels[ManagedByLabel] != managedBy && (err != nil || !a.created(cas)):
		return nil, fmt.Errorf("secret %s %w", klog.KObj(secret), errNotOurs)
	case err != nil:
		klog.FromContext(ctx).Error(err, "Replacing the webhook CA, because its Secret is invalid", "secret", klog.KObj(secret))
	}
	kept, changed, err := ca.Renew(cas, a.commonName(), a.now())
	if err != nil || !changed && secret.Labels[ManagedByLabel] == managedBy {
		return kept, err
	}
	keys, err := ca.EncodeKeys(kept)
	if err != nil {
		return nil, err
	}
	metav1.SetMetaDataLabel(&secret.ObjectMeta, ManagedByLabel, managedBy)
	secret.Data = map[string][]byte{caCertsKey: ca.EncodeCerts(kept), caKeysKey: keys}
	if missing {
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	return kept, err
}

func (a *authority) commonName() string { return a.name + "-ca" }

// created reports whether an earlier version of this program, which set no label, has created the CAs.
func (a *authority) created(cas []ca.CA) bool {
	return !slices.ContainsFunc(cas, func(c ca.CA) bool { return c.Cert.Subject.CommonName != a.commonName() })
}

// template returns the subject, names and usages of the serving certificate.
func (a *authority) template() *x509.Certificate {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: a.name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if ip := net.ParseIP(a.host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{a.host}
	}
	return template
}
