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

// client returns etcd's own client of the server.
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

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	t.Cleanup(cancel)
	return ctx
}

// TestMutexAndElection checks locks and elections of etcd's concurrency package, also when
// a holder dies.
func TestMutexAndElection(t *testing.T) {
	ctx := limited(t)
	server := startMemEtcd(t, "--wal-mode", "none")
	var inside, turns int
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
				inside++
				if inside != 1 {
					t.Error("two clients hold the lock")
				}
				turns++
				inside--
				if err := mutex.Unlock(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if turns != 40 {
		t.Fatalf("%d acquisitions of the lock", turns)
	}
	electAndDie(ctx, t, server)
}

func electAndDie(ctx context.Context, t *testing.T, server *server) {
	t.Helper()
	dying, err := concurrency.NewSession(server.client(), concurrency.WithTTL(2))
	if err != nil {
		t.Fatal(err)
	}
	if err := concurrency.NewElection(dying, "/election").Campaign(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	session, err := concurrency.NewSession(server.client())
	if err != nil {
		t.Fatal(err)
	}
	election := concurrency.NewElection(session, "/election")
	observed := election.Observe(ctx)
	if leader := <-observed; string(leader.Kvs[0].Value) != "first" {
		t.Fatal(leader)
	}
	dying.Orphan() // its lease runs out
	if err := election.Campaign(ctx, "second"); err != nil {
		t.Fatal(err)
	}
	if leader := <-observed; string(leader.Kvs[0].Value) != "second" {
		t.Fatal(leader)
	}
	if err := election.Proclaim(ctx, "still"); err != nil {
		t.Fatal(err)
	}
	if err := election.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := election.Leader(ctx); !errors.Is(err, concurrency.ErrElectionNoLeader) {
		t.Fatal(err)
	}
}

// TestSTM checks software transactional memory: concurrent transfers between accounts keep
// the total.
func TestSTM(t *testing.T) {
	ctx := limited(t)
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
				move := func(stm concurrency.STM) error {
					a, _ := strconv.Atoi(stm.Get(from))
					stm.Put(from, strconv.Itoa(a-1))
					b, _ := strconv.Atoi(stm.Get(to))
					stm.Put(to, strconv.Itoa(b+1))
					return nil
				}
				level := []concurrency.Isolation{concurrency.Serializable, concurrency.SerializableSnapshot}[n%2]
				if _, err := concurrency.NewSTM(client, move, concurrency.WithIsolation(level), concurrency.WithAbortContext(ctx)); err != nil {
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
		t.Fatalf("the accounts contain %d, expected 500", sum)
	}
}

// TestLeasingNamespaceMirrorOrdering checks the wrappers of the client library.
func TestLeasingNamespaceMirrorOrdering(t *testing.T) {
	ctx := limited(t)
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
				t.Fatalf("%v %v, not %s", got, err, value)
			}
		}
	}

	kv, watcher := namespace.NewKV(client, "space/"), namespace.NewWatcher(client, "space/")
	watch := watcher.Watch(ctx, "a", clientv3.WithPrefix())
	if _, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.Version("a1"), "=", 0)).Then(clientv3.OpPut("a1", "x")).Commit(); err != nil {
		t.Fatal(err)
	}
	if event := <-watch; string(event.Events[0].Kv.Key) != "a1" {
		t.Fatal(event)
	}
	if got, err := client.Get(ctx, "space/a1"); err != nil || got.Count != 1 {
		t.Fatal(got, err)
	}

	ordered := ordering.NewKV(client, ordering.NewOrderViolationSwitchEndpointClosure(client))
	if got, err := ordered.Get(ctx, "shared", clientv3.WithSerializable()); err != nil || got.Count != 1 {
		t.Fatal(got, err)
	}
	mirrorAll(ctx, t, client)
}

// mirrorAll copies several pages of keys and then follows the changes.
func mirrorAll(ctx context.Context, t *testing.T, client *clientv3.Client) {
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
		t.Fatal(count, err)
	}
	updates := syncer.SyncUpdates(ctx)
	if _, err := client.Put(ctx, "many/new", "value"); err != nil {
		t.Fatal(err)
	}
	if update := <-updates; string(update.Events[0].Kv.Key) != "many/new" {
		t.Fatal(update)
	}
}

// TestWatchFragmentsAndProgress watches a transaction larger than a message, and requests
// the progress of the watch.
func TestWatchFragmentsAndProgress(t *testing.T) {
	ctx := limited(t)
	client := startMemEtcd(t, "--wal-mode", "none", "--watch-progress-notify-interval", "200ms").client()
	watch := client.Watch(ctx, "f/", clientv3.WithPrefix(), clientv3.WithFragment())
	quiet := client.Watch(ctx, "never", clientv3.WithProgressNotify())
	var ops []clientv3.Op
	for i := range 120 {
		ops = append(ops, clientv3.OpPut(fmt.Sprint("f/", i), strings.Repeat("x", 10_000)))
	}
	txn, err := client.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for seen < len(ops) {
		response := <-watch
		if response.Err() != nil {
			t.Fatal(response.Err())
		}
		seen += len(response.Events)
	}
	if progress := <-quiet; !progress.IsProgressNotify() || progress.Header.Revision != txn.Header.Revision {
		t.Fatalf("%+v", progress.Header)
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
	old := <-client.Watch(ctx, "f/", clientv3.WithPrefix(), clientv3.WithRev(1))
	if old.CompactRevision != txn.Header.Revision || old.Err() == nil {
		t.Fatalf("%+v", old)
	}
}

// TestClientsOutliveRestarts checks that a lease, a watch and writers survive when the
// server is killed and restarted.
func TestClientsOutliveRestarts(t *testing.T) {
	ctx := limited(t)
	server := startMemEtcd(t, "--wal-mode", "fsync")
	client := server.client()
	grant, err := client.Grant(ctx, 5)
	if err != nil {
		t.Fatal(err)
	}
	alive, err := client.KeepAlive(ctx, grant.ID)
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
		// The client retries only requests that cannot have been carried out. The
		// caller retries the others.
		waitFor(t, "a write", func() bool {
			_, err := client.Put(ctx, fmt.Sprint("k", i+1), "")
			return err == nil
		})
	}
	seen := map[string]bool{}
	for !seen["k3"] {
		for _, event := range (<-watch).Events {
			seen[string(event.Kv.Key)] = true
		}
	}
	if len(seen) != 4 {
		t.Fatal(seen)
	}
	for len(alive) > 0 {
		<-alive
	}
	if response := <-alive; response == nil || response.TTL != 5 {
		t.Fatalf("the lease is no longer kept alive: %v", response)
	}
	if got, err := client.Get(ctx, "leased"); err != nil || got.Count != 1 {
		t.Fatal(got, err)
	}
}
