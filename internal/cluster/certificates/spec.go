// Package certificates keeps certificates in Secrets of a Kubernetes cluster: it creates those that are missing, and
// renews those that expire soon. It is for clusters without cert-manager, and the Secrets have its layout: tls.crt,
// tls.key and ca.crt.
package certificates

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/url"

	"sigs.k8s.io/yaml"
)

// Spec lists authorities and the certificates that they sign.
type Spec struct {
	Authorities  []Authority   `json:"authorities"`
	Certificates []Certificate `json:"certificates"`
}

// Authority is a CA in a Secret. tls.crt and tls.key have all CAs that are valid, see package authority.
type Authority struct {
	// Name is how certificates refer to it, and its common name.
	Name string `json:"name"`
	// Secret is the name of its Secret.
	Secret string `json:"secret"`
}

// Certificate is a certificate in a Secret. ca.crt has all CAs of its authority.
type Certificate struct {
	// Authority is the name of the authority that signs it.
	Authority string `json:"authority"`
	// Secret is the name of its Secret.
	Secret string `json:"secret"`
	// CommonName, DNSNames and URIs are what the certificate is valid for.
	CommonName string   `json:"commonName"`
	DNSNames   []string `json:"dnsNames"`
	URIs       []string `json:"uris"`
	// Usages are "server", "client" or both.
	Usages []string `json:"usages"`
}

// Parse reads a Spec from YAML, and checks it.
func Parse(text []byte) (Spec, error) {
	var spec Spec
	if err := yaml.UnmarshalStrict(text, &spec); err != nil {
		return spec, err
	}
	secrets, authorities := map[string]bool{}, map[string]bool{}
	for _, a := range spec.Authorities {
		if a.Name == "" || a.Secret == "" || secrets[a.Secret] || authorities[a.Name] {
			return spec, fmt.Errorf("authority %q with secret %q: both names must be set and unique", a.Name, a.Secret)
		}
		secrets[a.Secret], authorities[a.Name] = true, true
	}
	for _, c := range spec.Certificates {
		if c.Secret == "" || secrets[c.Secret] {
			return spec, fmt.Errorf("certificate %q: its secret %q must be set and unique", c.CommonName, c.Secret)
		}
		secrets[c.Secret] = true
		if !authorities[c.Authority] {
			return spec, fmt.Errorf("certificate %s: there is no authority %q", c.Secret, c.Authority)
		}
		if _, err := c.template(); err != nil {
			return spec, fmt.Errorf("certificate %s: %w", c.Secret, err)
		}
	}
	return spec, nil
}

// template returns the subject, the names and the usages of the certificate.
func (c *Certificate) template() (*x509.Certificate, error) {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: c.CommonName}, DNSNames: c.DNSNames}
	for _, text := range c.URIs {
		uri, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		template.URIs = append(template.URIs, uri)
	}
	for _, usage := range c.Usages {
		switch usage {
		case "server":
			template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		case "client":
			template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
		default:
			return nil, fmt.Errorf("usage %q: choose server or client", usage)
		}
	}
	if len(template.ExtKeyUsage) == 0 {
		return nil, fmt.Errorf("usages: choose server, client or both")
	}
	return template, nil
}
