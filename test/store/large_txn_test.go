package store

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// largeTxnKeys is more than the number of keys that mem_etcd reads while it executes a transaction.
const largeTxnKeys = 2500

// TestLargeTransactionsAsEtcd sends the same random transactions to etcd and to mem_etcd. Their ranges
// read thousands of keys between the transaction's own puts and deletes, which each range must see as in
// etcd. DIFFERENTIAL_SEED sets the seed.
func TestLargeTransactionsAsEtcd(t *testing.T) {
	seed := uint64(envInt(t, "DIFFERENTIAL_SEED", int(time.Now().UnixNano()&0xffffffff)))
	t.Logf("DIFFERENTIAL_SEED=%d", seed)
	g := &largeTxnGenerator{rand.New(rand.NewPCG(seed, 0))}
	etcd, ours := startEtcd(t).dial(), startMemEtcd(t, "--wal-mode", "none").dial()
	for first := 0; first < largeTxnKeys; first += 100 {
		fill := &pb.TxnRequest{}
		for n := first; n < first+100; n++ {
			fill.Success = append(fill.Success, putOp(&pb.PutRequest{Key: largeTxnKey(n), Value: []byte("filled")}))
		}
		compareLargeTxn(t, etcd, ours, fill)
	}
	for range 60 {
		compareLargeTxn(t, etcd, ours, g.txn(2))
	}
}

// compareLargeTxn sends a transaction to both stores and compares the responses.
func compareLargeTxn(t *testing.T, etcd, ours *api, txn *pb.TxnRequest) {
	t.Helper()
	want, wantErr := call(t, etcd, txn)
	got, gotErr := call(t, ours, txn)
	if difference := compare(want, wantErr, got, gotErr); difference != "" {
		t.Fatalf("transaction %v\n%.4000s", txn, difference)
	}
}

func largeTxnKey(n int) []byte { return fmt.Appendf(nil, "key%04d", n) }

// largeTxnGenerator makes random transactions with large ranges.
type largeTxnGenerator struct{ *rand.Rand }

// txn returns a transaction with nested transactions up to the given depth. No key is put twice.
func (g *largeTxnGenerator) txn(depth int) *pb.TxnRequest {
	return &pb.TxnRequest{Success: g.ops(depth, g.Perm(largeTxnKeys)[:8])}
}

// ops returns operations that put some of the keys.
func (g *largeTxnGenerator) ops(depth int, keys []int) []*pb.RequestOp {
	var ops []*pb.RequestOp
	for _, key := range keys[:len(keys)/2] {
		ops = append(ops, g.rangeOp(), putOp(&pb.PutRequest{Key: largeTxnKey(key), Value: fmt.Append(nil, g.IntN(100)), PrevKv: true}))
	}
	if depth > 0 {
		nested := &pb.TxnRequest{Success: g.ops(depth-1, keys[len(keys)/2:])}
		ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: nested}})
	}
	if g.IntN(3) == 0 {
		// As in etcd, a delete without end may delete keys that the transaction puts.
		deletion := &pb.DeleteRangeRequest{Key: largeTxnKey(largeTxnKeys - 1 - g.IntN(20)), RangeEnd: []byte{0}, PrevKv: true}
		ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: deletion}})
	}
	ops = append(ops, g.rangeOp())
	return ops
}

// rangeOp returns a range over most keys.
func (g *largeTxnGenerator) rangeOp() *pb.RequestOp {
	request := &pb.RangeRequest{
		Key:       largeTxnKey(g.IntN(100)),
		RangeEnd:  largeTxnKey(largeTxnKeys - g.IntN(20)),
		KeysOnly:  g.IntN(3) == 0,
		CountOnly: g.IntN(6) == 0,
	}
	if g.IntN(3) > 0 {
		request.RangeEnd = []byte{0}
	}
	if g.IntN(3) == 0 {
		request.Limit = int64(1 + g.IntN(2*largeTxnKeys))
	}
	if g.IntN(4) == 0 {
		request.Revision = int64(2 + g.IntN(largeTxnKeys/100))
	}
	if g.IntN(2) == 0 {
		request.SortOrder = pb.RangeRequest_DESCEND
	}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: request}}
}

func putOp(put *pb.PutRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}}
}
