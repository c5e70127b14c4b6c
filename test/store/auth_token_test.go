package store

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// jwtKeys writes a pair of keys for a sign method, and returns the options of --auth-token with it.
func jwtKeys(t *testing.T, dir, method string) string {
	t.Helper()
	private, public := filepath.Join(dir, method+".key"), filepath.Join(dir, method+".pub")
	options := fmt.Sprintf("jwt,sign-method=%s,priv-key=%s,pub-key=%s,ttl=10m", method, private, public)
	var key crypto.Signer
	var err error
	switch method[:2] {
	case "HS":
		mustWrite(t, private, "a secret of at least as many bytes as the hash has, for the longest hash: 64")
		return strings.Replace(options, ",pub-key="+public, "", 1)
	case "RS", "PS":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	case "ES":
		curve := map[string]elliptic.Curve{"ES256": elliptic.P256(), "ES384": elliptic.P384()}[method]
		key, err = ecdsa.GenerateKey(curve, rand.Reader)
	case "Ed":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, public, "PUBLIC KEY", encoded)
	switch k := key.(type) {
	case *ecdsa.PrivateKey:
		encoded, err = x509.MarshalECPrivateKey(k)
		writePEM(t, private, "EC PRIVATE KEY", encoded)
	case *rsa.PrivateKey:
		writePEM(t, private, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(k))
	default:
		encoded, err = x509.MarshalPKCS8PrivateKey(key)
		writePEM(t, private, "PRIVATE KEY", encoded)
	}
	if err != nil {
		t.Fatal(err)
	}
	return options
}

// TestTokensOfEtcd checks that mem_etcd accepts the tokens that etcd has signed, and the other way round, with each
// sign method, and that a change of users makes tokens old.
func TestTokensOfEtcd(t *testing.T) {
	dir := t.TempDir()
	for _, method := range []string{"HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"} {
		t.Run(method, func(t *testing.T) {
			peers := twoAuthPeers(t, "--auth-token", jwtKeys(t, dir, method))
			for _, peer := range peers {
				peer.limitUser()
			}
			compare := func(requests ...authStep) { t.Helper(); compareSteps(t, peers, requests) }
			read, denied := &pb.RangeRequest{Key: []byte("r/1")}, &pb.RangeRequest{Key: []byte("x")}
			check := func() {
				t.Helper()
				compare(authStep{"u", read}, authStep{"u", denied}, authStep{"u", putRequest("w/1", "v")}, authStep{"u", putRequest("x", "v")},
					authStep{"root", &pb.AuthUserListRequest{}}, authStep{"invalid", read}, authStep{"u", &pb.TxnRequest{Success: []*pb.RequestOp{op(read)}}})
				compareStreams(t, peers[0], peers[1], "u", [2]string{"r/1", ""})
			}
			check()
			peers[0].tokens, peers[1].tokens = peers[1].tokens, peers[0].tokens
			check()
			for _, peer := range peers {
				peer.must("u", read)
				// A token with another signature is invalid.
				token := peer.tokens["u"]
				peer.tokens["changed"] = token[:len(token)-8] + "AAAAAAAA"
				peer.tokens["unsigned"] = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0." + strings.Split(token, ".")[1] + "."
			}
			compare(authStep{"changed", read}, authStep{"unsigned", read})
			if _, err := peers[1].call("unsigned", read); err == nil {
				t.Error("a token without a signature is accepted")
			}
			compare(authStep{"root", grantPermission("r", authpb.Permission_READ, "x", "")})
			check()
			compare(authStep{"u", &pb.LeaseLeasesRequest{}}, authStep{"u", &pb.LeaseTimeToLiveRequest{ID: 99, Keys: true}}, authStep{"u", &pb.LeaseRevokeRequest{ID: 1}})
			for _, peer := range peers {
				peer.login("u", "pw")
			}
			check()
		})
	}
}

