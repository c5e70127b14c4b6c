package membership

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// Identity is the identity of a replica: its name and that of its group. The certificate of a replica
// contains it as a URI, k8s-1m://replica/GROUP/NAME.
//
// A URI is used because no other certificate of a cluster has this one. Names of hosts or subjects could be
// in the certificate of a kubelet.
type Identity struct{ Group, Name string }

const (
	identityScheme = "k8s-1m"
	identityHost   = "replica"
)

// ErrNoIdentity means that a certificate does not belong to a replica.
var ErrNoIdentity = errors.New("the certificate has no URI of the form k8s-1m://replica/GROUP/NAME")

// Validate returns an error if the identity cannot be written as a URI.
func (i Identity) Validate() error {
	for _, part := range []string{i.Group, i.Name} {
		if part == "" || strings.Contains(part, "/") {
			return fmt.Errorf("replica %q of group %q: names must not be empty or contain a slash", i.Name, i.Group)
		}
	}
	return nil
}

// URI returns the URI in the certificate of the replica.
func (i Identity) URI() *url.URL {
	return &url.URL{Scheme: identityScheme, Host: identityHost, Path: "/" + i.Group + "/" + i.Name}
}

// IdentityOf returns the identity in a certificate. It returns an error if the certificate has none or
// several.
func IdentityOf(cert *x509.Certificate) (Identity, error) {
	var found []Identity
	for _, uri := range cert.URIs {
		group, name, _ := strings.Cut(strings.TrimPrefix(uri.Path, "/"), "/")
		if id := (Identity{group, name}); id.Validate() == nil && id.URI().String() == uri.String() {
			found = append(found, id)
		}
	}
	if len(found) != 1 {
		return Identity{}, fmt.Errorf("%w, or it has several: subject %s", ErrNoIdentity, cert.Subject)
	}
	return found[0], nil
}
