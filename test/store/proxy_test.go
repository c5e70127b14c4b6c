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
	// pages is host:port of its metrics and health pages.
	pages string
}

// startProxy starts a proxy in front of the store at endpoint. Flags may set the listener.
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
		t.Fatalf("no %s in %s", name, text)
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
		throughTheProxy(t, etcdClient(t, "http://"+p.address, nil), insecure.NewCredentials(), p)
		response, err := http.Get("http://" + p.address + "/version")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if text, err := io.ReadAll(response.Body); err != nil || !bytes.Contains(text, []byte(`"etcdserver"`)) {
			t.Errorf("the store's page: %s %v", text, err)
		}
	})
	t.Run("https", func(t *testing.T) {
		dir := t.TempDir()
		ca := newAuthority(t, filepath.Join(dir, "ca.crt"))
		ca.issue(t, dir, "server")
		ca.issue(t, dir, "client")
		file := func(name string) string { return filepath.Join(dir, name) }
		p := startProxy(t, "https://"+startTLS(t, dir, "--client-cert-auth").address,
			"--cert-file", file("server.crt"), "--key-file", file("server.key"), "--trusted-ca-file", file("ca.crt"), "--client-cert-auth",
			"--cacert", file("ca.crt"), "--cert", file("client.crt"), "--key", file("client.key"))
		config := clientTLS(t, ca, dir, "client")
		throughTheProxy(t, etcdClient(t, "https://"+p.address, config), credentials.NewTLS(config), p)
		if err := putOver(t, p.address, credentials.NewTLS(&tls.Config{RootCAs: ca.pool})); err == nil {
			t.Error("a client without a certificate was accepted")
		}
	})
}

func throughTheProxy(t *testing.T, client *clientv3.Client, transport credentials.TransportCredentials, p *proxy) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	watch := client.Watch(ctx, "/a", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	if created := <-watch; !created.Created {
		t.Fatalf("no watch: %v", created.Err())
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
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
		t.Errorf("kept alive for %d s", alive.TTL)
	}
	got, err := client.Get(ctx, "/a/1")
	must("get", err)
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != value {
		t.Errorf("got %d pairs", len(got.Kvs))
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
		case answer := <-watch:
			events += len(answer.Events)
		case <-ctx.Done():
			t.Fatalf("%d events", events)
		}
	}
	snapshot, err := client.Snapshot(ctx)
	must("snapshot", err)
	if size, err := io.Copy(io.Discard, snapshot); err != nil || size == 0 {
		t.Errorf("a snapshot of %d bytes: %v", size, err)
	}
	conn, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(transport))
	must("connect", err)
	defer conn.Close()
	err = conn.Invoke(ctx, "/some.Service/Unknown", &raw{}, &raw{}, grpc.ForceCodec(rawCodec{}))
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("unknown method: %v", err)
	}
}

// raw is an encoded message.
type raw struct{ bytes []byte }

type rawCodec struct{}

func (rawCodec) Name() string                        { return "proto" }
func (rawCodec) Marshal(message any) ([]byte, error) { return message.(*raw).bytes, nil }
func (rawCodec) Unmarshal(data []byte, message any) error {
	message.(*raw).bytes = bytes.Clone(data)
	return nil
}

