package store

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The tests in this file are hostile clients whose valid requests cost more than their size suggests.

// TestHostileLeaseKeys reads the keys of a lease on connections that read no response. The keys are few
// but long, and each response has a copy of them when it is encoded.
func TestHostileLeaseKeys(t *testing.T) {
	s := startMemEtcd(t)
	a := s.dial()
	if _, err := a.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 7, TTL: 1000}); err != nil {
		t.Fatal(err)
	}
	const keys = 64
	for n := range keys {
		key := append(fmt.Appendf(nil, "%d/", n), bytes.Repeat([]byte("k"), 1<<20)...)
		if _, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: key, Lease: 7}); err != nil {
			t.Fatal(err)
		}
	}
	connections := scaled(8, 24)
	request := message(t, &pb.LeaseTimeToLiveRequest{ID: 7, Keys: true})
	stop := bystander(t, s)
	before := residentMemory(t, s)
	for range connections {
		if err := dialRaw(t, s).start(1, "/etcdserverpb.Lease/LeaseTimeToLive", true, request); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second)
	grown := residentMemory(t, s) - before
	if limit := connections * 8 << 20; grown > limit {
		t.Errorf("resident memory grew by %s; want at most %s", mib(grown), mib(limit))
	}
	t.Logf("%d connections; memory grew by %s; %s", connections, mib(grown), stop())
	// A client that reads gets all keys.
	response, err := a.lease.LeaseTimeToLive(t.Context(), &pb.LeaseTimeToLiveRequest{ID: 7, Keys: true})
	if err != nil || len(response.Keys) != keys || len(response.Keys[0]) < 1<<20 {
		t.Errorf("LeaseTimeToLive returned %d keys and the error %v; want %d keys", len(response.GetKeys()), err, keys)
	}
}

// TestHostileNestedTxn sends transactions with many puts that are deeply nested, and one duplicate key.
func TestHostileNestedTxn(t *testing.T) {
	s := startMemEtcd(t)
	var puts int
	// tree returns a transaction with three operations, and levels of nested ones below it.
	var tree func(levels int) *pb.TxnRequest
	nest := func(txn *pb.TxnRequest) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: txn}}
	}
	put := func(n int) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: fmt.Appendf(nil, "%06d", n)}}}
	}
	tree = func(levels int) *pb.TxnRequest {
		txn := &pb.TxnRequest{}
		for range 3 {
			if levels > 0 {
				txn.Success = append(txn.Success, nest(tree(levels-1)))
				continue
			}
			puts++
			txn.Success = append(txn.Success, put(puts))
		}
		return txn
	}
	txn := tree(9)
	for range 90 {
		txn = &pb.TxnRequest{Success: []*pb.RequestOp{nest(txn)}}
	}
	txn.Success = append(txn.Success, put(1))
	stop := bystander(t, s)
	a, before := s.dial(), cpuTime(t, s)
	calls := scaled(4, 32)
	for range calls {
		_, err := a.kv.Txn(t.Context(), txn)
		if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != "etcdserver: duplicate key given in txn request" {
			t.Errorf("the transaction with a duplicate key returned %v", err)
		}
	}
	served := stop()
	each := (cpuTime(t, s) - before) / time.Duration(calls)
	// CPU time grows with other work of the machine too, which uses the same caches.
	if each > time.Second {
		t.Errorf("a transaction with %d puts used %v of CPU; want at most 1 s", puts, each)
	}
	t.Logf("%d transactions with %d puts: %v each; %s", calls, puts, each, served)
}
