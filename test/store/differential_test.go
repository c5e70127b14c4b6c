package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// TestAnswersAsEtcd sends the same random requests, valid and invalid ones, to etcd and to mem_etcd. The
// responses must be equal in values, revisions, counts, order, error codes and error messages.
// Afterwards both must have the same history. DIFFERENTIAL_OPS and DIFFERENTIAL_SEED set the number of
// requests and the seed.
func TestAnswersAsEtcd(t *testing.T) {
	seed := uint64(envInt(t, "DIFFERENTIAL_SEED", int(time.Now().UnixNano()&0xffffffff)))
	ops := envInt(t, "DIFFERENTIAL_OPS", 4000)
	t.Logf("DIFFERENTIAL_SEED=%d DIFFERENTIAL_OPS=%d", seed, ops)
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0)), revision: 1}
	etcd, ours := startEtcd(t).dial(), startMemEtcd(t, "--wal-mode", "none").dial()
	for i := range ops {
		request := g.request()
		want, wantErr := call(t, etcd, request)
		got, gotErr := call(t, ours, request)
		if difference := compare(want, wantErr, got, gotErr); difference != "" {
			t.Fatalf("operation %d, seed %d\nrequest  %T %s\n%s", i, seed, request, prototext.Format(request), difference)
		}
		g.updateRevision(want)
	}
	for from := g.compacted; from <= g.revision; from += 1 + (g.revision-g.compacted)/20 {
		want, got := history(t, etcd, max(from, 1), g.revision), history(t, ours, max(from, 1), g.revision)
		if difference := compare(want, nil, got, nil); difference != "" {
			t.Fatalf("history from %d, seed %d: %s", from, seed, difference)
		}
	}
}

// envInt returns the value of an environment variable, or defaultValue if it is not set.
func envInt(t *testing.T, name string, defaultValue int) int {
	text := os.Getenv(name)
	if text == "" {
		return defaultValue
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return value
}

// call sends a request to the method that takes its type.
func call(t *testing.T, a *api, request proto.Message) (proto.Message, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if r, ok := request.(*streamRequest); ok {
		return rangeStream(ctx, a, r.RangeRequest)
	}
	switch r := request.(type) {
	case *pb.RangeRequest:
		return a.kv.Range(ctx, r)
	case *pb.PutRequest:
		return a.kv.Put(ctx, r)
	case *pb.DeleteRangeRequest:
		return a.kv.DeleteRange(ctx, r)
	case *pb.TxnRequest:
		return a.kv.Txn(ctx, r)
	case *pb.CompactionRequest:
		return a.kv.Compact(ctx, r)
	case *pb.LeaseGrantRequest:
		return a.lease.LeaseGrant(ctx, r)
	case *pb.LeaseRevokeRequest:
		return a.lease.LeaseRevoke(ctx, r)
	case *pb.HashKVRequest:
		return a.maintenance.HashKV(ctx, r)
	case *pb.AlarmRequest:
		return a.maintenance.Alarm(ctx, r)
	case *pb.DowngradeRequest:
		return a.maintenance.Downgrade(ctx, r)
	case *pb.MoveLeaderRequest:
		return a.maintenance.MoveLeader(ctx, r)
	case *pb.DefragmentRequest:
		return a.maintenance.Defragment(ctx, r)
	}
	t.Fatalf("no method takes %T", request)
	return nil, nil
}

// streamRequest is a range request for the method RangeStream.
type streamRequest struct{ *pb.RangeRequest }

// rangeStream calls RangeStream and merges its responses, because etcd does not specify how many
// responses there are.
func rangeStream(ctx context.Context, a *api, r *pb.RangeRequest) (proto.Message, error) {
	stream, err := a.kv.RangeStream(ctx, r)
	if err != nil {
		return nil, err
	}
	merged := &pb.RangeResponse{}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return merged, nil
		}
		if err != nil {
			return nil, err
		}
		proto.Merge(merged, part.RangeResponse)
	}
}

