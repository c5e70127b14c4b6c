package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

type watchStream = pb.Watch_WatchClient

func send(t *testing.T, stream watchStream, request *pb.WatchRequest) {
	t.Helper()
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, stream watchStream) *pb.WatchResponse {
	t.Helper()
	response, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// openWatchStream opens a stream that is closed at the end of the test or after startTimeout.
func openWatchStream(t *testing.T, a *api) watchStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	t.Cleanup(cancel)
	stream, err := a.watch.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// createWatch sends a create request and returns the first response.
func createWatch(t *testing.T, stream watchStream, request *pb.WatchCreateRequest) *pb.WatchResponse {
	t.Helper()
	send(t, stream, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: request}})
	return receive(t, stream)
}

// watchAllKeys returns a request for all keys from a revision on, with the previous pairs.
func watchAllKeys(from int64) *pb.WatchCreateRequest {
	return &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: from, PrevKv: true}
}

func TestWatchReturnsPreviousValues(t *testing.T) {
	a := startMemEtcd(t).dial()
	stream := openWatchStream(t, a)
	if created := createWatch(t, stream, watchAllKeys(0)); !created.Created || created.WatchId != 0 {
		t.Fatalf("the response to the create request is %v", created)
	}
	mustPut(t, a, "k", "1")
	mustPut(t, a, "k", "2")
	if _, err := a.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("k")}); err != nil {
		t.Fatal(err)
	}
	var events []*mvccpb.Event
	for len(events) < 3 {
		events = append(events, receive(t, stream).Events...)
	}
	if events[0].PrevKv != nil || string(events[1].PrevKv.Value) != "1" || string(events[2].PrevKv.Value) != "2" {
		t.Fatalf("the events %v do not contain the previous values", events)
	}
	if events[2].Type != mvccpb.Event_DELETE || events[2].Kv.ModRevision != 4 || events[2].Kv.Value != nil {
		t.Fatalf("the event of the deletion is %v; want mod revision 4 and no value", events[2])
	}
}

func TestWatchOfCompactedRevisionIsCanceled(t *testing.T) {
	a := startMemEtcd(t).dial()
	for range 5 {
		mustPut(t, a, "k", "v")
	}
	if _, err := a.kv.Compact(t.Context(), &pb.CompactionRequest{Revision: 4}); err != nil {
		t.Fatal(err)
	}
	stream := openWatchStream(t, a)
	if created := createWatch(t, stream, watchAllKeys(3)); created.Canceled {
		t.Fatalf("the first response already cancels the watch: %v", created)
	}
	if canceled := receive(t, stream); !canceled.Canceled || canceled.CompactRevision != 4 {
		t.Fatalf("the watch of a compacted revision received %v; want a cancellation with compact revision 4", canceled)
	}
	createWatch(t, stream, watchAllKeys(4))
	if events := receive(t, stream).Events; len(events) != 3 || events[0].Kv.ModRevision != 4 {
		t.Fatalf("the watch from the compaction revision received %v; want 3 events from revision 4 on", events)
	}
}

func TestProgressOnRequestFollowsEveryEvent(t *testing.T) {
	a := startMemEtcd(t).dial()
	stream := openWatchStream(t, a)
	createWatch(t, stream, watchAllKeys(0))
	for range 50 {
		revision := mustPut(t, a, "k", "v")
		send(t, stream, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{}})
		for received := int64(0); ; {
			response := receive(t, stream)
			for _, event := range response.Events {
				received = event.Kv.ModRevision
			}
			if response.WatchId == -1 {
				if response.Header.Revision > revision || received != revision {
					t.Fatalf("progress notification at revision %d after the event of revision %d; want both at %d",
						response.Header.Revision, received, revision)
				}
				break
			}
		}
	}
}

func TestProgressOnInterval(t *testing.T) {
	a := startMemEtcd(t, "--watch-progress-notify-interval", "100ms").dial()
	stream := openWatchStream(t, a)
	request := watchAllKeys(0)
	request.ProgressNotify = true
	createWatch(t, stream, request)
	if notification := receive(t, stream); len(notification.Events) != 0 || notification.WatchId != 0 || notification.Header.Revision != 1 {
		t.Fatalf("the watch received %v; want a progress notification at revision 1", notification)
	}
}

func TestFragmentsAreSmall(t *testing.T) {
	a := startMemEtcd(t, "--max-request-bytes", "100000").dial()
	value := string(make([]byte, 90_000))
	last := int64(0)
	for range 20 {
		last = mustPut(t, a, "k", value)
	}
	stream := openWatchStream(t, a)
	request := watchAllKeys(2)
	request.Fragment, request.PrevKv = true, false
	createWatch(t, stream, request)
	for received := int64(1); received < last; {
		response := receive(t, stream)
		// As in etcd, a message may be 512 KiB larger than --max-request-bytes.
		if len(response.Events) > 6 {
			t.Fatalf("a message contains %d events of 90,000 bytes; want at most 6", len(response.Events))
		}
		for _, event := range response.Events {
			if received++; event.Kv.ModRevision != received {
				t.Fatalf("received an event of revision %d; want %d", event.Kv.ModRevision, received)
			}
		}
	}
}

