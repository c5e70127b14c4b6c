package store

import (
	"context"
	"crypto/tls"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

const leasePrefix = "/registry/leases/kube-node-lease/"

// allLeases is what the keys of all Leases begin with, which lease-watcher may read.
const allLeases = "/registry/leases/"

// startEtcdTLS starts etcd with the certificates in dir, and a user for each of the names root and apiserver with all
// permissions, and kube-gateway, which is limited to leasePrefix.
func startEtcdTLS(t *testing.T, dir string) *server {
	t.Helper()
	address, peer := fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	metrics := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	s := &server{t: t, address: metrics, args: []string{
		"--data-dir", filepath.Join(t.TempDir(), "data"), "--log-level", "error",
		"--listen-client-urls", "https://" + address, "--advertise-client-urls", "https://" + address,
		"--listen-metrics-urls", "http://" + metrics,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
		"--cert-file", filepath.Join(dir, "server.crt"), "--key-file", filepath.Join(dir, "server.key"),
		"--trusted-ca-file", filepath.Join(dir, "ca.crt"), "--client-cert-auth",
	}}
	s.start(binary(t, "etcd"))
	s.address = address
	addUsersWithCertificates(t, address, dir)
	return s
}

// dialTLS returns the API of a server for a client with this TLS configuration.
func dialTLS(t *testing.T, address string, config *tls.Config) *api {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return newAPI(conn)
}

// limitedCalls calls methods as a limited client, and returns the outcome of each.
func limitedCalls(ctx context.Context, client *api) []string {
	var outcomes []string
	add := func(call string, err error) {
		s, _ := status.FromError(err)
		outcomes = append(outcomes, fmt.Sprintf("%s: %v %s", call, s.Code(), s.Message()))
	}
	ranges := [][2]string{
		{leasePrefix + "a", ""}, {leasePrefix, leasePrefix[:len(leasePrefix)-1] + "0"}, {leasePrefix, "\x00"}, {"\x00", "\x00"},
		{allLeases, "/registry/leases0"}, {"/registry/pods/a", ""}, {leasePrefix, "/registry/z"},
		{leasePrefix[:len(leasePrefix)-1], ""}, {"", "\x00"},
	}
	for _, r := range ranges {
		key, end := []byte(r[0]), []byte(r[1])
		name := fmt.Sprintf("%q %q", r[0], r[1])
		_, err := client.kv.Range(ctx, &pb.RangeRequest{Key: key, RangeEnd: end})
		add("range "+name, err)
		_, err = client.kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: key, RangeEnd: end, PrevKv: true})
		add("delete "+name, err)
		_, err = client.kv.Put(ctx, &pb.PutRequest{Key: key, Value: []byte("v"), PrevKv: true})
		add("put "+name, err)
		compare := &pb.Compare{Key: key, RangeEnd: end, TargetUnion: &pb.Compare_Version{}}
		_, err = client.kv.Txn(ctx, &pb.TxnRequest{Compare: []*pb.Compare{compare}})
		add("compare "+name, err)
		read := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key, RangeEnd: end}}}
		_, err = client.kv.Txn(ctx, &pb.TxnRequest{Failure: []*pb.RequestOp{read}})
		add("range in txn "+name, err)
		write := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key}}}
		nested := &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{Failure: []*pb.RequestOp{write}}}}
		_, err = client.kv.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{nested}})
		add("put in nested txn "+name, err)
		add("watch "+name, watchOnce(ctx, client, &pb.WatchCreateRequest{Key: key, RangeEnd: end}))
	}
	_, err := client.kv.Compact(ctx, &pb.CompactionRequest{Revision: 1})
	add("compact", err)
	snapshot, err := client.maintenance.Snapshot(ctx, &pb.SnapshotRequest{})
	if err == nil {
		_, err = snapshot.Recv()
	}
	add("snapshot", err)
	_, err = client.maintenance.Hash(ctx, &pb.HashRequest{})
	add("hash", err)
	_, err = client.maintenance.HashKV(ctx, &pb.HashKVRequest{})
	add("hashkv", err)
	_, err = client.maintenance.Defragment(ctx, &pb.DefragmentRequest{})
	add("defragment", err)
	_, err = client.maintenance.MoveLeader(ctx, &pb.MoveLeaderRequest{})
	add("move leader", err)
	_, err = client.maintenance.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE})
	add("alarm", err)
	_, err = client.maintenance.Status(ctx, &pb.StatusRequest{})
	add("status", err)
	_, err = pb.NewAuthClient(client.conn).UserAdd(ctx, &pb.AuthUserAddRequest{Name: "x", Options: &authpb.UserAddOptions{NoPassword: true}})
	add("user add", err)
	_, err = pb.NewAuthClient(client.conn).AuthDisable(ctx, &pb.AuthDisableRequest{})
	add("auth disable", err)
	return outcomes
}

// watchOnce creates a watch, and returns the reason as an error if it is cancelled at once.
func watchOnce(ctx context.Context, client *api, create *pb.WatchCreateRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.watch.Watch(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}}); err != nil {
		return err
	}
	response, err := stream.Recv()
	if err == nil && response.Canceled {
		err = fmt.Errorf("created %v, watch %d: %s", response.Created, response.WatchId, response.CancelReason)
	}
	return err
}

// TestLimitedClient compares the outcomes of calls of a client that is limited to a prefix with those of etcd's
// users and roles, and checks that other clients are not limited.
func TestLimitedClient(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, filepath.Join(dir, "ca.crt"))
	for _, name := range []string{"server", "root", "apiserver", "kube-gateway", "lease-watcher"} {
		ca.issue(t, dir, name)
	}
	memEtcd := startTLS(t, dir, "--client-cert-permission", "kube-gateway=readwrite:"+leasePrefix,
		"--client-cert-permission", "lease-watcher=readwrite:"+leasePrefix, "--client-cert-permission", "lease-watcher=read:"+allLeases)
	etcd := startEtcdTLS(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	var outcomes [2][]string
	for i, server := range []*server{memEtcd, etcd} {
		apiServer := dialTLS(t, server.address, clientTLS(t, ca, dir, "apiserver"))
		for _, key := range []string{leasePrefix + "a", "/registry/pods/a"} {
			if _, err := apiServer.kv.Put(ctx, &pb.PutRequest{Key: []byte(key), Value: []byte("v")}); err != nil {
				t.Fatal(err)
			}
		}
		// The second one has a read permission for a prefix of the keys that it may write.
		for _, name := range []string{"kube-gateway", "lease-watcher"} {
			outcomes[i] = append(outcomes[i], limitedCalls(ctx, dialTLS(t, server.address, clientTLS(t, ca, dir, name)))...)
		}
		all := &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}
		if response, err := apiServer.kv.Range(ctx, all); err != nil || len(response.Kvs) == 0 {
			t.Errorf("the other client reads %v (error %v), want all keys", response, err)
		}
	}
	denied := 0
	for i := range outcomes[0] {
		if outcomes[0][i] != outcomes[1][i] {
			t.Errorf("mem_etcd: %s\n   etcd: %s", outcomes[0][i], outcomes[1][i])
		}
		if strings.Contains(outcomes[0][i], "PermissionDenied etcdserver: permission denied") {
			denied++
		}
	}
	if denied < 76 {
		t.Errorf("%d calls were denied, want at least 76: %s", denied, strings.Join(outcomes[0], "\n"))
	}
}
