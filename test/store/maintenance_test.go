package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// both sends the same requests to two servers, usually etcd and mem_etcd, and compares the responses.
type both struct {
	t          *testing.T
	etcd, ours *api
}

// send sends a request to both servers. It fails the test if the responses differ, and returns the
// response.
func (b *both) send(request proto.Message) (proto.Message, error) {
	b.t.Helper()
	want, wantErr := call(b.t, b.etcd, request)
	got, gotErr := call(b.t, b.ours, request)
	if difference := compare(want, wantErr, got, gotErr); difference != "" {
		b.t.Fatalf("%T %s\n%s", request, prototext.Format(request), difference)
	}
	return want, wantErr
}

// must sends a request to both servers, which must succeed.
func (b *both) must(request proto.Message) proto.Message {
	b.t.Helper()
	response, err := b.send(request)
	if err != nil {
		b.t.Fatalf("%T %s: %v", request, prototext.Format(request), err)
	}
	return response
}

func putRequest(key, value string) *pb.PutRequest {
	return &pb.PutRequest{Key: []byte(key), Value: []byte(value)}
}

func compactRequest(revision int64) *pb.CompactionRequest {
	return &pb.CompactionRequest{Revision: revision, Physical: true}
}

// TestHashKVAsEtcd writes a random history with compactions and restarts, and compares the hash of every
// revision with etcd's. The history contains no transactions that change several keys, because the hashes
// of such transactions differ from etcd's after they are compacted (see crates/mvcc/src/hash.rs).
func TestHashKVAsEtcd(t *testing.T) {
	random := seededGenerator(t).Rand
	server := startMemEtcd(t)
	b := &both{t: t, etcd: startEtcd(t).dial(), ours: server.dial()}
	b.must(&pb.HashKVRequest{})
	b.must(putRequest("stays", "for ever"))
	b.must(&pb.LeaseGrantRequest{ID: 7, TTL: 1000})
	compacted, revision := int64(0), int64(2)
	for i := range 600 {
		key := fmt.Appendf(nil, "key-%d", random.IntN(20))
		var response proto.Message
		if random.IntN(4) == 0 {
			response = b.must(&pb.DeleteRangeRequest{Key: key})
		} else {
			value := make([]byte, random.IntN(300))
			response = b.must(&pb.PutRequest{Key: key, Value: value, Lease: int64(7 * random.IntN(2))})
		}
		revision = response.(interface{ GetHeader() *pb.ResponseHeader }).GetHeader().Revision
		if i%150 == 149 {
			compacted = compacted + 1 + random.Int64N(revision-compacted)
			b.must(compactRequest(compacted))
			server.stop()
			server.restart()
			b.ours = server.dial()
		}
		if i%5 == 0 {
			// The compacted revision itself is left out: etcd returns a cached hash for it.
			if at := compacted + 1 + random.Int64N(10); at <= revision {
				b.must(&pb.HashKVRequest{Revision: at})
			}
			b.must(&pb.HashKVRequest{})
		}
	}
	for at := compacted + 1; at <= revision; at++ {
		b.must(&pb.HashKVRequest{Revision: at})
	}
	for _, at := range []int64{1, compacted - 1, revision + 1} {
		if _, err := b.send(&pb.HashKVRequest{Revision: at}); err == nil {
			t.Fatalf("HashKV succeeded for revision %d, which is outside of %d to %d", at, compacted, revision)
		}
	}
}

// TestHashesAreEqual sends the same random requests to two mem_etcd servers. Their hashes must be equal,
// also after one of them was killed and restarted.
func TestHashesAreEqual(t *testing.T) {
	g := seededGenerator(t)
	server := startMemEtcd(t)
	one, two := server.dial(), startMemEtcd(t, "--wal-mode", "none").dial()
	for range 3000 {
		request := g.request()
		response, _ := call(t, one, request)
		_, _ = call(t, two, request)
		g.updateRevision(response)
	}
	server.kill()
	server.restart()
	one = server.dial()
	b := &both{t: t, etcd: one, ours: two}
	for at := max(g.compacted, 1); at <= g.revision; at++ {
		b.must(&pb.HashKVRequest{Revision: at})
	}
	hash := func(a *api) uint32 {
		response, err := a.maintenance.Hash(t.Context(), &pb.HashRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return response.Hash
	}
	if hash(one) != hash(two) {
		t.Fatal("the hashes of the stores differ")
	}
	if _, err := two.lease.LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: 77, TTL: 1000}); err != nil {
		t.Fatal(err)
	}
	if hash(one) == hash(two) {
		t.Fatal("an additional lease did not change the hash")
	}
}