// TestVerifyOnlyTokens checks a server that has only the public key, and tokens that expire.
func TestVerifyOnlyTokens(t *testing.T) {
	dir := t.TempDir()
	options := jwtKeys(t, dir, "ES256")
	issuer := newAuthPeer(t, "issuer", startMemEtcd(t, append([]string{"--wal-mode", "none", "--auth-token", strings.Replace(options, "ttl=10m", "ttl=1s", 1)}, cheapHashes...)...))
	public := fmt.Sprintf("jwt,sign-method=ES256,pub-key=%s", filepath.Join(dir, "ES256.pub"))
	peers := []*authPeer{
		newAuthPeer(t, "etcd", startEtcd(t, append([]string{"--auth-token", public}, cheapHashes...)...)),
		newAuthPeer(t, "mem_etcd", startMemEtcd(t, append([]string{"--wal-mode", "none", "--auth-token", public}, cheapHashes...)...)),
	}
	issuer.limitUser()
	for _, peer := range peers {
		for _, request := range []authStep{
			{"", userAdd("root", "pw")}, {"", userAdd("u", "pw")}, {"", grantRole("root", "root")}, {"", &pb.AuthEnableRequest{}},
		} {
			peer.must(request.user, request.request)
		}
	}
	compareSteps(t, peers, []authStep{{"", &pb.AuthenticateRequest{Name: "u", Password: "pw"}}, {"", &pb.AuthenticateRequest{Name: "u", Password: "wrong"}}})
	other := newAuthPeer(t, "other issuer", startMemEtcd(t, append([]string{"--wal-mode", "none", "--auth-token", options}, cheapHashes...)...))
	other.limitUser()
	for _, peer := range peers {
		peer.tokens = other.tokens
		peer.must("root", &pb.AuthUserListRequest{})
	}
	// The issuer has changed its users more often, so the revision in its tokens is higher.
	compareSteps(t, peers, []authStep{{"root", &pb.AuthStatusRequest{}}, {"root", putRequest("a", "b")}, {"root", &pb.RangeRequest{Key: []byte("a")}}})
	for _, peer := range peers {
		peer.tokens = issuer.tokens
	}
	deadline := time.Now().Add(startTimeout)
	for {
		_, err := issuer.call("u", &pb.AuthStatusRequest{})
		if err != nil && outcome(nil, err) == "Unauthenticated: etcdserver: invalid auth token" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a token of 1 s is still valid: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	compareSteps(t, peers, []authStep{{"u", &pb.AuthStatusRequest{}}})
}

// TestSimpleTokens checks that requests may name simple tokens in two ways, that these expire, and that without
// tokens nobody can authenticate.
func TestSimpleTokens(t *testing.T) {
	for _, peer := range twoAuthPeers(t) {
		peer.limitUser()
		token := peer.tokens["u"]
		for _, field := range [][2]string{{"authorization", token}, {"authorization", "Bearer " + token}, {"token", "Bearer " + token}} {
			ctx := metadata.AppendToOutgoingContext(peer.context(""), field[0], field[1])
			if _, err := peer.api.kv.Range(ctx, &pb.RangeRequest{Key: []byte("r/1")}); err != nil {
				t.Errorf("%s: with %s: %v", peer.name, field[0], err)
			}
		}
	}
	for _, peer := range twoAuthPeers(t, "--auth-token-ttl", "1") {
		peer.limitUser()
		deadline := time.Now().Add(startTimeout)
		for {
			time.Sleep(2500 * time.Millisecond) // a token is valid for a second after its use; etcd looks every second
			if _, err := peer.call("u", &pb.AuthStatusRequest{}); err != nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: a token of 1 s is still valid", peer.name)
			}
		}
	}
	none := twoAuthPeers(t, "--auth-token", "")
	for _, peer := range none {
		for _, request := range []authStep{{"", userAdd("root", "pw")}, {"", grantRole("root", "root")}, {"", &pb.AuthEnableRequest{}}} {
			peer.must(request.user, request.request)
		}
	}
	compareSteps(t, none, []authStep{{"", &pb.AuthenticateRequest{Name: "root", Password: "pw"}}, {"x", &pb.AuthStatusRequest{}}, {"", &pb.AuthStatusRequest{}}})
}