// compare returns a description of the difference between two responses or errors, or "".
func compare(want proto.Message, wantErr error, got proto.Message, gotErr error) string {
	if status.Code(wantErr) != status.Code(gotErr) ||
		status.Convert(wantErr).Message() != status.Convert(gotErr).Message() {
		return fmt.Sprintf("etcd     %v %v\nmem_etcd %v %v", want, wantErr, got, gotErr)
	}
	if wantErr != nil {
		return ""
	}
	want, got = proto.Clone(want), proto.Clone(got)
	clearServerFields(want)
	clearServerFields(got)
	if proto.Equal(want, got) {
		return ""
	}
	return fmt.Sprintf("etcd     %s\nmem_etcd %s", prototext.Format(want), prototext.Format(got))
}

// clearServerFields clears the fields of the response header that identify the server.
func clearServerFields(m proto.Message) {
	type withHeader interface{ GetHeader() *pb.ResponseHeader }
	if h, ok := m.(withHeader); ok && h.GetHeader() != nil {
		header := h.GetHeader()
		header.ClusterId, header.MemberId, header.RaftTerm = 0, 0, 0
	}
}

// history returns the events of all keys from one revision to another, merged into one message, because
// etcd does not specify how a watch splits events into messages.
func history(t *testing.T, a *api, from, to int64) proto.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	stream, err := a.watch.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	create := &pb.WatchCreateRequest{Key: []byte{0}, RangeEnd: []byte{0}, StartRevision: from, PrevKv: true}
	send(t, stream, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
	all := &pb.WatchResponse{}
	for last := int64(0); last < to; {
		response, err := stream.Recv()
		if err != nil || response.Canceled {
			t.Fatalf("the watch from revision %d to %d ended at revision %d: response %v, error %v", from, to, last, response, err)
		}
		all.Events = append(all.Events, response.Events...)
		if n := len(all.Events); n > 0 {
			last = all.Events[n-1].Kv.ModRevision
		}
	}
	return all
}

// generator creates random requests. It uses few keys and small numbers, so that requests often affect
// the same keys, revisions and leases.
type generator struct {
	*rand.Rand
	// revision is the current revision of the store, compacted the last compaction revision.
	revision, compacted int64
}

// updateRevision sets the current revision to that of a response.
func (g *generator) updateRevision(response proto.Message) {
	type withHeader interface{ GetHeader() *pb.ResponseHeader }
	if h, ok := response.(withHeader); ok && h.GetHeader() != nil {
		g.revision = max(g.revision, h.GetHeader().Revision)
	}
}

func (g *generator) request() proto.Message {
	switch n := g.IntN(100); {
	case n < 30:
		return g.put()
	case n < 40:
		return g.delete()
	case n < 65:
		for {
			if r := g.txn(2); !mayCrashEtcd(r) {
				return r
			}
		}
	case n < 85:
		return g.get()
	case n < 90:
		return &streamRequest{g.get()}
	case n < 94:
		return &pb.LeaseGrantRequest{ID: 1 + int64(g.IntN(5)), TTL: []int64{100, 1000, 9_000_000_001}[g.IntN(3)]}
	case n < 97:
		return &pb.LeaseRevokeRequest{ID: int64(g.IntN(6))}
	default:
		return g.compact()
	}
}

// compact returns a compaction at a revision near the current one, which may be compacted already or in
// the future.
func (g *generator) compact() proto.Message {
	revision := g.revision - int64(g.IntN(60)) + 3
	if revision <= g.revision {
		g.compacted = max(g.compacted, revision)
	}
	return &pb.CompactionRequest{Revision: revision, Physical: g.chance(2)}
}

// chance returns true with probability 1/n.
func (g *generator) chance(n int) bool { return g.IntN(n) == 0 }

// key returns one of 24 keys, or rarely an empty one.
func (g *generator) key() []byte {
	if g.chance(60) {
		return nil
	}
	key := []byte{'a' + byte(g.IntN(6))}
	if g.chance(2) {
		key = append(key, byte(g.IntN(3)))
	}
	return key
}

// rangeEnd returns a range end: mostly none, sometimes a key or the open end.
func (g *generator) rangeEnd() []byte {
	switch g.IntN(6) {
	case 0:
		return []byte{0}
	case 1, 2:
		return g.key()
	default:
		return nil
	}
}

// readRevision returns a revision: mostly 0 (the current one), sometimes a past one, rarely a future one.
func (g *generator) readRevision() int64 {
	if g.chance(3) {
		return g.revision - int64(g.IntN(40)) + 2
	}
	return 0
}