// seededGenerator returns a generator of random requests. SEED sets its seed.
func seededGenerator(t *testing.T) *generator {
	t.Helper()
	seed := uint64(envInt(t, "SEED", int(time.Now().UnixNano()&0xffffffff)))
	t.Logf("SEED=%d", seed)
	return &generator{Rand: rand.New(rand.NewPCG(seed, 0)), revision: 1}
}

// alarmCycle activates an alarm, compares which requests fail while it is active, and deactivates it.
func (b *both) alarmCycle(kind pb.AlarmType, member uint64) {
	b.t.Helper()
	alarm := func(action pb.AlarmRequest_AlarmAction, kind pb.AlarmType) *pb.AlarmRequest {
		return &pb.AlarmRequest{Action: action, MemberID: member, Alarm: kind}
	}
	b.must(alarm(pb.AlarmRequest_ACTIVATE, kind))
	b.must(alarm(pb.AlarmRequest_ACTIVATE, kind))
	for _, queried := range []pb.AlarmType{pb.AlarmType_NONE, pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT} {
		b.must(alarm(pb.AlarmRequest_GET, queried))
	}
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: putRequest("a", "2")}}
	get := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("a")}}}
	del := &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte("x")}}}
	nested := &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Failure: []*pb.RequestOp{put}}}}
	failed := 0
	for _, request := range []proto.Message{
		putRequest("a", "1"),
		&pb.RangeRequest{Key: []byte("a")},
		&pb.RangeRequest{Key: []byte("a"), Serializable: true},
		&pb.TxnRequest{Success: []*pb.RequestOp{get}},
		&pb.TxnRequest{Success: []*pb.RequestOp{put}},
		&pb.TxnRequest{Failure: []*pb.RequestOp{put}},
		&pb.TxnRequest{Success: []*pb.RequestOp{nested}},
		&pb.TxnRequest{Success: []*pb.RequestOp{get, del}},
		&pb.DeleteRangeRequest{Key: []byte("x")},
		&pb.LeaseGrantRequest{ID: 70, TTL: 100},
		&pb.LeaseRevokeRequest{ID: 7},
		&pb.LeaseGrantRequest{ID: 7, TTL: 100},
		&pb.CompactionRequest{Revision: 2},
		&pb.HashKVRequest{},
		&pb.DefragmentRequest{},
	} {
		if _, err := b.send(request); err != nil {
			failed++
		}
	}
	if failed < 5 {
		b.t.Fatalf("%d requests failed while the alarm %v was active; want at least 5", failed, kind)
	}
	b.must(alarm(pb.AlarmRequest_DEACTIVATE, kind))
	b.must(alarm(pb.AlarmRequest_DEACTIVATE, kind))
	b.must(alarm(pb.AlarmRequest_GET, pb.AlarmType_NONE))
	b.must(putRequest("a", "3"))
}

func TestAlarmsAsEtcd(t *testing.T) {
	for _, kind := range []pb.AlarmType{pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT} {
		b := &both{t: t, etcd: startEtcd(t).dial(), ours: startMemEtcd(t, "--wal-mode", "none").dial()}
		b.must(putRequest("a", "0"))
		b.must(putRequest("x", "0"))
		b.must(&pb.LeaseGrantRequest{ID: 7, TTL: 1000})
		b.alarmCycle(kind, 12345)
		b.must(&pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NONE})
	}
}

