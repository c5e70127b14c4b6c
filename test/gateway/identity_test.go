package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestGateway runs all tests in one cluster.
func TestGateway(t *testing.T) {
	c := newCluster(t)
	t.Run("identity", func(t *testing.T) { testIdentity(t, c) })
	t.Run("names that a field would change", func(t *testing.T) { testBlanks(t, c) })
	t.Run("an empty group", func(t *testing.T) { testEmptyGroup(t, c) })
	t.Run("HTTP/2 conformance", func(t *testing.T) { testHTTP2(t, c) })
	t.Run("certificates", func(t *testing.T) { testCertificates(t, c) })
	t.Run("validity begins and ends", func(t *testing.T) { testValidity(t, c) })
	t.Run("claims are removed", func(t *testing.T) { testClaims(t, c) })
	t.Run("answers are the same", func(t *testing.T) { testDifferences(t, c) })
	t.Run("kubectl", func(t *testing.T) { testKubectl(t, c) })
	t.Run("streams", func(t *testing.T) { testStreams(t, c) })
	t.Run("faults under load", func(t *testing.T) { testFaults(t, c) })
	t.Run("protection", func(t *testing.T) { testProtection(t, c) })
	t.Run("watches survive a killed API server", func(t *testing.T) { testKilledServer(t, c) })
}

// httpClient returns a client with a certificate, for one protocol. It closes its connections with the
// test.
func httpClient(t *testing.T, certificates []tls.Certificate, http2 bool) *http.Client {
	transport := &http.Transport{
		// The servers' certificates are not what is tested.
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, Certificates: certificates},
		ForceAttemptHTTP2: http2,
	}
	if !http2 {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// whoami returns the status code and the user that an address sees.
func whoami(t *testing.T, client *http.Client, address string, fields http.Header) (int, authenticationv1.UserInfo) {
	t.Helper()
	code, user, err := tryWhoami(t, client, address, fields)
	must(t, err)
	return code, user
}

// tryWhoami does the same, and returns the error if there is no answer.
func tryWhoami(t *testing.T, client *http.Client, address string, fields http.Header) (int, authenticationv1.UserInfo, error) {
	t.Helper()
	review := []byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"https://"+address+"/apis/authentication.k8s.io/v1/selfsubjectreviews", bytes.NewReader(review))
	must(t, err)
	for name, values := range fields {
		request.Header[name] = values
	}
	request.Header.Set("Content-Type", "application/json")
	var answer authenticationv1.SelfSubjectReview
	response, err := client.Do(request)
	if err != nil {
		return 0, answer.Status.UserInfo, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, answer.Status.UserInfo, err
	}
	if response.StatusCode == http.StatusCreated {
		must(t, json.Unmarshal(body, &answer))
	}
	return response.StatusCode, answer.Status.UserInfo, nil
}

// describe returns a user as text.
func describe(code int, user authenticationv1.UserInfo) string {
	return fmt.Sprintf("%d user=%q uid=%q groups=%q extra=%v", code, user.Username, user.UID, user.Groups, user.Extra)
}

// testIdentity compares who a client is, for each certificate with each kind of token.
func testIdentity(t *testing.T, c *cluster) {
	token := c.token(t)
	bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
	credentials := map[string]http.Header{
		"no token":                 {},
		"a token":                  bearer(token),
		"a wrong token":            bearer("wrong"),
		"an empty token":           {"Authorization": {"Bearer "}},
		"a password":               {"Authorization": {"Basic YTpi"}},
		"an impersonated user":     {"Impersonate-User": {"carol"}, "Impersonate-Group": {"x"}},
		"a token and a user":       {"Authorization": {"Bearer " + token}, "Impersonate-User": {"carol"}},
		"a claim of a front proxy": {"X-Remote-User": {"system:admin"}, "X-Remote-Group": {"system:masters"}},
	}
	for what, certificates := range c.corpus(t) {
		for with, fields := range credentials {
			for _, http2 := range []bool{true, false} {
				client := httpClient(t, certificates, http2)
				direct := describe(whoami(t, client, c.Servers[0], fields))
				through := describe(whoami(t, client, c.gateway, fields))
				if direct != through {
					t.Errorf("certificate %s, with %s, HTTP/2 %t:\nan API server: %s\nthe gateway:   %s", what, with, http2, direct, through)
				}
			}
		}
	}
}

// token returns a token of a service account.
func (c *cluster) token(t *testing.T) string {
	t.Helper()
	accounts := c.client(t, c.Servers[0]).CoreV1().ServiceAccounts("default")
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "gateway-test"}}
	_, err := accounts.Create(context.Background(), account, metav1.CreateOptions{})
	must(t, err)
	request, err := accounts.CreateToken(context.Background(), account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	return request.Status.Token
}