// TestSlowWatcherDoesNotDelayOthers creates a watch whose client does not read while another client writes and
// a second watcher receives all events. Finally the first watcher must receive all events as well.
func TestSlowWatcherDoesNotDelayOthers(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	slow := openWatchStream(t, s.dial())
	send(t, slow, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: watchAllKeys(0)}})
	a := s.dial()
	stream := openWatchStream(t, a)
	createWatch(t, stream, watchAllKeys(0))
	const writes = 20_000
	value := string(make([]byte, 2000))
	failed := make(chan error, 1)
	go func() {
		for range writes {
			if _, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: []byte("k"), Value: []byte(value)}); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	for received := int64(1); received <= writes; {
		for _, event := range receive(t, stream).Events {
			if received++; event.Kv.ModRevision != received {
				t.Fatalf("the second watcher received an event of revision %d; want %d", event.Kv.ModRevision, received)
			}
		}
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	// Now the slow watcher reads.
	for received := int64(1); received <= writes; {
		for _, event := range receive(t, slow).Events {
			if received++; event.Kv.ModRevision != received {
				t.Fatalf("the slow watcher received an event of revision %d; want %d", event.Kv.ModRevision, received)
			}
		}
	}
}

// TestLeaseEndsWithItsKeysInOneRevision renews a lease for longer than its TTL and then lets it expire. Its keys
// must be deleted at the same revision.
func TestLeaseEndsWithItsKeysInOneRevision(t *testing.T) {
	a := startMemEtcd(t).dial()
	grant, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 1})
	if err != nil || grant.TTL != 2 {
		t.Fatalf("a grant with a TTL of 1 s returned %v, error %v; want the minimum TTL of 2 s", grant, err)
	}
	for _, key := range []string{"b", "a"} {
		if _, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: []byte(key), Lease: grant.ID}); err != nil {
			t.Fatal(err)
		}
	}
	keepAlive, err := a.lease.LeaseKeepAlive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stream := openWatchStream(t, a)
	createWatch(t, stream, watchAllKeys(0))
	start := time.Now()
	for time.Since(start) < 3*time.Second {
		if err := keepAlive.Send(&pb.LeaseKeepAliveRequest{ID: grant.ID}); err != nil {
			t.Fatal(err)
		}
		if response, err := keepAlive.Recv(); err != nil || response.TTL != 2 {
			t.Fatalf("renewal of the lease: %v, error %v; want a TTL of 2 s", response, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	events := receive(t, stream).Events
	if len(events) != 2 || string(events[0].Kv.Key) != "a" || events[0].Kv.ModRevision != events[1].Kv.ModRevision {
		t.Fatalf("the expiry of the lease caused the events %v; want those of a and b at the same revision", events)
	}
	if err := keepAlive.Send(&pb.LeaseKeepAliveRequest{ID: grant.ID}); err != nil {
		t.Fatal(err)
	}
	if response, err := keepAlive.Recv(); err != nil || response.TTL != 0 {
		t.Fatalf("renewal of the expired lease: %v, error %v; want a TTL of 0", response, err)
	}
	lease, err := a.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: grant.ID})
	if err != nil || lease.TTL != -1 {
		t.Fatalf("time to live of the expired lease: %v, error %v; want a TTL of -1", lease, err)
	}
}

// TestStopEndsOpenStreams checks that the server exits without an error while a watch is open.
func TestStopEndsOpenStreams(t *testing.T) {
	s := startMemEtcd(t)
	stream := openWatchStream(t, s.dial())
	createWatch(t, stream, watchAllKeys(0))
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	select {
	case err := <-stopped:
		if err != nil {
			t.Fatalf("the server exited with the error %v\n%s", err, s.log)
		}
	case <-time.After(startTimeout):
		t.Fatalf("the server did not exit within %v", startTimeout)
	}
	if _, err := stream.Recv(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the watch of the stopped server ended with the error %v", err)
	}
}

// TestUnreadStreamsDoNotDelayOthers opens 700 streams, more than the server has threads, and reads none of
// them. Other reads must succeed, and the server must stop.
func TestUnreadStreamsDoNotDelayOthers(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	a := s.dial()
	value := string(make([]byte, 100_000))
	for i := range 300 {
		mustPut(t, a, fmt.Sprintf("k%03d", i), value)
	}
	unread := s.dial()
	all := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}
	for range 700 {
		if _, err := unread.kv.RangeStream(t.Context(), all); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if response, err := a.kv.Range(ctx, all); err != nil || len(response.Kvs) != 300 {
		t.Fatalf("a range returned %d keys and the error %v; want 300 keys", len(response.GetKvs()), err)
	}
	op := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: all}}
	if _, err := a.kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{op}}); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	select {
	case err := <-stopped:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(startTimeout):
		t.Fatalf("the server did not exit within %v", startTimeout)
	}
}

// TestWatchIDIsReused repeatedly creates and cancels a watch with the same ID while the server reads history
// for it. Each watch must receive its events from the start.
func TestWatchIDIsReused(t *testing.T) {
	a := startMemEtcd(t, "--wal-mode", "none").dial()
	last := int64(0)
	for range 3000 {
		last = mustPut(t, a, "k", "v")
	}
	stream := openWatchStream(t, a)
	const rounds = 200
	go func() {
		for range rounds {
			request := watchAllKeys(2)
			request.WatchId = 5
			_ = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: request}})
			_ = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: 5}}})
		}
		final := watchAllKeys(2)
		final.WatchId = 5
		_ = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: final}})
	}()
	created, received := 0, int64(0)
	for created < rounds+1 || received < last {
		response := receive(t, stream)
		if response.Created {
			created, received = created+1, 1
		}
		for _, event := range response.Events {
			if received++; event.Kv.ModRevision != received {
				t.Fatalf("watch %d received an event of revision %d; want %d", created, event.Kv.ModRevision, received)
			}
		}
	}
}