func TestAlarmsOutliveRestarts(t *testing.T) {
	server := startMemEtcd(t, "--snapshot-log-bytes", "100000")
	a := server.dial()
	corrupt := &pb.AlarmMember{MemberID: 1 << 63, Alarm: pb.AlarmType_CORRUPT}
	set := func(action pb.AlarmRequest_AlarmAction) {
		t.Helper()
		request := &pb.AlarmRequest{Action: action, MemberID: corrupt.MemberID, Alarm: corrupt.Alarm}
		if _, err := a.maintenance.Alarm(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	alarms := func() []*pb.AlarmMember {
		t.Helper()
		response, err := a.maintenance.Alarm(t.Context(), &pb.AlarmRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return response.Alarms
	}
	set(pb.AlarmRequest_ACTIVATE)
	if got := alarms(); len(got) != 1 || !proto.Equal(got[0], corrupt) {
		t.Fatalf("the active alarms are %v; want %v", got, corrupt)
	}
	health, err := http.Get("http://" + server.address + "/health")
	if err != nil || health.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("/health with an active alarm: %v, error %v; want status 503", health, err)
	}
	if body, _ := io.ReadAll(health.Body); string(body) != `{"health":"false","reason":"ALARM CORRUPT"}` {
		t.Fatalf("/health with an active alarm returned %s", body)
	}
	health.Body.Close()
	server.kill()
	// With the alarm the server does not become ready, but it answers requests.
	server.startWithoutWaiting(binary(t, "mem_etcd"))
	a = server.dial()
	waitFor(t, "the restarted server to report the alarm", func() bool {
		response, err := a.maintenance.Alarm(t.Context(), &pb.AlarmRequest{})
		return err == nil && len(response.Alarms) == 1
	})
	set(pb.AlarmRequest_DEACTIVATE)
	for i := range 400 {
		if _, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: fmt.Append(nil, i), Value: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
	}
	server.kill()
	server.restart()
	a = server.dial()
	if got := alarms(); len(got) != 0 {
		t.Fatalf("after the alarm was deactivated and the server restarted, the active alarms are %v", got)
	}
}

// TestQuotaAsEtcd fills both servers up to the same quota. The same requests must fail. After space was
// freed and the alarm was deactivated, puts must succeed again.
func TestQuotaAsEtcd(t *testing.T) {
	const quota = "--quota-backend-bytes=8000000"
	b := &both{t: t, etcd: startEtcd(t, quota).dial(), ours: startMemEtcd(t, quota).dial()}
	for name, a := range map[string]*api{"etcd": b.etcd, "mem_etcd": b.ours} {
		fillUp(t, name, a)
	}
	expectNoSpace := func(request proto.Message) {
		t.Helper()
		if _, err := b.send(request); status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("%T returned the error %v; want RESOURCE_EXHAUSTED", request, err)
		}
	}
	expectNoSpace(&pb.LeaseGrantRequest{ID: 5, TTL: 100})
	expectNoSpace(putRequest("small", ""))
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: putRequest("a", "2")}}
	expectNoSpace(&pb.TxnRequest{Success: []*pb.RequestOp{put}})
	for name, a := range map[string]*api{"etcd": b.etcd, "mem_etcd": b.ours} {
		makeRoom(t, name, a)
	}
	expectNoSpace(putRequest("small", ""))
	for name, a := range map[string]*api{"etcd": b.etcd, "mem_etcd": b.ours} {
		alarms, err := a.maintenance.Alarm(t.Context(), &pb.AlarmRequest{})
		if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0].Alarm != pb.AlarmType_NOSPACE {
			t.Fatalf("%s has the alarms %v, error %v; want NOSPACE", name, alarms, err)
		}
		disarm := &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: alarms.Alarms[0].MemberID, Alarm: pb.AlarmType_NOSPACE}
		if _, err := a.maintenance.Alarm(t.Context(), disarm); err != nil {
			t.Fatal(err)
		}
		if _, err := a.kv.Put(t.Context(), putRequest("small", "")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// fillUp puts keys until the quota is exceeded.
func fillUp(t *testing.T, name string, a *api) {
	t.Helper()
	written := 0
	for ; written < 1000; written++ {
		_, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: fmt.Append(nil, written), Value: make([]byte, 200_000)})
		if status.Code(err) == codes.ResourceExhausted {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	t.Logf("%s accepted %d puts of 200 kB", name, written)
	// etcd checks the size of its file, which it writes some time after a put. It therefore accepts more
	// than the quota.
	if written < 20 || name == "mem_etcd" && written > 40 {
		t.Fatalf("%s accepted %d puts of 200 kB with a quota of 8 MB; want at least 20, and at most 40 with mem_etcd", name, written)
	}
	state, err := a.maintenance.Status(t.Context(), &pb.StatusRequest{})
	if err != nil || state.DbSizeQuota != 8_000_000 || len(state.Errors) != 1 {
		t.Fatalf("%s: status %v, error %v; want the quota and 1 error", name, state, err)
	}
	if _, err := a.kv.Range(t.Context(), &pb.RangeRequest{Key: []byte("0")}); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// makeRoom deletes all keys, compacts and defragments.
func makeRoom(t *testing.T, name string, a *api) {
	t.Helper()
	deleted, err := a.kv.DeleteRange(t.Context(), &pb.DeleteRangeRequest{Key: []byte{0}, RangeEnd: []byte{0}})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if _, err := a.kv.Compact(t.Context(), compactRequest(deleted.Header.Revision)); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if _, err := a.maintenance.Defragment(t.Context(), &pb.DefragmentRequest{}); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	state, err := a.maintenance.Status(t.Context(), &pb.StatusRequest{})
	if err != nil || state.DbSize > 2_000_000 {
		t.Fatalf("%s: status %v, error %v; want a size of at most 2 MB", name, state, err)
	}
}

func TestDowngradeAndMoveLeaderAsEtcd(t *testing.T) {
	b := &both{t: t, etcd: startEtcd(t).dial(), ours: startMemEtcd(t, "--wal-mode", "none").dial()}
	waitStorageVersion(t, b.etcd)
	for _, version := range []string{"3.6", "3.6.0", "3.6.9", "3.5", "3.7", "3.8.0", "", "x", "3", "3.6.x", "3.6.0-rc.1", "3.6-rc"} {
		_, _ = b.send(&pb.DowngradeRequest{Action: pb.DowngradeRequest_VALIDATE, Version: version})
	}
	b.must(&pb.DowngradeRequest{Action: pb.DowngradeRequest_CANCEL})
	_, _ = b.send(&pb.DowngradeRequest{Action: pb.DowngradeRequest_ENABLE, Version: "3.4"})
	_, _ = b.send(&pb.DowngradeRequest{Action: 9})
	_, _ = b.send(&pb.MoveLeaderRequest{TargetID: 1})
	for name, a := range map[string]*api{"etcd": b.etcd, "mem_etcd": b.ours} {
		state, err := a.maintenance.Status(t.Context(), &pb.StatusRequest{})
		if err != nil || state.DowngradeInfo.Enabled || state.StorageVersion != "3.7.0" || state.IsLearner {
			t.Fatalf("%s: status %v, error %v; want no downgrade, storage version 3.7.0 and no learner", name, state, err)
		}
		if _, err := a.maintenance.MoveLeader(t.Context(), &pb.MoveLeaderRequest{TargetID: state.Leader}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	b.must(&pb.DowngradeRequest{Action: pb.DowngradeRequest_ENABLE, Version: "3.6"})
	_, _ = b.send(&pb.DowngradeRequest{Action: pb.DowngradeRequest_ENABLE, Version: "3.6"})
	state, err := b.ours.maintenance.Status(t.Context(), &pb.StatusRequest{})
	if err != nil || !state.DowngradeInfo.Enabled || state.DowngradeInfo.TargetVersion != "3.6.0" {
		t.Fatalf("status %v, error %v; want a downgrade to 3.6.0", state, err)
	}
}

// waitStorageVersion waits until etcd has migrated its storage from version 3.5.0, with which a new member
// starts. A monitor checks every few seconds whether the cluster version allows it.
func waitStorageVersion(t *testing.T, etcd *api) {
	t.Helper()
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(10 * time.Millisecond) {
		state, err := etcd.maintenance.Status(t.Context(), &pb.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if state.StorageVersion == "3.7.0" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("etcd's storage version is still %q", state.StorageVersion)
		}
	}
}

// TestSnapshotStream takes a snapshot during writes, while another snapshot is open that its client does
// not read. The writes and the snapshot must succeed, and the snapshot must have the correct hash.
func TestSnapshotStream(t *testing.T) {
	server := startMemEtcd(t, "--wal-mode", "none")
	a := server.dial()
	for i := range 300 {
		if _, err := a.kv.Put(t.Context(), &pb.PutRequest{Key: fmt.Appendf(nil, "key-%d", i), Value: make([]byte, 100_000)}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	unread, err := a.maintenance.Snapshot(ctx, &pb.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unread.Recv(); err != nil {
		t.Fatal(err)
	}
	file := readSnapshot(t, server.dial(), func() {
		if _, err := a.kv.Put(t.Context(), putRequest("key-0", "meanwhile")); err != nil {
			t.Fatal(err)
		}
	})
	if len(file) < 30_000_000 || len(file)%512 != 32 {
		t.Fatalf("the snapshot has %d bytes; want at least 30,000,000, and 32 more than a multiple of 512", len(file))
	}
	content, hash := file[:len(file)-32], file[len(file)-32:]
	if sum := sha256.Sum256(content); string(sum[:]) != string(hash) {
		t.Fatal("the hash of the snapshot is wrong")
	}
	state, err := a.maintenance.Status(t.Context(), &pb.StatusRequest{})
	if err != nil || state.Header.Revision < 302 {
		t.Fatalf("status %v, error %v; want at least revision 302", state, err)
	}
}

// readSnapshot takes a snapshot and returns its bytes. It calls meanwhile after each message.
func readSnapshot(t *testing.T, a *api, meanwhile func()) []byte {
	t.Helper()
	stream, err := a.maintenance.Snapshot(t.Context(), &pb.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var file []byte
	last := &pb.SnapshotResponse{RemainingBytes: 1}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if part.Version != "3.7.0" {
			t.Fatalf("a snapshot message has version %q; want 3.7.0", part.Version)
		}
		file = append(file, part.Blob...)
		last = part
		meanwhile()
	}
	if last.RemainingBytes != 0 {
		t.Fatalf("the last snapshot message has %d remaining bytes; want 0", last.RemainingBytes)
	}
	return file
}

// waitFor waits until done returns true, and fails the test after startTimeout.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Fatalf("timed out waiting for %s after %v", what, startTimeout)
}

// page returns the status code and the content of a page. The lines are sorted, because etcd lists its
// health checks in random order.
func page(t *testing.T, address, path string) string {
	t.Helper()
	response, err := http.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(strings.ReplaceAll(string(body), " ", "_"))
	slices.Sort(lines)
	return fmt.Sprint(response.StatusCode, lines)
}

// TestPagesAsEtcd compares the health and version pages with etcd's, without an alarm and with each alarm.
// Some paths exclude NOSPACE, as kubeadm's probes do.
func TestPagesAsEtcd(t *testing.T) {
	etcd, ours := startEtcd(t), startMemEtcd(t, "--wal-mode", "none")
	b := &both{t: t, etcd: etcd.dial(), ours: ours.dial()}
	for _, kind := range []pb.AlarmType{pb.AlarmType_NONE, pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT} {
		b.must(&pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: 7, Alarm: kind})
		for _, path := range []string{
			"/health", "/health?exclude=NOSPACE&serializable=true", "/health?exclude=NOSPACE&exclude=CORRUPT",
			"/livez", "/livez?verbose", "/livez/serializable_read", "/livez/unknown",
			"/readyz", "/readyz?verbose", "/readyz?exclude=data_corruption&verbose=1", "/readyz/data_corruption",
			"/readyz/linearizable_read?verbose", "/readyz/non_learner", "/version",
		} {
			want, got := page(t, etcd.address, path), page(t, ours.address, path)
			if want != got {
				t.Errorf("%s with alarm %v\netcd     %s\nmem_etcd %s", path, kind, want, got)
			}
		}
		b.must(&pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: 7, Alarm: kind})
	}
}