// testBlanks checks that no name becomes another one on its way.
func testBlanks(t *testing.T, c *cluster) {
	for what, certificates := range c.blanks(t) {
		code, user := whoami(t, httpClient(t, certificates, true), c.gateway, nil)
		if code != http.StatusUnauthorized {
			t.Errorf("%s: %s, want status 401", what, describe(code, user))
		}
	}
}

// testEmptyGroup checks the only other difference: a header field cannot carry an empty group, so it is left out.
func testEmptyGroup(t *testing.T, c *cluster) {
	subject := pkix.Name{CommonName: "bob", Organization: []string{"", "dev"}}
	certificates := []tls.Certificate{c.clusterCA(t).sign(t, template(subject))}
	code, user := whoami(t, httpClient(t, certificates, true), c.gateway, nil)
	if code != http.StatusCreated || !slices.Equal(user.Groups, []string{"dev", "system:authenticated"}) {
		t.Errorf("%s, want the groups dev and system:authenticated", describe(code, user))
	}
}

// testValidity checks that the clock counts for each request, and not only for the handshake.
func testValidity(t *testing.T, c *cluster) {
	// All clients must be connected before the boundary. On a busy machine that takes longer.
	for soon := 5 * time.Second; ; soon *= 2 {
		late, wrong := c.crossValidity(t, soon)
		if !late {
			for _, text := range wrong {
				t.Error(text)
			}
			return
		}
		if soon > startTimeout {
			t.Fatalf("the clients do not connect within %v", soon)
		}
	}
}

// crossValidity sends requests before and after a moment at which certificates begin and end to be valid. It returns what is wrong, and
// whether a client was not connected before that moment.
func (c *cluster) crossValidity(t *testing.T, soon time.Duration) (late bool, wrong []string) {
	t.Helper()
	var mutex sync.Mutex
	note := func(when, name string, http2 bool, got, want [2]int) {
		mutex.Lock()
		defer mutex.Unlock()
		if got != want {
			wrong = append(wrong, fmt.Sprintf("%s, HTTP/2 %t, %s: status %v, want %v", name, http2, when, got, want))
		}
	}
	ca, boundary := c.clusterCA(t), time.Now().Add(soon).Truncate(time.Second)
	sign := func(change func(*x509.Certificate)) []tls.Certificate {
		certificate := template(pkix.Name{CommonName: "bob"})
		change(certificate)
		return []tls.Certificate{ca.sign(t, certificate)}
	}
	expiring := sign(func(c *x509.Certificate) { c.NotAfter = boundary })
	coming := sign(func(c *x509.Certificate) { c.NotBefore = boundary })
	var all sync.WaitGroup
	for _, http2 := range []bool{true, false} {
		for address, name := range map[string]string{c.Servers[0]: "an API server", c.gateway: "the gateway"} {
			ends, begins := httpClient(t, expiring, http2), httpClient(t, coming, http2)
			codes := func() [2]int {
				first, _ := whoami(t, ends, address, nil)
				second, _ := whoami(t, begins, address, nil)
				return [2]int{first, second}
			}
			all.Go(func() {
				note("before", name, http2, codes(), [2]int{http.StatusCreated, http.StatusUnauthorized})
				if time.Now().After(boundary) {
					mutex.Lock()
					late = true
					mutex.Unlock()
				}
				time.Sleep(time.Until(boundary.Add(time.Second + 100*time.Millisecond)))
				note("afterwards", name, http2, codes(), [2]int{http.StatusUnauthorized, http.StatusCreated})
			})
		}
	}
	all.Wait()
	return late, wrong
}

// testClaims checks that a client cannot claim or remove an identity, in any spelling.
func testClaims(t *testing.T, c *cluster) {
	valid := c.corpus(t)["no groups"]
	for _, fields := range []http.Header{
		{"X-Remote-User": {"system:admin"}, "X-Remote-Group": {"system:masters"}},
		{"x-remote-group": {"system:masters"}},
		{"X-REMOTE-EXTRA-scopes": {"all"}},
		{"X-Remote-Uid": {"0"}},
		{"Connection": {"X-Remote-User"}},
		{"Connection": {"keep-alive, X-Remote-User, X-Remote-Group"}, "X-Remote-User": {"a"}},
	} {
		for _, http2 := range []bool{true, false} {
			if http2 && fields["Connection"] != nil {
				continue // HTTP/2 has no such field
			}
			code, user := whoami(t, httpClient(t, valid, http2), c.gateway, fields)
			if code != http.StatusCreated || user.Username != "bob" || user.UID != "" || len(user.Groups) != 1 || len(user.Extra) != 1 {
				t.Errorf("%v, HTTP/2 %t: %s, want bob without other groups", fields, http2, describe(code, user))
			}
		}
	}
}
