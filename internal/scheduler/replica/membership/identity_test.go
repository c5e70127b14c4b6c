package membership

import (
	"crypto/x509"
	"errors"
	"net/url"
	"testing"
)

func TestIdentityIsReadFromURI(t *testing.T) {
	for text, want := range map[string]Identity{
		"k8s-1m://replica/group/name":                   {"group", "name"},
		"k8s-1m://replica/group/127.0.0.1-7000":         {"group", "127.0.0.1-7000"},
		"k8s-1m://replica/group":                        {},
		"k8s-1m://replica/group/":                       {},
		"k8s-1m://replica//name":                        {},
		"k8s-1m://replica/group/a/b":                    {},
		"k8s-1m://replica/group/a%2Fb":                  {},
		"k8s-1m://replica/group%2Fa/b":                  {},
		"k8s-1m://replica/group/name?x":                 {},
		"k8s-1m://user@replica/group/name":              {},
		"k8s-1m://replica:1/group/name":                 {},
		"k8s-1m://other/group/name":                     {},
		"spiffe://replica/group/name":                   {},
		"k8s-1m://replica/group/name#relay":             {},
		"https://kubernetes.default.svc/replica/g/name": {},
	} {
		uri, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := IdentityOf(&x509.Certificate{URIs: []*url.URL{uri}})
		if got != want || (err == nil) != (want != Identity{}) || err != nil && !errors.Is(err, ErrNoIdentity) {
			t.Errorf("IdentityOf(%s) = %v, %v, want %v", text, got, err, want)
		}
		if err == nil && got.URI().String() != text {
			t.Errorf("URI() = %s, want %s", got.URI(), text)
		}
	}
	a, b := Identity{"g", "a"}, Identity{"g", "b"}
	if _, err := IdentityOf(&x509.Certificate{URIs: []*url.URL{a.URI(), b.URI()}}); !errors.Is(err, ErrNoIdentity) {
		t.Errorf("IdentityOf() of two replicas = %v, want %v", err, ErrNoIdentity)
	}
}
