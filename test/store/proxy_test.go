package store

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// proxy is a running etcd-proxy.
type proxy struct {
	*server
	// pages is the host and port of its metrics and health pages.
	pages string
}

// startProxy starts a proxy for the store at endpoint. It listens with https if the flags contain
// --cert-file.
func startProxy(t testing.TB, endpoint string, flags ...string) *proxy {
	t.Helper()
	address, pages := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	scheme := "http"
	if strings.Contains(strings.Join(flags, " "), "--cert-file") {
		scheme = "https"
	}
	s := &server{t: t, address: pages, args: append([]string{
		"--listen", scheme + "://" + address, "--endpoints", endpoint, "--listen-metrics-urls", "http://" + pages,
	}, flags...)}
	s.start(binary(t, "etcd-proxy"))
	s.address = address
	return &proxy{server: s, pages: pages}
}

// metric returns the value of a metric of the proxy.
func (p *proxy) metric(name string) int { return readMetric(p.t, p.pages, "etcd_proxy_"+name) }

// readMetric returns the value of an integer metric without labels.
func readMetric(t testing.TB, address, name string) int {
	t.Helper()
	response, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + name + ` (\d+)$`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("the metric %s is not in %s", name, text)
	}
	value, _ := strconv.Atoi(string(found[1]))
	return value
}

func etcdClient(t *testing.T, endpoint string, config *tls.Config) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, TLS: config, DialTimeout: startTimeout, Logger: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// TestProxyForwards uses etcd's client through the proxy, without TLS and with client
// certificates on both sides.
func TestProxyForwards(t *testing.T) {
	t.Run("http", func(t *testing.T) {
		p := startProxy(t, "http://"+startMemEtcd(t, "--wal-mode", "none").address)
		checkForwarding(t, etcdClient(t, "http://"+p.address, nil), insecure.NewCredentials(), p)
		response, err := http.Get("http://" + p.address + "/version")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if text, err := io.ReadAll(response.Body); err != nil || !bytes.Contains(text, []byte(`"etcdserver"`)) {
			t.Errorf("the store's /version through the proxy: %s, error %v", text, err)
		}
	})
	t.Run("https", func(t *testing.T) {
		dir := t.TempDir()
		ca := newAuthority(t, filepath.Join(dir, "ca.crt"))
		ca.issue(t, dir, "server")
		ca.issue(t, dir, "client")
		p := startSecureProxy(t, dir)
		config := clientTLS(t, ca, dir, "client")
		checkForwarding(t, etcdClient(t, "https://"+p.address, config), credentials.NewTLS(config), p)
		if err := putOver(t, p.address, credentials.NewTLS(&tls.Config{RootCAs: ca.pool})); err == nil {
			t.Error("a client without a certificate was accepted")
		}
	})
}

// startSecureProxy starts a proxy with TLS and client certificates on both sides, with the files in dir.
func startSecureProxy(t *testing.T, dir string, flags ...string) *proxy {
	t.Helper()
	file := func(name string) string { return filepath.Join(dir, name) }
	return startProxy(t, "https://"+startTLS(t, dir, "--client-cert-auth").address, append([]string{
		"--cert-file", file("server.crt"), "--key-file", file("server.key"), "--trusted-ca-file", file("ca.crt"), "--client-cert-auth",
		"--cacert", file("ca.crt"), "--cert", file("client.crt"), "--key", file("client.key"),
	}, flags...)...)
}

// TestProxyReloadsItsCertificates replaces the CA and all certificates. The proxy must connect to the store with its new
// client certificate, whose CA is the only one that the store accepts, and trust the new CA of the store.
func TestProxyReloadsItsCertificates(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, filepath.Join(dir, "ca.crt"))
	ca.issue(t, dir, "server")
	ca.issue(t, dir, "client")
	p := startSecureProxy(t, dir)
	before := clientTLS(t, ca, dir, "client")
	if err := putOver(t, p.address, credentials.NewTLS(before)); err != nil {
		t.Fatal(err)
	}
	other := newAuthority(t, filepath.Join(dir, "ca.crt"))
	other.issue(t, dir, "server")
	other.issue(t, dir, "client")
	if err := putOver(t, p.address, credentials.NewTLS(clientTLS(t, other, dir, "client"))); err != nil {
		t.Errorf("a client after the change: %v", err)
	}
	if err := putOver(t, p.address, credentials.NewTLS(before)); err == nil {
		t.Error("a client with a certificate of the previous CA was accepted")
	}
}