// TestProxyChangesNothing runs the proxy in front of a server that sends arbitrary bytes:
// each side receives exactly the bytes that the other side sent.
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
	for _, half := range [][]byte{up, down} {
		for i := range half {
			half[i] = byte(random.Uint32())
		}
	}
	up = append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), up...)
	preface := up[:24]
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
	check := func(what string, from, to net.Conn, sent, expected []byte) {
		wait.Go(func() {
			if _, err := from.Write(sent); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
		wait.Go(func() {
			got := make([]byte, len(expected))
			if _, err := io.ReadFull(to, got); err != nil || !bytes.Equal(got, expected) {
				t.Errorf("%s: other bytes come out than went in (%v)", what, err)
			}
		})
	}
	check("from the client", client, server, up[24:], up[24:])
	check("from the server", server, client, down, down)
	wait.Wait()
}

// connectionWith returns the connection that starts with the given bytes. On other
// connections the proxy only checks that the server is reachable.
func connectionWith(t *testing.T, accepted <-chan net.Conn, words []byte) net.Conn {
	t.Helper()
	for {
		select {
		case conn := <-accepted:
			heard := make([]byte, len(words))
			if _, err := io.ReadFull(conn, heard); err == nil && bytes.Equal(heard, words) {
				return conn
			}
			conn.Close()
		case <-time.After(startTimeout):
			t.Fatal("no connection was accepted")
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
		var answers [2]raw
		var failures [2]error
		for i, conn := range []*grpc.ClientConn{direct, through} {
			failures[i] = conn.Invoke(t.Context(), "/etcdserverpb.KV/Range", &raw{request}, &answers[i], grpc.ForceCodec(rawCodec{}))
		}
		if !bytes.Equal(answers[0].bytes, answers[1].bytes) || fmt.Sprint(failures[0]) != fmt.Sprint(failures[1]) {
			t.Fatalf("request %x: %v and %v, %d and %d bytes", request, failures[0], failures[1], len(answers[0].bytes), len(answers[1].bytes))
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
		t.Fatalf("%d watchers, %d calls", watchers(), p.metric("calls_in_flight"))
	}
	cancel()
	waitFor(t, "the store to remove the watch", func() bool { return watchers() == 0 })
	waitFor(t, "the call to end", func() bool { return p.metric("calls_in_flight") == 0 })
}

// TestProxyOutlivesTheStore kills the store: calls fail with UNAVAILABLE and a one-line
// message, and succeed again after a restart. While the first endpoint is down, the proxy
// uses the second one.
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
		t.Fatalf("without a store: %v", err)
	}
	other := startMemEtcd(t, "--wal-mode", "none")
	both := startProxy(t, "http://"+store.address+",http://"+other.address)
	if err := put(both); err != nil {
		t.Fatalf("with a second endpoint: %v", err)
	}
	store.restart()
	waitFor(t, "calls to succeed again", func() bool { return put(p) == nil })
	got, err := p.dial().kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("/a")})
	if err != nil || got.Count != 1 {
		t.Errorf("%v %v", got, err)
	}
}

