package store

import (
	"io"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// TestReviewLeaseRevokes queues revocations on one connection and large transactions on another. A revocation
// of a third connection must wait as long as any other large command of it.
func TestReviewLeaseRevokes(t *testing.T) {
	s := startMemEtcd(t, "--wal-mode", "none")
	fillKeys(t, s, 90_000, 10)
	compare := &pb.Compare{
		Key: []byte("filled/"), RangeEnd: []byte("filled0"),
		Result: pb.Compare_GREATER, Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{},
	}
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte("put")}}}
	txn := message(t, &pb.TxnRequest{Compare: []*pb.Compare{compare}, Success: []*pb.RequestOp{put}})
	a := s.dial()
	lease, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{TTL: 1000})
	if err != nil {
		t.Fatal(err)
	}
	start := func(path string, body []byte, count int) {
		conn := dialRaw(t, s)
		go io.Copy(io.Discard, conn.Conn)
		for n := range count {
			if err := conn.start(uint32(2*n+1), path, true, body); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 4 {
		start("/etcdserverpb.KV/Txn", txn, 2000)
	}
	start("/etcdserverpb.Lease/LeaseRevoke", message(t, &pb.LeaseRevokeRequest{ID: 12345}), 5000)
	time.Sleep(100 * time.Millisecond)
	began := time.Now()
	_, err = a.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte("x"), RangeEnd: []byte("y")})
	t.Logf("deletion of an empty range: %v, %v", time.Since(began).Round(time.Millisecond), err)
	began = time.Now()
	_, err = a.lease.LeaseRevoke(t.Context(), &pb.LeaseRevokeRequest{ID: lease.ID})
	t.Logf("revocation: %v, %v", time.Since(began).Round(time.Millisecond), err)
}
