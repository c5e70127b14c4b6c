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

// watching opens a stream that is closed at the end of the test or after 30 s.
func watching(t *testing.T, a *api) watchStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	stream, err := a.watch.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func create(t *testing.T, stream watchStream, request *pb.WatchCreateRequest) *pb.WatchResponse {
	t.Helper()
	send(t, stream, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: request}})
	return receive(t, stream)
}

func everything(from int64) *pb.WatchCreateRequest {
	return &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: from, PrevKv: true}
}

func TestWatchReturnsPreviousValues(t *testing.T) {
	a := startMemEtcd(t).dial()
	stream := watching(t, a)
	if created := create(t, stream, everything(0)); !created.Created || created.WatchId != 0 {
		t.Fatal(created)
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
		t.Fatal(events)
	}
	if events[2].Type != mvccpb.Event_DELETE || events[2].Kv.ModRevision != 4 || events[2].Kv.Value != nil {
		t.Fatal(events[2])
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
	stream := watching(t, a)
	if created := create(t, stream, everything(3)); created.Canceled {
		t.Fatal(created)
	}
	if canceled := receive(t, stream); !canceled.Canceled || canceled.CompactRevision != 4 {
		t.Fatal(canceled)
	}
	create(t, stream, everything(4))
	if events := receive(t, stream).Events; len(events) != 3 || events[0].Kv.ModRevision != 4 {
		t.Fatal(events)
	}
}

func TestProgressOnRequestFollowsEveryEvent(t *testing.T) {
	a := startMemEtcd(t).dial()
	stream := watching(t, a)
	create(t, stream, everything(0))
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
					t.Fatalf("progress %d, received %d of %d", response.Header.Revision, received, revision)
				}
				break
			}
		}
	}
}

func TestProgressOnInterval(t *testing.T) {
	a := startMemEtcd(t, "--watch-progress-notify-interval", "100ms").dial()
	stream := watching(t, a)
	request := everything(0)
	request.ProgressNotify = true
	create(t, stream, request)
	if note := receive(t, stream); len(note.Events) != 0 || note.WatchId != 0 || note.Header.Revision != 1 {
		t.Fatal(note)
	}
}

func TestFragmentsAreSmall(t *testing.T) {
	a := startMemEtcd(t, "--max-request-bytes", "100000").dial()
	value := string(make([]byte, 90_000))
	last := int64(0)
	for range 20 {
		last = mustPut(t, a, "k", value)
	}
	stream := watching(t, a)
	request := everything(2)
	request.Fragment, request.PrevKv = true, false
	create(t, stream, request)
	for received := int64(1); received < last; {
		response := receive(t, stream)
		// As in etcd, a message may be 512 KiB larger than the largest request.
		if len(response.Events) > 6 {
			t.Fatalf("%d events of 90,000 bytes in a message", len(response.Events))
		}
		for _, event := range response.Events {
			if received++; event.Kv.ModRevision != received {
				t.Fatalf("revision %d, expected %d", event.Kv.ModRevision, received)
			}
		}
	}
}

// TestSlowWatcherDoesNotDelayOthers has one client that never reads its watch, while
// another writes and a third reads everything.
func TestSlowWatcherDoesNotDelayOthers(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	deaf := watching(t, s.dial())
	send(t, deaf, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: everything(0)}})
	a := s.dial()
	stream := watching(t, a)
	create(t, stream, everything(0))
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
				t.Fatalf("revision %d, expected %d", event.Kv.ModRevision, received)
			}
		}
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	// When the slow client finally reads, it gets every event.
	for received := int64(1); received <= writes; {
		for _, event := range receive(t, deaf).Events {
			if received++; event.Kv.ModRevision != received {
				t.Fatalf("the slow one: revision %d, expected %d", event.Kv.ModRevision, received)
			}
		}
	}
}

func TestLeaseEndsWithItsKeysInOneRevision(t *testing.T) {
	a := startMemEtcd(t).dial()
	grant, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 1})
	if err != nil || grant.TTL != 2 {
		t.Fatalf("a TTL below the minimum is raised to it: %v %v", grant, err)
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
	stream := watching(t, a)
	create(t, stream, everything(0))
	start := time.Now()
	for time.Since(start) < 3*time.Second {
		if err := keepAlive.Send(&pb.LeaseKeepAliveRequest{ID: grant.ID}); err != nil {
			t.Fatal(err)
		}
		if answer, err := keepAlive.Recv(); err != nil || answer.TTL != 2 {
			t.Fatalf("%v %v", answer, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	events := receive(t, stream).Events
	if len(events) != 2 || string(events[0].Kv.Key) != "a" || events[0].Kv.ModRevision != events[1].Kv.ModRevision {
		t.Fatal(events)
	}
	if err := keepAlive.Send(&pb.LeaseKeepAliveRequest{ID: grant.ID}); err != nil {
		t.Fatal(err)
	}
	if answer, err := keepAlive.Recv(); err != nil || answer.TTL != 0 {
		t.Fatalf("%v %v", answer, err)
	}
	left, err := a.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: grant.ID})
	if err != nil || left.TTL != -1 {
		t.Fatalf("%v %v", left, err)
	}
}

// TestStopEndsOpenStreams checks for a clean exit while watches are open.
func TestStopEndsOpenStreams(t *testing.T) {
	s := startMemEtcd(t)
	stream := watching(t, s.dial())
	create(t, stream, everything(0))
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	select {
	case err := <-stopped:
		if err != nil {
			t.Fatalf("exit: %v\n%s", err, s.log)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("still running")
	}
	if _, err := stream.Recv(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

// TestUnreadStreamsDoNotDelayOthers opens more streams than the server has threads and
// reads none of them. Other reads succeed, and the server stops when requested.
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
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if response, err := a.kv.Range(ctx, all); err != nil || len(response.Kvs) != 300 {
		t.Fatalf("%d keys: %v", len(response.GetKvs()), err)
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
	case <-time.After(10 * time.Second):
		t.Fatal("still running")
	}
}

// TestWatchIDIsReused cancels and creates watches with the same ID while the server reads
// history for them.
func TestWatchIDIsReused(t *testing.T) {
	a := startMemEtcd(t, "--wal-mode", "none").dial()
	last := int64(0)
	for range 3000 {
		last = mustPut(t, a, "k", "v")
	}
	stream := watching(t, a)
	const rounds = 200
	go func() {
		for range rounds {
			request := everything(2)
			request.WatchId = 5
			_ = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: request}})
			_ = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: 5}}})
		}
		final := everything(2)
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
				t.Fatalf("watch %d: revision %d, expected %d", created, event.Kv.ModRevision, received)
			}
		}
	}
}