// TestProxyServesNamedClients checks that only clients with one of the common names reach the store: to the store, they
// are all the proxy.
func TestProxyServesNamedClients(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, filepath.Join(dir, "ca.crt"))
	for _, name := range []string{"server", "client", "gateway"} {
		ca.issue(t, dir, name)
	}
	p := startSecureProxy(t, dir, "--client-cert-allowed-cn", "client,operator")
	if err := putOver(t, p.address, credentials.NewTLS(clientTLS(t, ca, dir, "client"))); err != nil {
		t.Error(err)
	}
	if err := putOver(t, p.address, credentials.NewTLS(clientTLS(t, ca, dir, "gateway"))); err == nil {
		t.Error("a client with another name was served")
	}
	waitFor(t, "the log names the client", func() bool { return strings.Contains(p.log.String(), "the common name gateway is not in") })
}

// checkForwarding sends requests of all kinds through the proxy and checks the responses.
func checkForwarding(t *testing.T, client *clientv3.Client, transport credentials.TransportCredentials, p *proxy) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	watch := client.Watch(ctx, "/a", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	if created := <-watch; !created.Created {
		t.Fatalf("the watch was not created: %v", created.Err())
	}
	must := func(request string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", request, err)
		}
	}
	lease, err := client.Grant(ctx, 60)
	must("grant", err)
	value := strings.Repeat("x", 1<<20)
	_, err = client.Put(ctx, "/a/1", value, clientv3.WithLease(lease.ID))
	must("put", err)
	alive, err := client.KeepAliveOnce(ctx, lease.ID)
	must("keep alive", err)
	if alive.TTL != 60 {
		t.Errorf("the keep-alive returned a TTL of %d s; want 60 s", alive.TTL)
	}
	got, err := client.Get(ctx, "/a/1")
	must("get", err)
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != value {
		t.Errorf("the get returned %d pairs, or another value than was put", len(got.Kvs))
	}
	txn, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision("/a/1"), "=", got.Kvs[0].ModRevision)).
		Then(clientv3.OpDelete("/a/1")).Else(clientv3.OpGet("/a/1")).Commit()
	must("txn", err)
	if !txn.Succeeded {
		t.Error("the comparison of the transaction was false")
	}
	events := 0
	for events < 2 {
		select {
		case response := <-watch:
			events += len(response.Events)
		case <-ctx.Done():
			t.Fatalf("the watch received %d events; want 2", events)
		}
	}
	snapshot, err := client.Snapshot(ctx)
	must("snapshot", err)
	if size, err := io.Copy(io.Discard, snapshot); err != nil || size == 0 {
		t.Errorf("the snapshot has %d bytes, error %v", size, err)
	}
	conn, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(transport))
	must("connect", err)
	defer conn.Close()
	err = conn.Invoke(ctx, "/some.Service/Unknown", &raw{}, &raw{}, grpc.ForceCodec(rawCodec{}))
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("an unknown method returned the error %v; want Unimplemented", err)
	}
}

// raw is an encoded message, which rawCodec neither encodes nor decodes.
type raw struct{ bytes []byte }

type rawCodec struct{}

func (rawCodec) Name() string                        { return "proto" }
func (rawCodec) Marshal(message any) ([]byte, error) { return message.(*raw).bytes, nil }
func (rawCodec) Unmarshal(data []byte, message any) error {
	message.(*raw).bytes = bytes.Clone(data)
	return nil
}

// TestProxyChangesNothing sends random bytes through the proxy in both directions: each side must
// receive exactly the bytes that the other side sent.
func TestProxyChangesNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan net.Conn, 8)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	p := startProxy(t, "http://"+listener.Addr().String(), "--record", filepath.Join(t.TempDir(), "trace.jsonl"))
	client, err := net.Dial("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	random := rand.New(rand.NewPCG(seed, 0))
	up, down := make([]byte, 3<<20), make([]byte, 3<<20)
	for _, direction := range [][]byte{up, down} {
		for i := range direction {
			direction[i] = byte(random.Uint32())
		}
	}
	preface := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if _, err := client.Write(preface); err != nil {
		t.Fatal(err)
	}
	server := connectionWith(t, accepted, preface)
	defer server.Close()
	for _, conn := range []net.Conn{client, server} {
		if err := conn.SetDeadline(time.Now().Add(startTimeout)); err != nil {
			t.Fatal(err)
		}
	}
	var wait sync.WaitGroup
	check := func(direction string, from, to net.Conn, sent []byte) {
		wait.Go(func() {
			if _, err := from.Write(sent); err != nil {
				t.Errorf("%s: %v", direction, err)
			}
		})
		wait.Go(func() {
			received := make([]byte, len(sent))
			if _, err := io.ReadFull(to, received); err != nil || !bytes.Equal(received, sent) {
				t.Errorf("%s: the received bytes differ from the sent bytes (error %v)", direction, err)
			}
		})
	}
	check("from client to server", client, server, up)
	check("from server to client", server, client, down)
	wait.Wait()
}

