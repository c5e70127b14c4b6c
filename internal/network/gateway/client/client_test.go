package client

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/enroll"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

func TestNodesSpreadOverGateways(t *testing.T) {
	gateways := []string{"https://a", "https://b", "https://c"}
	first := map[string]int{}
	for i := range 3000 {
		node := fmt.Sprintf("node-%d", i)
		sorted := order(node, gateways)
		first[sorted[0]]++
		without := order(node, []string{"https://a", "https://c"})
		if sorted[0] != "https://b" && without[0] != sorted[0] {
			t.Fatalf("node %s moves from %s to %s although its gateway stays", node, sorted[0], without[0])
		}
	}
	for _, gateway := range gateways {
		if first[gateway] < 800 || first[gateway] > 1200 {
			t.Errorf("%d of 3,000 nodes use %s", first[gateway], gateway)
		}
	}
}

func TestKeyIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "key")
	made, err := LoadPrivateKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := LoadPrivateKey(path); err != nil || again != made {
		t.Errorf("the key has changed, %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the key has mode %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadPrivateKey(path); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("a damaged key: %v", err)
	}
}

// TestInterruptedRegistrationIsEnded stops a node while a gateway registers it. The gateway would keep it until the
// registration expires.
func TestInterruptedRegistrationIsEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	methods := make(chan string, 10)
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		methods <- request.Method
		if request.Method == http.MethodPost {
			cancel()
			_, _ = io.Copy(io.Discard, request.Body)
			<-request.Context().Done()
		}
	}))
	defer gateway.Close()
	r := &runner{config: Config{Log: slog.New(slog.DiscardHandler)}, api: &api{client: gateway.Client()}, order: []string{gateway.URL}}
	if _, err := r.register(ctx); err == nil {
		t.Fatal("no error")
	}
	r.leave()
	for _, want := range []string{http.MethodPost, http.MethodDelete} {
		if method := <-methods; method != want {
			t.Errorf("the gateway got %s, want %s", method, want)
		}
	}
}

func TestAnswersOfGateways(t *testing.T) {
	server := netip.MustParseAddr("2001:db8::1")
	if endpoint, err := endpointOf(enroll.Response{Port: 7}, server); err != nil || endpoint != netip.MustParseAddrPort("[2001:db8::1]:7") {
		t.Errorf("endpoint %v, %v", endpoint, err)
	}
	if endpoint, err := endpointOf(enroll.Response{Port: 7, Host: "2001:db8::2"}, server); err != nil || endpoint != netip.MustParseAddrPort("[2001:db8::2]:7") {
		t.Errorf("endpoint %v, %v", endpoint, err)
	}
	for _, r := range []enroll.Response{{}, {Port: 7, Host: "x\nallowed_ip=::/0"}} {
		if _, err := endpointOf(r, server); err == nil {
			t.Errorf("no error for %+v", r)
		}
	}
	for _, r := range []enroll.Response{{}, {NAT64Prefix: "x"}, {NAT64Prefix: "::/0"}, {NAT64Prefix: "10.0.0.0/8"}, {IPv4: "::1"}, {IPv4: "x"}} {
		if _, _, err := destinations(r); err == nil {
			t.Errorf("no error for %+v", r)
		}
	}
}

// TestOtherGatewayIsTried has a gateway first that registers the node with an answer that cannot be used.
func TestOtherGatewayIsTried(t *testing.T) {
	asked := make(chan string, 10)
	serve := func(name string, status int, body string) *httptest.Server {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			asked <- name + " " + request.Method
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(server.Close)
		return server
	}
	unusable, refusing := serve("unusable", http.StatusOK, "{}"), serve("refusing", http.StatusForbidden, "{}")
	r := &runner{
		config: Config{Log: slog.New(slog.DiscardHandler)}, api: &api{client: unusable.Client()}, tunnel: &tunnel{},
		order: []string{unusable.URL, refusing.URL},
	}
	if _, err := r.register(t.Context()); err == nil || !strings.Contains(err.Error(), "names no port") || !strings.Contains(err.Error(), "403") {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{"unusable POST", "refusing POST"} {
		if got := <-asked; got != want {
			t.Errorf("request %q, want %q", got, want)
		}
	}
}

// TestEndpointIsTheServerThatAnswers asks a gateway by a name, as its certificate and its tunnel are at the address that has answered.
func TestEndpointIsTheServerThatAnswers(t *testing.T) {
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"port": 7}`)
	}))
	defer gateway.Close()
	address, err := netip.ParseAddrPort(gateway.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address.String())
	}}
	a := &api{client: &http.Client{Transport: transport}}
	answer, err := a.register(t.Context(), "http://gateway.example", wireguard.PublicKey{})
	if err != nil || answer.server != address.Addr() || answer.Port != 7 {
		t.Errorf("answer %+v, %v; want the address %v", answer, err, address)
	}
}
