package gateway

import (
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
)

const (
	goAwayClients  = 20
	goAwayRequests = 100
)

// TestGoAway checks requests that cross the end of their connection to the API server. kube-apiserver sends GOAWAY after an
// answer 401, with --goaway-chance, and when it stops. What it has not processed must be sent again, and nothing must be
// executed twice.
func TestGoAway(t *testing.T) {
	s := newStandalone(t, func(w http.ResponseWriter, _ *http.Request) {
		if rand.IntN(4) == 0 {
			w.Header().Set("Connection", "close")
		}
	})
	// One client has one connection, so its requests share a connection to the API server.
	client := httpClient(t, []tls.Certificate{s.user(t, "alice", "dev")}, true)
	body := strings.Repeat("x", 2000)
	var all sync.WaitGroup
	for c := range goAwayClients {
		all.Go(func() {
			for n := range goAwayRequests {
				method := []string{http.MethodPost, http.MethodGet, http.MethodDelete}[n%3]
				var content io.Reader
				if method == http.MethodPost {
					content = strings.NewReader(body)
				}
				request, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("https://%s/goaway-%d-%d.", s.gateway, c, n), content)
				if err != nil {
					t.Error(err)
					return
				}
				response, err := client.Do(request)
				if err != nil {
					t.Errorf("%s: %v", method, err)
					return
				}
				text, _ := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if response.StatusCode != http.StatusOK {
					t.Errorf("%s: status %d %s", method, response.StatusCode, text)
				}
			}
		})
	}
	all.Wait()
	for c := range goAwayClients {
		for n := range goAwayRequests {
			got := s.of(fmt.Sprintf("goaway-%d-%d.", c, n))
			// A GET may be executed twice.
			if n%3 != 1 && len(got) != 1 || len(got) == 0 {
				t.Errorf("the API server received request %d of client %d %d times", n, c, len(got))
			} else if n%3 == 0 && got[0].Body != body {
				t.Errorf("the API server received a body of %d bytes, want %d", len(got[0].Body), len(body))
			}
		}
	}
}