// connectionWith returns the connection that starts with the given bytes. On other connections the
// proxy only checks whether the server is reachable.
func connectionWith(t *testing.T, accepted <-chan net.Conn, start []byte) net.Conn {
	t.Helper()
	for {
		select {
		case conn := <-accepted:
			received := make([]byte, len(start))
			if _, err := io.ReadFull(conn, received); err == nil && bytes.Equal(received, start) {
				return conn
			}
			conn.Close()
		case <-time.After(startTimeout):
			t.Fatal("no connection started with the expected bytes")
		}
	}
}

// TestProxyAnswersAsTheStore sends the same requests to a store directly and through the
// proxy, and compares the bytes of the responses.
func TestProxyAnswersAsTheStore(t *testing.T) {
	store := startMemEtcd(t, "--wal-mode", "none")
	p := startProxy(t, "http://"+store.address, "--record", filepath.Join(t.TempDir(), "trace.jsonl.gz"))
	direct, through := connect(t, store), connect(t, p.server)
	writer := etcdClient(t, "http://"+p.address, nil)
	for i := range 50 {
		if _, err := writer.Put(t.Context(), fmt.Sprintf("/key/%d", i), strings.Repeat("v", i*100)); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		// A range request with random fields, some of them invalid.
		request := []byte{0x0a, 5, '/', 'k', 'e', 'y', '/', 0x12, 5, '/', 'k', 'e', 'y', '0', 0x18, byte(random.IntN(60))}
		for range random.IntN(4) {
			request = append(request, byte(4+random.IntN(10))<<3, byte(random.IntN(4)))
		}
		var responses [2]raw
		var failures [2]error
		for i, conn := range []*grpc.ClientConn{direct, through} {
			failures[i] = conn.Invoke(t.Context(), "/etcdserverpb.KV/Range", &raw{request}, &responses[i], grpc.ForceCodec(rawCodec{}))
		}
		if !bytes.Equal(responses[0].bytes, responses[1].bytes) || fmt.Sprint(failures[0]) != fmt.Sprint(failures[1]) {
			t.Fatalf("request %x: the direct response has %d bytes and the error %v, the response through the proxy %d bytes and the error %v",
				request, len(responses[0].bytes), failures[0], len(responses[1].bytes), failures[1])
		}
	}
}

// TestProxyPassesCancellation checks that the store removes a watch that a client cancels
// through the proxy.
func TestProxyPassesCancellation(t *testing.T) {
	store := startMemEtcd(t, "--wal-mode", "none")
	p := startProxy(t, "http://"+store.address)
	api := p.dial()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := api.watch.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("/a")}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	watchers := func() int { return readMetric(t, store.address, "etcd_debugging_mvcc_watcher_total") }
	if watchers() != 1 || p.metric("calls_in_flight") != 1 {
		t.Fatalf("the store has %d watchers and the proxy %d calls in progress; want 1 each", watchers(), p.metric("calls_in_flight"))
	}
	cancel()
	waitFor(t, "the store to remove the watch", func() bool { return watchers() == 0 })
	waitFor(t, "the call to end", func() bool { return p.metric("calls_in_flight") == 0 })
}

// TestProxyOutlivesTheStore kills the store. Calls through the proxy must fail with UNAVAILABLE and a
// one-line message, and succeed again after the store was restarted. A proxy with a second endpoint must
// use it while the first one is down.
func TestProxyOutlivesTheStore(t *testing.T) {
	store := startMemEtcd(t)
	p := startProxy(t, "http://"+store.address)
	put := func(p *proxy) error {
		_, err := p.dial().kv.Put(t.Context(), &pb.PutRequest{Key: []byte("/a"), Value: []byte("1")})
		return err
	}
	if err := put(p); err != nil {
		t.Fatal(err)
	}
	store.kill()
	err := put(p)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no endpoint can be reached") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("a put while the store is down returned the error %v; want UNAVAILABLE with one line", err)
	}
	other := startMemEtcd(t, "--wal-mode", "none")
	both := startProxy(t, "http://"+store.address+",http://"+other.address)
	if err := put(both); err != nil {
		t.Fatalf("a put through a proxy with a second endpoint: %v", err)
	}
	store.restart()
	waitFor(t, "calls to succeed again", func() bool { return put(p) == nil })
	got, err := p.dial().kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("/a")})
	if err != nil || got.Count != 1 {
		t.Errorf("reading the key after the restart: %v, error %v", got, err)
	}
}