// TestBadTokenFlags checks the errors of keys that cannot be used.
func TestBadTokenFlags(t *testing.T) {
	dir := t.TempDir()
	for _, method := range []string{"ES256", "RS256", "ES384"} {
		jwtKeys(t, dir, method)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct{ options, expected string }{
		{"sign-method=RS256", "needs priv-key or pub-key"},
		{"sign-method=HS256,pub-key=" + file("RS256.pub"), "needs priv-key"},
		{"sign-method=RS256,priv-key=" + file("none"), "cannot read"},
		{"sign-method=RS256,priv-key=" + file("ES256.key"), "is no PEM file with a key for RS256"},
		{"sign-method=ES256,priv-key=" + file("ES256.key") + ",pub-key=" + file("ES384.pub"), "pub-key does not belong to priv-key"},
		{"sign-method=ES256,pub-key=" + file("ES256.key"), "is no PEM file with a key for ES256"},
		{"sign-method=ES512,priv-key=" + file("ES256.key"), "ES512 is not supported"},
	} {
		output, err := memEtcd(t, "--wal-mode", "none", "--listen-client-urls", fmt.Sprintf("http://127.0.0.1:%d", freePort(t)), "--auth-token", "jwt,"+c.options)
		if err == nil || !strings.Contains(output, c.expected) || strings.Count(strings.TrimSpace(output), "\n") > 0 {
			t.Errorf("%s: error %v, output %s; want one line with %q", c.options, err, output, c.expected)
		}
	}
}

// TestCertificateUsersAsEtcd compares the calls of users whom certificates name with etcd's.
func TestCertificateUsersAsEtcd(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, filepath.Join(dir, "ca.crt"))
	names := []string{"server", "root", "apiserver", "kube-gateway", "lease-watcher", "nobody"}
	for _, name := range names {
		ca.issue(t, dir, name)
	}
	etcd := startEtcdTLS(t, dir)
	ours := startTLS(t, dir, "--client-cert-auth")
	addUsersWithCertificates(t, ours.address, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 2*startTimeout)
	defer cancel()
	viaGateway := metadata.AppendToOutgoingContext(ctx, "grpcgateway-accept", "application/json")
	var outcomes [2][]string
	for i, server := range []*server{etcd, ours} {
		for _, name := range names[2:] {
			client := dialTLS(t, server.address, clientTLS(t, ca, dir, name))
			outcomes[i] = append(outcomes[i], limitedCalls(ctx, client)...)
			outcomes[i] = append(outcomes[i], limitedCalls(viaGateway, client)[:3]...)
		}
	}
	for i := range outcomes[0] {
		if outcomes[0][i] != outcomes[1][i] {
			t.Errorf("mem_etcd: %s\n   etcd: %s", outcomes[1][i], outcomes[0][i])
		}
	}
}

// TestClientOfEtcdWithPassword checks that etcd's client authenticates again when its token is no longer valid.
func TestClientOfEtcdWithPassword(t *testing.T) {
	server := startMemEtcd(t, cheapHashes...)
	peer := newAuthPeer(t, "mem_etcd", server)
	peer.limitUser()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + server.address}, Username: "u", Password: "pw", DialTimeout: startTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for range 2 {
		// After the restart, the client has to connect and to authenticate again.
		for _, err := client.Get(ctx, "r/1"); err != nil; _, err = client.Get(ctx, "r/1") {
			if ctx.Err() != nil {
				t.Fatal(err)
			}
		}
		if _, err := client.Put(ctx, "w/1", "v"); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Get(ctx, "x"); err == nil {
			t.Error("a read that is not permitted succeeds")
		}
		server.kill()
		server.restart()
	}
}

// TestFloodOfPasswords checks that many clients that guess passwords do not keep others from reading and writing.
func TestFloodOfPasswords(t *testing.T) {
	server := startMemEtcd(t, "--wal-mode", "none") // with the default cost of hashes
	peer := newAuthPeer(t, "mem_etcd", server)
	peer.limitUser()
	ctx, cancel := context.WithCancel(context.Background())
	var guesses sync.WaitGroup
	for range 8 {
		hostile := pb.NewAuthClient(server.dial().conn)
		for range 20 {
			guesses.Go(func() {
				for ctx.Err() == nil {
					if _, err := hostile.Authenticate(ctx, &pb.AuthenticateRequest{Name: "u", Password: "guess"}); err == nil {
						t.Error("a wrong password is accepted")
					}
				}
			})
		}
	}
	for range 100 {
		peer.must("u", putRequest("w/1", "v"))
		peer.must("u", &pb.RangeRequest{Key: []byte("r/1")})
	}
	peer.login("root", "pw") // it has a turn
	cancel()
	guesses.Wait()
}

// addUsersWithCertificates adds the users of docs/mem_etcd.md, whom certificates name, and enables authentication.
func addUsersWithCertificates(t *testing.T, address, dir string) {
	t.Helper()
	for _, args := range []string{
		"role add node-leases",
		"role grant-permission node-leases --prefix=true readwrite " + leasePrefix,
		"user add kube-gateway --no-password",
		"user grant-role kube-gateway node-leases",
		"role add leases",
		"role grant-permission leases --prefix=true readwrite " + leasePrefix,
		"role grant-permission leases --prefix=true read " + allLeases,
		"user add lease-watcher --no-password",
		"user grant-role lease-watcher leases",
		"user add root --no-password",
		"user grant-role root root",
		"user add apiserver --no-password",
		"user grant-role apiserver root",
		"auth enable",
	} {
		command := exec.Command(binary(t, "etcdctl"), append([]string{
			"--endpoints", "https://" + address, "--cacert", filepath.Join(dir, "ca.crt"),
			"--cert", filepath.Join(dir, "root.crt"), "--key", filepath.Join(dir, "root.key"),
		}, strings.Fields(args)...)...)
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("etcdctl %s: %v: %s", args, err, output)
		}
	}
}
