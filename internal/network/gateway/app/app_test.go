package app

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/dataplane"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/nat64"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/registry"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

func TestBadUsage(t *testing.T) {
	required := []string{"serve", "--tls-cert-file=c", "--tls-private-key-file=k", "--client-ca-file=a", "--nodes-file=n"}
	for want, args := range map[string][]string{
		"is required":                       {"serve"},
		"where do nodes come from":          {"serve", "--tls-cert-file=c", "--tls-private-key-file=k", "--client-ca-file=a"},
		"give one of":                       append(required, "--kubeconfig=x"),
		"nothing to do":                     required,
		"--dns64-listen needs":              append(required, "--nat64-pool=192.0.2.1", "--dns64-listen=[::1]:53"),
		"--mtu 1000":                        append(required, "--nat64-pool=192.0.2.1", "--mtu=1000"),
		"use 32, 40, 48, 56, 64 or 96":      append(required, "--nat64-pool=192.0.2.1", "--nat64-prefix=2001:db8::/95"),
		"may not stand for private":         append(required, "--nat64-pool=192.0.2.1", "--allow-private"),
		`--deny "x"`:                        append(required, "--nat64-pool=192.0.2.1", "--deny=x"),
		`--deny 2001:db8::/32: not an IPv4`: append(required, "--nat64-pool=192.0.2.1", "--deny=2001:db8::/32"),
		"--masquerade-range":                append(required, "--masquerade-range=10.0.0.0/31"),
		"overlap":                           append(required, "--masquerade-range=10.0.0.0/16", "--nat64-pool=10.0.1.0/24"),
		"--nat64-ports":                     append(required, "--nat64-pool=192.0.2.1", "--nat64-ports=9"),
		"not an IPv4 prefix":                append(required, "--nat64-pool=2001:db8::/96"),
		"must be positive":                  append(required, "--nat64-pool=192.0.2.1", "--node-ports=0"),
		"unexpected argument":               {"serve", "x"},
		"unknown flag":                      {"serve", "--x"},
		"unknown command":                   {"x"},
		"--gateway and --ca-file":           {"join"},
		"use an address such as https://[":  {"join", "--gateway=x", "--ca-file=a"},
	} {
		var stderr bytes.Buffer
		if code := Execute("test", args, &stderr); code != 2 || !strings.Contains(stderr.String(), want) || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%q: code %d, %q; want %q", args, code, stderr.String(), want)
		}
	}
}

func TestStateIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "state")
	if s, err := readState(path); s != nil || err != nil {
		t.Errorf("no file: %v, %v", s, err)
	}
	saved := state{
		Version: stateVersion, Saved: time.Now().Round(0).UTC(),
		Registrations: []registry.Registration{{
			Peer: registry.Peer{
				Node: registry.Node{Name: "a", Prefixes: []netip.Prefix{netip.MustParsePrefix("2001:db8::/96")}},
				Key:  wireguard.PublicKey{7}, IPv4: netip.MustParseAddr("10.0.0.1"),
			},
			Certificate: registry.Certificate{Serial: "5", Expires: time.Now().Round(0).UTC()}, Renewed: time.Now().Round(0).UTC(),
		}},
		Tunnels: []dataplane.SavedPeer{{Name: "a", Endpoint: "[2001:db8::1]:5", LastStamp: [12]byte{1}}},
		Sessions: []nat64.SavedSession{{
			Node: "a", Protocol: 6, Source: netip.MustParseAddrPort("[2001:db8::1]:1"), Pool: netip.MustParseAddrPort("192.0.2.1:2"),
			Remote: netip.MustParseAddrPort("11.0.0.1:3"), State: 1, Remaining: time.Minute,
		}},
	}
	if err := saved.write(path); err != nil {
		t.Fatal(err)
	}
	got, err := readState(path)
	if err != nil || !reflect.DeepEqual(*got, saved) {
		t.Errorf("read %+v, %v; want %+v", got, err, saved)
	}
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readState(path); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged file: %v", err)
	}
	saved.Version = 99
	if err := saved.write(path); err != nil {
		t.Fatal(err)
	}
	if _, err := readState(path); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("another version: %v", err)
	}
}

func TestMetricsOfNodesAreBounded(t *testing.T) {
	var nodes []dataplane.NodeStats
	for i := range 100 {
		nodes = append(nodes, dataplane.NodeStats{Name: string(rune('a' + i)), NAT64: &dataplane.NAT64Stats{Sessions: i % 10}})
	}
	top := busiest(nodes, 10)
	if len(top) != 10 {
		t.Fatalf("%d nodes", len(top))
	}
	for _, n := range top {
		if n.NAT64.Sessions != 9 {
			t.Errorf("node %s has %d connections", n.Name, n.NAT64.Sessions)
		}
	}
	if got := busiest(nil, 10); len(got) != 0 {
		t.Errorf("%d nodes of none", len(got))
	}
}
