package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/client/v3/leasing"
	"go.etcd.io/etcd/client/v3/mirror"
	"go.etcd.io/etcd/client/v3/namespace"
	"go.etcd.io/etcd/client/v3/ordering"
	"go.uber.org/zap"
)

// client returns a client of etcd's client library for the server.
func (s *server) client() *clientv3.Client {
	s.t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{s.address}, DialTimeout: startTimeout, Logger: zap.NewNop(),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// withTimeout returns the context of the test with a timeout.
func withTimeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	t.Cleanup(cancel)
	return ctx
}

// TestMutexAndElection checks locks and elections of etcd's concurrency package, and that a candidate
// is elected after the lease of the leader has expired.
func TestMutexAndElection(t *testing.T) {
	ctx := withTimeout(t)
	server := startMemEtcd(t, "--wal-mode", "none")
	var holders, acquisitions int
	var group sync.WaitGroup
	for range 8 {
		session, err := concurrency.NewSession(server.client(), concurrency.WithTTL(10))
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			mutex := concurrency.NewMutex(session, "/lock")
			for range 5 {
				if err := mutex.Lock(ctx); err != nil {
					t.Error(err)
					return
				}
				holders++
				if holders != 1 {
					t.Errorf("%d clients hold the lock", holders)
				}
				acquisitions++
				holders--
				if err := mutex.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if acquisitions != 40 {
		t.Fatalf("the lock was acquired %d times; want 40", acquisitions)
	}
	electAfterExpiry(ctx, t, server)
}

// electAfterExpiry elects a leader whose lease then expires, and a second leader.
func electAfterExpiry(ctx context.Context, t *testing.T, server *server) {
	t.Helper()
	expiring, err := concurrency.NewSession(server.client(), concurrency.WithTTL(2))
	if err != nil {
		t.Fatal(err)
	}
	if err := concurrency.NewElection(expiring, "/election").Campaign(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	session, err := concurrency.NewSession(server.client())
	if err != nil {
		t.Fatal(err)
	}
	election := concurrency.NewElection(session, "/election")
	observed := election.Observe(ctx)
	if leader := <-observed; string(leader.Kvs[0].Value) != "first" {
		t.Fatalf("the observed leader is %v; want first", leader)
	}
	expiring.Orphan() // stops the renewals of its lease
	if err := election.Campaign(ctx, "second"); err != nil {
		t.Fatal(err)
	}
	if leader := <-observed; string(leader.Kvs[0].Value) != "second" {
		t.Fatalf("the observed leader is %v; want second", leader)
	}
	if err := election.Proclaim(ctx, "still"); err != nil {
		t.Fatal(err)
	}
	if err := election.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := election.Leader(ctx); !errors.Is(err, concurrency.ErrElectionNoLeader) {
		t.Fatalf("after the leader resigned, Leader returned the error %v; want ErrElectionNoLeader", err)
	}
}

// TestSTM checks software transactional memory: concurrent transfers between accounts do not change
// the sum of the accounts.
func TestSTM(t *testing.T) {
	ctx := withTimeout(t)
	client := startMemEtcd(t, "--wal-mode", "none").client()
	for i := range 5 {
		if _, err := client.Put(ctx, fmt.Sprint("account/", i), "100"); err != nil {
			t.Fatal(err)
		}
	}
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for n := range 20 {
				from, to := fmt.Sprint("account/", (worker+n)%5), fmt.Sprint("account/", (worker*n+1)%5)
				transfer := func(stm concurrency.STM) error {
					a, _ := strconv.Atoi(stm.Get(from))
					stm.Put(from, strconv.Itoa(a-1))
					b, _ := strconv.Atoi(stm.Get(to))
					stm.Put(to, strconv.Itoa(b+1))
					return nil
				}
				level := []concurrency.Isolation{concurrency.Serializable, concurrency.SerializableSnapshot}[n%2]
				if _, err := concurrency.NewSTM(client, transfer, concurrency.WithIsolation(level), concurrency.WithAbortContext(ctx)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	accounts, err := client.Get(ctx, "account/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, kv := range accounts.Kvs {
		amount, _ := strconv.Atoi(string(kv.Value))
		sum += amount
	}
	if sum != 500 {
		t.Fatalf("the sum of the accounts is %d; want 500", sum)
	}
}

// TestLeasingNamespaceMirrorOrdering checks the packages leasing, namespace, mirror and ordering of
// the client library.
func TestLeasingNamespaceMirrorOrdering(t *testing.T) {
	ctx := withTimeout(t)
	server := startMemEtcd(t, "--wal-mode", "none")
	client := server.client()

	cached, closeCached, err := leasing.NewKV(client, "leasing/")
	if err != nil {
		t.Fatal(err)
	}
	defer closeCached()
	other, closeOther, err := leasing.NewKV(server.client(), "leasing/")
	if err != nil {
		t.Fatal(err)
	}
	defer closeOther()
	for i := range 20 {
		value := strconv.Itoa(i)
		if _, err := []clientv3.KV{cached, other}[i%2].Put(ctx, "shared", value); err != nil {
			t.Fatal(err)
		}
		for _, kv := range []clientv3.KV{cached, other, client} {
			got, err := kv.Get(ctx, "shared")
			if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != value {
				t.Fatalf("get of a key with value %s: %v, error %v", value, got, err)
			}
		}
	}

	kv, watcher := namespace.NewKV(client, "space/"), namespace.NewWatcher(client, "space/")
	watch := watcher.Watch(ctx, "a", clientv3.WithPrefix())
	if _, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.Version("a1"), "=", 0)).Then(clientv3.OpPut("a1", "x")).Commit(); err != nil {
		t.Fatal(err)
	}
	if event := <-watch; string(event.Events[0].Kv.Key) != "a1" {
		t.Fatalf("the watch in the namespace received %v; want an event of key a1", event)
	}
	if got, err := client.Get(ctx, "space/a1"); err != nil || got.Count != 1 {
		t.Fatalf("get of the key with its namespace: %v, error %v", got, err)
	}

	ordered := ordering.NewKV(client, ordering.NewOrderViolationSwitchEndpointClosure(client))
	if got, err := ordered.Get(ctx, "shared", clientv3.WithSerializable()); err != nil || got.Count != 1 {
		t.Fatalf("get with the package ordering: %v, error %v", got, err)
	}
	checkMirror(ctx, t, client)
}

// checkMirror reads several pages of keys and then a change with the package mirror.
func checkMirror(ctx context.Context, t *testing.T, client *clientv3.Client) {
	t.Helper()
	for i := range 2500 {
		if _, err := client.Put(ctx, fmt.Sprintf("many/%04d", i), "value"); err != nil {
			t.Fatal(err)
		}
	}
	syncer := mirror.NewSyncer(client, "many/", 0)
	pages, failed := syncer.SyncBase(ctx)
	count := 0
	for page := range pages {
		count += len(page.Kvs)
	}
	if err := <-failed; err != nil || count != 2500 {
		t.Fatalf("SyncBase returned %d keys and the error %v; want 2500 keys", count, err)
	}
	updates := syncer.SyncUpdates(ctx)
	if _, err := client.Put(ctx, "many/new", "value"); err != nil {
		t.Fatal(err)
	}
	if update := <-updates; string(update.Events[0].Kv.Key) != "many/new" {
		t.Fatalf("SyncUpdates returned %v; want an event of key many/new", update)
	}
}

// TestWatchFragmentsAndProgress watches a transaction whose events are larger than a message, and
// checks progress notifications and the watch of a compacted revision.
func TestWatchFragmentsAndProgress(t *testing.T) {
	ctx := withTimeout(t)
	client := startMemEtcd(t, "--wal-mode", "none", "--watch-progress-notify-interval", "200ms").client()
	watch := client.Watch(ctx, "f/", clientv3.WithPrefix(), clientv3.WithFragment())
	idle := client.Watch(ctx, "never", clientv3.WithProgressNotify())
	var ops []clientv3.Op
	for i := range 120 {
		ops = append(ops, clientv3.OpPut(fmt.Sprint("f/", i), strings.Repeat("x", 10_000)))
	}
	txn, err := client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		t.Fatal(err)
	}
	received := 0
	for received < len(ops) {
		response := <-watch
		if response.Err() != nil {
			t.Fatal(response.Err())
		}
		received += len(response.Events)
	}
	if progress := <-idle; !progress.IsProgressNotify() || progress.Header.Revision != txn.Header.Revision {
		t.Fatalf("the idle watch received a response with header %+v; want a progress notification at revision %d",
			progress.Header, txn.Header.Revision)
	}
	if err := client.RequestProgress(ctx); err != nil {
		t.Fatal(err)
	}
	for response := range watch {
		if response.IsProgressNotify() {
			break
		}
	}
	if _, err := client.Compact(ctx, txn.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	compacted := <-client.Watch(ctx, "f/", clientv3.WithPrefix(), clientv3.WithRev(1))
	if compacted.CompactRevision != txn.Header.Revision || compacted.Err() == nil {
		t.Fatalf("a watch from a compacted revision received %+v", compacted)
	}
}

// TestClientsOutliveRestarts checks that the renewal of a lease, a watch and writes continue after the
// server was killed and restarted.
func TestClientsOutliveRestarts(t *testing.T) {
	ctx := withTimeout(t)
	server := startMemEtcd(t, "--wal-mode", "fsync")
	client := server.client()
	grant, err := client.Grant(ctx, 5)
	if err != nil {
		t.Fatal(err)
	}
	renewals, err := client.KeepAlive(ctx, grant.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, "leased", "", clientv3.WithLease(grant.ID)); err != nil {
		t.Fatal(err)
	}
	watch := client.Watch(ctx, "k", clientv3.WithPrefix())
	if _, err := client.Put(ctx, "k0", ""); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		server.kill()
		server.restart()
		// The client library retries only requests that the server cannot have executed. The test
		// retries the others.
		waitFor(t, "a write", func() bool {
			_, err := client.Put(ctx, fmt.Sprint("k", i+1), "")
			return err == nil
		})
	}
	received := map[string]bool{}
	for !received["k3"] {
		for _, event := range (<-watch).Events {
			received[string(event.Kv.Key)] = true
		}
	}
	if len(received) != 4 {
		t.Fatalf("the watch received events of the keys %v; want k0 to k3", received)
	}
	for len(renewals) > 0 {
		<-renewals
	}
	if response := <-renewals; response == nil || response.TTL != 5 {
		t.Fatalf("renewal of the lease: %v; want a TTL of 5 s", response)
	}
	if got, err := client.Get(ctx, "leased"); err != nil || got.Count != 1 {
		t.Fatalf("get of the key with the lease: %v, error %v", got, err)
	}
}