// TestProxyShutsDownWithIdleConnection checks that the proxy shuts down within 2 s although an idle
// connection is open. On a busy machine it may need longer now and then.
func TestProxyShutsDownWithIdleConnection(t *testing.T) {
	const proxies, limit = 5, 2 * time.Second
	store := startMemEtcd(t, "--wal-mode", "none")
	for range proxies {
		p := startProxy(t, "http://"+store.address)
		if _, err := p.dial().kv.Put(t.Context(), &pb.PutRequest{Key: []byte("/a"), Value: []byte("1")}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := p.stop(); err != nil {
			t.Fatalf("the proxy exited with the error %v", err)
		}
		if time.Since(start) <= limit {
			return
		}
	}
	t.Errorf("each of %d proxies needed more than %v to exit", proxies, limit)
}

// TestProxyDoesNotWaitForItsRecorder records a trace to a pipe that nobody reads. Calls must succeed, and
// the proxy must count and log the missing records.
func TestProxyDoesNotWaitForItsRecorder(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	store := startMemEtcd(t, "--wal-mode", "none")
	p := startProxy(t, "http://"+store.address, "--record", pipe, "--record-queue", "100")
	client := p.dial()
	const puts = 3000
	var wait sync.WaitGroup
	for range 10 {
		wait.Go(func() {
			for range puts / 10 {
				if _, err := client.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("/a"), Value: []byte("1")}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wait.Wait()
	// The pipe's buffer of 64 KiB holds a few hundred records, and the queue 100.
	reader, err := syscall.Open(pipe, syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(reader)
	buffer := make([]byte, 1<<16)
	waitFor(t, "all records to be written or counted as missing", func() bool {
		_, _ = syscall.Read(reader, buffer)
		return p.metric("records_written_total")+p.metric("records_missing_total") == puts
	})
	if p.metric("records_missing_total") < puts/3 {
		t.Errorf("%d records are missing; want at least %d", p.metric("records_missing_total"), puts/3)
	}
	if !strings.Contains(p.log.String(), "the recorder cannot keep up") {
		t.Errorf("the log does not report missing records: %s", p.log)
	}
}

// report runs `etcd-proxy report` and returns its result.
func report(t *testing.T, files ...string) (summary proxyReport) {
	t.Helper()
	summary, err := tryReport(t, files...)
	if err != nil {
		t.Fatalf("etcd-proxy report: %v", err)
	}
	return summary
}

// tryReport returns an error if there is nothing to report, such as while the file is created.
func tryReport(t *testing.T, files ...string) (summary proxyReport, err error) {
	t.Helper()
	output, err := exec.Command(binary(t, "etcd-proxy"), append([]string{"report", "-o", "json"}, files...)...).Output()
	if err == nil {
		fromJSON(t, string(output), &summary)
	}
	return summary, err
}

// proxyReport is the part of the JSON of `etcd-proxy report` that the tests check.
type proxyReport struct {
	Totals  struct{ Calls, TruncatedFiles, MissingRecords int }
	Classes []struct {
		Class string
		Count int
	}
	Watches struct{ Created, Events, DistinctEvents int }
	Leases  struct{ Granted, AttachedPuts int }
}

// TestProxyKilledLeavesATrace kills the proxy and reads its trace.
func TestProxyKilledLeavesATrace(t *testing.T) {
	for _, name := range []string{"trace.jsonl", "trace.jsonl.gz", "trace.jsonl.zst"} {
		file := filepath.Join(t.TempDir(), name)
		p := startProxy(t, "http://"+startMemEtcd(t, "--wal-mode", "none").address, "--record", file)
		api := p.dial()
		for range 500 {
			if _, err := api.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("/a"), Value: []byte("1")}); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, "the records to be written", func() bool { return p.metric("records_written_total") == 500 })
		waitFor(t, "the records to be in the file", func() bool {
			summary, err := tryReport(t, file)
			return err == nil && summary.Totals.Calls == 500
		})
		p.kill()
		if totals := report(t, file).Totals; totals.Calls != 500 || totals.MissingRecords != 0 {
			t.Errorf("%s has %+v; want 500 calls and no missing records", name, totals)
		}
	}
}

// TestProxyTraceIsReplayed records Kubernetes-like requests, checks the report of the trace, and replays
// the trace to an empty store. Afterwards both stores must contain the same keys and values.
func TestProxyTraceIsReplayed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl.zst")
	first := startMemEtcd(t, "--wal-mode", "none")
	// This put makes the recorded revisions differ from the replayed ones.
	if _, err := first.dial().kv.Put(t.Context(), &pb.PutRequest{Key: []byte("/before"), Value: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	p := startProxy(t, "http://"+first.address, "--record", file, "--values", "full")
	created, updated, deleted := sendKubernetesRequests(t, etcdClient(t, "http://"+p.address, nil))
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}

	summary := report(t, file)
	counts := map[string]int{}
	for _, row := range summary.Classes {
		counts[row.Class] = row.Count
	}
	if counts["create"] != created || counts["update"] != updated || counts["delete"] != deleted || counts["list"] != 1 {
		t.Errorf("the report has the classes %v; want %d creates, %d updates, %d deletes and 1 list", counts, created, updated, deleted)
	}
	if w := summary.Watches; w.Created != 2 || w.Events != 2*w.DistinctEvents || w.DistinctEvents == 0 {
		t.Errorf("the report has the watches %+v; want 2 that received the same events", w)
	}
	if summary.Leases.Granted != 1 || summary.Leases.AttachedPuts != 1 {
		t.Errorf("the report has the leases %+v; want 1 grant and 1 put with a lease", summary.Leases)
	}

	second := startMemEtcd(t, "--wal-mode", "none")
	output, err := exec.Command(binary(t, "etcd-bench"), "replay", file, "--endpoints", "http://"+second.address, "--speed", "max", "--output", "json").Output()
	if err != nil {
		t.Fatalf("replay: %v\n%s", err, output)
	}
	var replay struct {
		Calls, Untranslated int
		Methods             []struct {
			Method      string
			Differences map[string]int
		}
	}
	if err := json.Unmarshal(output, &replay); err != nil {
		t.Fatal(err)
	}
	for _, row := range replay.Methods {
		if len(row.Differences) > 0 {
			t.Errorf("replayed responses of %s differ from the trace: %v", row.Method, row.Differences)
		}
	}
	if replay.Calls < created+updated+deleted || replay.Untranslated != 0 {
		t.Errorf("the replay has fewer than %d calls, or untranslated revisions: %s", created+updated+deleted, output)
	}
	if got, want := kubernetesKeys(t, second), kubernetesKeys(t, first); got != want {
		t.Errorf("after the replay the store contains\n%s\nwant\n%s", got, want)
	}
}

// kubernetesKeys returns the keys of Kubernetes with their values and versions as text.
func kubernetesKeys(t *testing.T, s *server) string {
	t.Helper()
	all, err := etcdClient(t, "http://"+s.address, nil).Get(t.Context(), "/registry/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, kv := range all.Kvs {
		fmt.Fprintf(&text, "%s=%s version %d leased %t\n", kv.Key, kv.Value, kv.Version, kv.Lease != 0)
	}
	return text.String()
}

// sendKubernetesRequests creates, updates and deletes pods, some with a false comparison, and returns
// the numbers of the requests.
func sendKubernetesRequests(t *testing.T, client *clientv3.Client) (created, updated, deleted int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	var watches []clientv3.WatchChan
	for range 2 {
		watch := client.Watch(ctx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		if response := <-watch; response.Err() != nil {
			t.Fatal(response.Err())
		}
		watches = append(watches, watch)
	}
	lease, err := client.Grant(ctx, 3600)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(key string, revision int64, then clientv3.Op) int64 {
		t.Helper()
		response, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
			Then(then).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			t.Fatal(err)
		}
		return response.Header.Revision
	}
	changes := 0
	for i := range 20 {
		key := fmt.Sprintf("/registry/pods/default/pod-%d", i)
		revision := commit(key, 0, clientv3.OpPut(key, "new"))
		second := commit(key, revision, clientv3.OpPut(key, fmt.Sprintf("value %d", i)))
		commit(key, revision, clientv3.OpPut(key, "stale")) // the comparison is false
		created, updated, changes = created+1, updated+2, changes+2
		if i%3 == 0 {
			commit(key, second, clientv3.OpDelete(key))
			deleted, changes = deleted+1, changes+1
		}
	}
	key := "/registry/events/default/e"
	commit(key, 0, clientv3.OpPut(key, "event", clientv3.WithLease(lease.ID)))
	if _, err := client.Get(ctx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithLimit(500)); err != nil {
		t.Fatal(err)
	}
	for _, watch := range watches {
		for events := 0; events < changes; {
			response, open := <-watch
			if !open || response.Err() != nil {
				t.Fatalf("a watch ended after %d of %d events: %v", events, changes, response.Err())
			}
			events += len(response.Events)
		}
	}
	return created + 1, updated, deleted
}
