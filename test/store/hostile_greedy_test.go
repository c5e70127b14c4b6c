package store

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
)

// The tests in this file are hostile clients that take all the memory they get on many connections, and return
// nothing of it. A client that connects after them must be served: each connection has a guaranteed part.

const greedyConnections = 30

// filledKeys is the number of keys that the bystander lists at once. More than 1,000 are a slow read.
const filledKeys = 2000

// TestHostileIncompleteRequests sends requests without their last byte.
func TestHostileIncompleteRequests(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	fillKeys(t, s, filledKeys, 1000)
	before := residentMemory(t, s)
	takeAll(t, s, "/etcdserverpb.KV/Put", func(size int) []byte {
		message := withPrefix(make([]byte, size+1))
		return message[:len(message)-1]
	})
	checkServed(t, s)
	// The oldest requests have been ended meanwhile, and others have taken their place.
	time.Sleep(8 * time.Second)
	checkServed(t, s)
	t.Logf("memory grew by %s", mib(checkGrown(t, s, before, 1200<<20)))
}

// TestHostileKeptKeys creates watches with long keys.
func TestHostileKeptKeys(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	fillKeys(t, s, filledKeys, 1000)
	before := residentMemory(t, s)
	takeAll(t, s, "/etcdserverpb.Watch/Watch", func(size int) []byte {
		return message(t, createRequest(&pb.WatchCreateRequest{Key: bytes.Repeat([]byte("k"), size)}))
	})
	checkServed(t, s)
	t.Logf("memory grew by %s", mib(checkGrown(t, s, before, 2400<<20)))
}

// TestHostileUnreadResponses reads ranges of 1 MB, and leaves the responses unread.
func TestHostileUnreadResponses(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	fillKeys(t, s, filledKeys, 16<<10)
	stop, before := bystander(t, s), residentMemory(t, s)
	request := message(t, &pb.RangeRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0"), Limit: 60})
	for range greedyConnections {
		dialUnread(t, s, 100, request)
		// The next connection gets a part of what this one leaves.
		time.Sleep(100 * time.Millisecond)
	}
	checkServed(t, s)
	// Those that have most are disconnected.
	grown := checkGrown(t, s, before, 1024<<20)
	time.Sleep(8 * time.Second)
	checkServed(t, s)
	t.Logf("%d connections with 100 unread responses of 1 MB each; memory grew by %s; %s", greedyConnections, mib(grown), stop())
}

// writeParts writes the data of a stream in frames of the size that HTTP/2 allows.
func (c *rawConn) writeParts(stream uint32, data []byte) error {
	const size = 16 << 10
	for ; len(data) > size; data = data[size:] {
		if err := c.WriteData(stream, false, data[:size]); err != nil {
			return err
		}
	}
	return c.WriteData(stream, false, data)
}

// takeAll starts connections that call a method in a loop, each time on a new stream. The data of a call makes the
// server keep size bytes or more. The sizes become smaller when the server refuses, down to a byte, and then large
// again. Each connection starts when the one before has got all that it gets, so that little is left at last. takeAll
// returns then.
func takeAll(t *testing.T, s *server, method string, data func(size int) []byte) {
	t.Helper()
	stop := bystander(t, s)
	stopped, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	start := time.Now()
	for range greedyConnections {
		conn := dialRaw(t, s)
		refused, handled := &atomic.Int64{}, make(chan struct{}, 1)
		go conn.countRefused(refused, handled)
		full := make(chan struct{})
		isFull := sync.OnceFunc(func() { close(full) })
		go func() {
			defer isFull()
			size := 1_000_000
			for stream := uint32(1); stopped.Err() == nil; stream += 2 {
				before := refused.Load()
				if conn.call(stream, method) != nil || conn.writeParts(stream, data(size)) != nil || conn.WriteSettings() != nil {
					return
				}
				select {
				case <-handled:
					// A refusal follows immediately.
					time.Sleep(time.Millisecond)
				case <-stopped.Done():
				case <-time.After(requestTimeout):
					t.Error("a greedy connection is not served")
					return
				}
				switch {
				case refused.Load() == before:
				case size > 1:
					size /= 10
				default:
					isFull()
					size = 1_000_000
					time.Sleep(200 * time.Millisecond)
				}
			}
		}()
		t.Cleanup(func() { cancel(); conn.Close() })
		<-full
	}
	t.Logf("%d connections have taken all memory after %v", greedyConnections, time.Since(start).Round(time.Millisecond))
	t.Cleanup(func() { t.Log(stop()) })
}

// countRefused reads frames until the connection is closed. It counts those that say that the server refuses
// something, and sends to handled for each SETTINGS frame that is acknowledged.
func (c *rawConn) countRefused(refused *atomic.Int64, handled chan<- struct{}) {
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if frame.IsAck() {
				select {
				case handled <- struct{}{}:
				default:
				}
			}
		case *http2.HeadersFrame:
			if frame.StreamEnded() {
				refused.Add(1)
			}
		case *http2.DataFrame:
			if bytes.Contains(frame.Data(), []byte("too many requests")) {
				refused.Add(1)
			}
		}
	}
}

// checkServed connects and checks that the server does all that kube-apiserver needs.
func checkServed(t *testing.T, s *server) {
	t.Helper()
	start, a := time.Now(), s.dial()
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s failed after %v: %v", what, time.Since(start).Round(time.Millisecond), err)
		}
	}
	check("watching", watchMany(ctx, a))
	check("keeping a lease alive", keepAlive(ctx, a))
	for _, size := range []int{100_000, 1_000_000} {
		_, err := a.kv.Put(ctx, &pb.PutRequest{Key: []byte("large"), Value: make([]byte, size)})
		check(fmt.Sprintf("putting %d bytes", size), err)
	}
	all, err := a.kv.Range(ctx, &pb.RangeRequest{Key: []byte("filled/"), RangeEnd: []byte("filled0")})
	if err == nil && len(all.Kvs) != filledKeys {
		err = fmt.Errorf("got %d keys; want %d", len(all.Kvs), filledKeys)
	}
	check("listing", err)
	if !t.Failed() {
		t.Logf("the bystander was served in %v", time.Since(start).Round(time.Millisecond))
	}
}

// watchMany creates 200 watches and requests their progress.
func watchMany(ctx context.Context, a *api) error {
	stream, err := a.watch.Watch(ctx)
	if err != nil {
		return err
	}
	for n := range 200 {
		key := fmt.Sprintf("/registry/group.example.com/resources-%d", n)
		create := &pb.WatchCreateRequest{Key: []byte(key + "/"), RangeEnd: []byte(key + "0"), PrevKv: true, ProgressNotify: true}
		if err := stream.Send(createRequest(create)); err != nil {
			return err
		}
		response, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("creating watch %d: %w", n, err)
		}
		if !response.Created || response.Canceled {
			return fmt.Errorf("watch %d was not created: %s", n, response.CancelReason)
		}
	}
	progress := &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: progress}); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// keepAlive grants a lease and renews it.
func keepAlive(ctx context.Context, a *api) error {
	granted, err := a.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 60})
	if err != nil {
		return err
	}
	stream, err := a.lease.LeaseKeepAlive(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: granted.ID}); err != nil {
		return err
	}
	renewed, err := stream.Recv()
	if err == nil && renewed.TTL <= 0 {
		err = fmt.Errorf("the lease has a TTL of %d", renewed.TTL)
	}
	return err
}