func (g *generator) put() *pb.PutRequest {
	r := &pb.PutRequest{Key: g.key(), Value: []byte(strconv.Itoa(g.IntN(100))), PrevKv: g.chance(2)}
	if g.chance(5) {
		r.Lease = int64(g.IntN(6))
	}
	if g.chance(10) {
		r.IgnoreValue = true
		if !g.chance(5) {
			r.Value = nil
		}
	}
	if g.chance(10) {
		r.IgnoreLease = true
		if !g.chance(5) {
			r.Lease = 0
		}
	}
	return r
}

func (g *generator) delete() *pb.DeleteRangeRequest {
	return &pb.DeleteRangeRequest{Key: g.key(), RangeEnd: g.rangeEnd(), PrevKv: g.chance(2)}
}

func (g *generator) get() *pb.RangeRequest {
	r := &pb.RangeRequest{
		Key: g.key(), RangeEnd: g.rangeEnd(), Revision: g.readRevision(), Serializable: g.chance(3),
		KeysOnly: g.chance(5), CountOnly: g.chance(8),
	}
	if g.chance(2) {
		r.Limit = int64(g.IntN(6)) - 1
	}
	// Only sort by key (or by an unknown target): etcd does not specify the order of pairs with equal
	// values, and keys are never equal.
	if g.chance(4) {
		r.SortOrder = pb.RangeRequest_SortOrder(g.IntN(4))
		r.SortTarget = []pb.RangeRequest_SortTarget{pb.RangeRequest_KEY, 9}[btoi(g.chance(20))]
	}
	if g.chance(6) {
		r.MinModRevision, r.MaxModRevision = g.readRevision(), g.readRevision()
		r.MinCreateRevision, r.MaxCreateRevision = g.readRevision(), g.readRevision()
	}
	return r
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (g *generator) txn(depth int) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	for range g.IntN(3) {
		r.Compare = append(r.Compare, g.compare())
	}
	for range g.IntN(4) {
		r.Success = append(r.Success, g.op(depth))
	}
	for range g.IntN(4) {
		r.Failure = append(r.Failure, g.op(depth))
	}
	return r
}

// mayCrashEtcd returns whether a transaction contains a put and a deletion of an open-ended range. etcd
// does not detect that both can affect the same key, and some such transactions, for example with
// ignore_lease, crash it.
func mayCrashEtcd(r *pb.TxnRequest) bool {
	var openEnded, puts bool
	var visit func(r *pb.TxnRequest)
	visit = func(r *pb.TxnRequest) {
		for _, op := range slices.Concat(r.Success, r.Failure) {
			if d := op.GetRequestDeleteRange(); d != nil {
				openEnded = openEnded || string(d.RangeEnd) == "\x00"
			}
			puts = puts || op.GetRequestPut() != nil
			if nested := op.GetRequestTxn(); nested != nil {
				visit(nested)
			}
		}
	}
	visit(r)
	return openEnded && puts
}

func (g *generator) op(depth int) *pb.RequestOp {
	switch n := g.IntN(10); {
	case n < 3:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: g.get()}}
	case n < 7:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: g.put()}}
	case n < 9 || depth == 0:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: g.delete()}}
	default:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: g.txn(depth - 1)}}
	}
}

func (g *generator) compare() *pb.Compare {
	c := &pb.Compare{Result: pb.Compare_CompareResult(g.IntN(4)), Key: g.key(), RangeEnd: g.rangeEnd()}
	switch g.IntN(6) {
	case 0:
		c.Target, c.TargetUnion = pb.Compare_VERSION, &pb.Compare_Version{Version: int64(g.IntN(4))}
	case 1:
		c.Target, c.TargetUnion = pb.Compare_CREATE, &pb.Compare_CreateRevision{CreateRevision: g.revision - int64(g.IntN(50))}
	case 2:
		c.Target, c.TargetUnion = pb.Compare_MOD, &pb.Compare_ModRevision{ModRevision: g.revision - int64(g.IntN(50))}
	case 3:
		c.Target, c.TargetUnion = pb.Compare_VALUE, &pb.Compare_Value{Value: []byte(strconv.Itoa(g.IntN(100)))}
	case 4:
		c.Target, c.TargetUnion = pb.Compare_LEASE, &pb.Compare_Lease{Lease: int64(g.IntN(6))}
	default:
		c.Target = pb.Compare_CompareTarget(g.IntN(5))
	}
	return c
}
