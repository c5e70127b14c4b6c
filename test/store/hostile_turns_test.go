package store

import (
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
)

// countAnswers reads all responses of a connection, and counts the calls that have ended.
func countAnswers(conn *rawConn) *atomic.Int64 {
	answers := new(atomic.Int64)
	go func() {
		for {
			frame, err := conn.ReadFrame()
			if err != nil {
				return
			}
			if headers, ok := frame.(*http2.HeadersFrame); ok && headers.StreamEnded() {
				answers.Add(1)
			}
		}
	}()
	return answers
}

// TestHostileRevocations queues revocations of leases on one connection, and large transactions on others.
// The revocation of a further connection must wait only for a few of them.
func TestHostileRevocations(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	fillKeys(t, s, 50_000, 10)
	a := s.dial()
	lease, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 1000})
	if err != nil {
		t.Fatal(err)
	}
	start := func(path string, body []byte, count int) *atomic.Int64 {
		conn := dialRaw(t, s)
		answers := countAnswers(conn)
		for n := range count {
			if err := conn.start(uint32(2*n+1), path, true, body); err != nil {
				t.Fatal(err)
			}
		}
		return answers
	}
	compare := &pb.Compare{
		Key: []byte("filled/"), RangeEnd: []byte("filled0"),
		Result: pb.Compare_GREATER, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{},
	}
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("put")}}}
	txn := message(t, &pb.TxnRequest{Compare: []*pb.Compare{compare}, Success: []*pb.RequestOp{put}})
	for range 2 {
		start("/etcdserverpb.KV/Txn", txn, 1000)
	}
	const revocations, few = 5000, 400
	answers := start("/etcdserverpb.Lease/LeaseRevoke", message(t, &pb.LeaseRevokeRequest{ID: 12345}), revocations)
	time.Sleep(200 * time.Millisecond)
	began, before := time.Now(), answers.Load()
	if _, err := a.lease.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: lease.ID}); err != nil {
		t.Fatal(err)
	}
	took, waited := time.Since(began), answers.Load()-before
	if before > revocations/2 || waited > few {
		t.Errorf("the revocation waited %v for %d of %d revocations of another connection; want at most %d (%d were answered before)", took, waited, revocations, few, before)
	}
	t.Logf("a revocation waited %v for %d of %d revocations of another connection", took.Round(time.Millisecond), waited, revocations)
}