// TestProxyEndsGracefully checks that a shutdown lets a call finish and closes idle
// connections.
func TestProxyEndsGracefully(t *testing.T) {
	store := startMemEtcd(t, "--wal-mode", "none")
	p := startProxy(t, "http://"+store.address)
	if _, err := p.dial().kv.Put(t.Context(), &pb.PutRequest{Key: []byte("/a"), Value: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := p.stop(); err != nil || time.Since(began) > 2*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestProxyDoesNotWaitForItsRecorder writes the trace to a pipe without a reader: traffic
// continues, and dropped records are counted and reported.
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
	// A pipe holds 64 KiB, which is a few hundred records, and the queue a hundred.
	listening, err := syscall.Open(pipe, syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(listening)
	buffer := make([]byte, 1<<16)
	waitFor(t, "all records to be written or counted as missing", func() bool {
		_, _ = syscall.Read(listening, buffer)
		return p.metric("records_written_total")+p.metric("records_missing_total") == puts
	})
	if p.metric("records_missing_total") < puts/3 {
		t.Errorf("only %d records are missing", p.metric("records_missing_total"))
	}
	if !strings.Contains(p.log.String(), "the recorder cannot keep up") {
		t.Errorf("the log does not report missing records: %s", p.log)
	}
}

// report runs `etcd-proxy report`.
func report(t *testing.T, files ...string) (summary proxyReport) {
	t.Helper()
	output, err := exec.Command(binary(t, "etcd-proxy"), append([]string{"report", "-o", "json"}, files...)...).Output()
	if err != nil {
		t.Fatalf("report: %v", err)
	}
	fromJSON(t, string(output), &summary)
	return summary
}

type proxyReport struct {
	Recording struct{ Calls, CutFiles, MissingLines int }
	Classes   []struct {
		Class string
		Count int
	}
	Watches struct{ Created, Events, DistinctEvents int }
	Leases  struct{ Granted, AttachedPuts int }
}

// TestProxyKilledLeavesARecording kills the proxy and reads its trace.
func TestProxyKilledLeavesARecording(t *testing.T) {
	for _, name := range []string{"trace.jsonl", "trace.jsonl.gz", "trace.jsonl.zst"} {
		file := filepath.Join(t.TempDir(), name)
		p := startProxy(t, "http://"+startMemEtcd(t, "--wal-mode", "none").address, "--record", file)
		api := p.dial()
		for range 500 {
			if _, err := api.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("/a"), Value: []byte("1")}); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, "the records", func() bool { return p.metric("records_written_total") == 500 })
		time.Sleep(time.Second) // longer than the flush interval of the trace
		p.kill()
		if r := report(t, file).Recording; r.Calls != 500 || r.MissingLines != 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestProxyRecordingIsReplayed records Kubernetes-like traffic, reports it, and replays it
// to an empty store, which must end with the same keys and values.
func TestProxyRecordingIsReplayed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl.zst")
	first := startMemEtcd(t, "--wal-mode", "none")
	// Makes the recorded revisions differ from the replayed ones.
	if _, err := first.dial().kv.Put(t.Context(), &pb.PutRequest{Key: []byte("/before"), Value: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	p := startProxy(t, "http://"+first.address, "--record", file, "--values", "full")
	created, updated, deleted := likeKubernetes(t, etcdClient(t, "http://"+p.address, nil))
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}

	summary := report(t, file)
	counts := map[string]int{}
	for _, row := range summary.Classes {
		counts[row.Class] = row.Count
	}
	if counts["create"] != created || counts["update"] != updated || counts["delete"] != deleted || counts["list"] != 1 {
		t.Errorf("classes %v, expected %d, %d, %d", counts, created, updated, deleted)
	}
	if w := summary.Watches; w.Created != 2 || w.Events != 2*w.DistinctEvents || w.DistinctEvents == 0 {
		t.Errorf("watches %+v", w)
	}
	if summary.Leases.Granted != 1 || summary.Leases.AttachedPuts != 1 {
		t.Errorf("leases %+v", summary.Leases)
	}

	second := startMemEtcd(t, "--wal-mode", "none")
	output, err := exec.Command(binary(t, "etcd-bench"), "replay", file, "--endpoints", "http://"+second.address, "--speed", "max", "--output", "json").Output()
	if err != nil {
		t.Fatalf("replay: %v\n%s", err, output)
	}
	var replay struct {
		Calls, UnknownRevisions int
		Methods                 []struct {
			Method      string
			Differences map[string]int
		}
	}
	if err := json.Unmarshal(output, &replay); err != nil {
		t.Fatal(err)
	}
	for _, row := range replay.Methods {
		if len(row.Differences) > 0 {
			t.Errorf("%s differs: %v", row.Method, row.Differences)
		}
	}
	if replay.Calls < created+updated+deleted || replay.UnknownRevisions != 0 {
		t.Errorf("%s", output)
	}
	if got, want := contents(t, second), contents(t, first); got != want {
		t.Errorf("the stores differ:\n%s\n%s", got, want)
	}
}

// contents returns all keys of Kubernetes with their values.
func contents(t *testing.T, s *server) string {
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

// likeKubernetes creates, updates and deletes pods, some with failing compares, and returns
// the number of attempts of each.
func likeKubernetes(t *testing.T, client *clientv3.Client) (created, updated, deleted int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	var watches []clientv3.WatchChan
	for range 2 {
		watch := client.Watch(ctx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		if answer := <-watch; answer.Err() != nil {
			t.Fatal(answer.Err())
		}
		watches = append(watches, watch)
	}
	lease, err := client.Grant(ctx, 3600)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(key string, revision int64, then clientv3.Op) int64 {
		t.Helper()
		answer, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
			Then(then).Else(clientv3.OpGet(key)).Commit()
		if err != nil {
			t.Fatal(err)
		}
		return answer.Header.Revision
	}
	changes := 0
	for i := range 20 {
		key := fmt.Sprintf("/registry/pods/default/pod-%d", i)
		revision := commit(key, 0, clientv3.OpPut(key, "new"))
		second := commit(key, revision, clientv3.OpPut(key, fmt.Sprintf("value %d", i)))
		commit(key, revision, clientv3.OpPut(key, "stale")) // the compare fails
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
			answer, open := <-watch
			if !open || answer.Err() != nil {
				t.Fatalf("%d of %d events: %v", events, changes, answer.Err())
			}
			events += len(answer.Events)
		}
	}
	return created + 1, updated, deleted
}
