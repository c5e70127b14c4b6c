package store

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// cheapHashes are flags of both servers with which hashing a password takes little time.
var cheapHashes = []string{"--bcrypt-cost", "4"}

// authPeer is a server with users, and the tokens of its users.
type authPeer struct {
	t      *testing.T
	name   string
	server *server
	api    *api
	tokens map[string]string
}

func newAuthPeer(t *testing.T, name string, server *server) *authPeer {
	return &authPeer{t, name, server, server.dial(), map[string]string{}}
}

// twoAuthPeers starts etcd and mem_etcd with these flags.
func twoAuthPeers(t *testing.T, flags ...string) []*authPeer {
	t.Helper()
	flags = append(flags, cheapHashes...)
	return []*authPeer{
		newAuthPeer(t, "etcd", startEtcd(t, flags...)),
		newAuthPeer(t, "mem_etcd", startMemEtcd(t, append([]string{"--wal-mode", "none"}, flags...)...)),
	}
}

// context returns a context for calls of a user. The user "" sends no token; a user without a stored token sends an
// invalid one.
func (p *authPeer) context(user string) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	p.t.Cleanup(cancel)
	if user == "" {
		return ctx
	}
	token, ok := p.tokens[user]
	if !ok {
		token = "invalid.1"
	}
	return metadata.AppendToOutgoingContext(ctx, "token", token)
}

// unaryMethods are the methods of etcd's services with one request and one response, by the full names of their
// requests.
var unaryMethods = func() map[protoreflect.FullName]protoreflect.MethodDescriptor {
	methods := map[protoreflect.FullName]protoreflect.MethodDescriptor{}
	services := pb.File_rpc_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			method := services.Get(i).Methods().Get(j)
			if !method.IsStreamingClient() && !method.IsStreamingServer() {
				methods[method.Input().FullName()] = method
			}
		}
	}
	return methods
}()

// call calls the method with this request as a user.
func (p *authPeer) call(user string, request proto.Message) (proto.Message, error) {
	p.t.Helper()
	method := unaryMethods[request.ProtoReflect().Descriptor().FullName()]
	if method == nil {
		p.t.Fatalf("no method has the request %T", request)
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(method.Output().FullName())
	if err != nil {
		p.t.Fatal(err)
	}
	response := kind.New().Interface()
	path := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	err = p.api.conn.Invoke(p.context(user), path, request, response)
	return response, err
}

// must is call, and fails the test if the call fails.
func (p *authPeer) must(user string, request proto.Message) proto.Message {
	p.t.Helper()
	response, err := p.call(user, request)
	if err != nil {
		p.t.Fatalf("%s: %T as %q: %v", p.name, request, user, err)
	}
	return response
}

// login stores a token of a user.
func (p *authPeer) login(user, password string) {
	p.t.Helper()
	response := p.must("", &pb.AuthenticateRequest{Name: user, Password: password})
	p.tokens[user] = response.(*pb.AuthenticateResponse).Token
}

// outcome returns the response or the error as text, without what differs between servers.
func outcome(response proto.Message, err error) string {
	if err != nil {
		s, _ := status.FromError(err)
		return fmt.Sprintf("%v: %s", s.Code(), s.Message())
	}
	message := proto.Clone(response).ProtoReflect()
	if field := message.Descriptor().Fields().ByName("header"); field != nil && message.Has(field) {
		revision := message.Get(field).Message().Interface().(*pb.ResponseHeader).Revision
		message.Set(field, protoreflect.ValueOfMessage((&pb.ResponseHeader{Revision: revision}).ProtoReflect()))
	}
	if field := message.Descriptor().Fields().ByName("token"); field != nil {
		message.Clear(field)
	}
	return prototext.MarshalOptions{}.Format(message.Interface())
}

// authStep is a call as a user.
type authStep struct {
	user    string
	request proto.Message
}

// compareSteps makes the calls with all peers, and compares the outcomes. It returns the number of errors.
func compareSteps(t *testing.T, peers []*authPeer, steps []authStep) int {
	t.Helper()
	errors := 0
	for i, step := range steps {
		wantResponse, wantErr := peers[0].call(step.user, step.request)
		want := outcome(wantResponse, wantErr)
		if wantErr != nil {
			errors++
		}
		for _, peer := range peers[1:] {
			if got := outcome(peer.call(step.user, step.request)); got != want {
				t.Errorf("step %d, %T %v as %q\n%s: %s\n%s: %s", i, step.request, step.request, step.user, peers[0].name, want, peer.name, got)
			}
		}
	}
	return errors
}

func userAdd(name, password string) *pb.AuthUserAddRequest {
	return &pb.AuthUserAddRequest{Name: name, Password: password}
}

func grantRole(user, role string) *pb.AuthUserGrantRoleRequest {
	return &pb.AuthUserGrantRoleRequest{User: user, Role: role}
}

func grantPermission(role string, kind authpb.Permission_Type, key, end string) *pb.AuthRoleGrantPermissionRequest {
	permission := &authpb.Permission{PermType: kind, Key: []byte(key), RangeEnd: []byte(end)}
	return &pb.AuthRoleGrantPermissionRequest{Name: role, Perm: permission}
}

func revokePermission(role, key, end string) *pb.AuthRoleRevokePermissionRequest {
	return &pb.AuthRoleRevokePermissionRequest{Role: role, Key: []byte(key), RangeEnd: []byte(end)}
}

// managementSteps change users and roles in all ways, while authentication is disabled.
func managementSteps() []authStep {
	noPassword := &authpb.UserAddOptions{NoPassword: true}
	requests := []proto.Message{
		&pb.AuthStatusRequest{},
		&pb.AuthenticateRequest{Name: "root", Password: "pw"},
		&pb.AuthEnableRequest{}, &pb.AuthDisableRequest{},
		userAdd("", "pw"), userAdd("u", "pw"), userAdd("u", "other"), userAdd("root", "pw"),
		userAdd("long", strings.Repeat("x", 73)), userAdd("long", strings.Repeat("x", 72)), userAdd("empty", ""),
		&pb.AuthUserAddRequest{Name: "cert", Password: "ignored", Options: noPassword},
		&pb.AuthUserAddRequest{Name: "hashed", HashedPassword: "ignored"},
		&pb.AuthEnableRequest{},
		&pb.AuthUserGetRequest{Name: "u"}, &pb.AuthUserGetRequest{Name: "nobody"}, &pb.AuthUserListRequest{},
		&pb.AuthUserChangePasswordRequest{Name: "nobody", Password: "pw"},
		&pb.AuthUserChangePasswordRequest{Name: "u", Password: "pw2"},
		&pb.AuthUserChangePasswordRequest{Name: "u", Password: strings.Repeat("x", 73)},
		&pb.AuthUserChangePasswordRequest{Name: "hashed", HashedPassword: "no base64!"},
		&pb.AuthUserChangePasswordRequest{Name: "nobody", HashedPassword: "no base64!"},
		&pb.AuthUserChangePasswordRequest{Name: "cert", HashedPassword: "no base64!"},
		&pb.AuthUserChangePasswordRequest{Name: "empty"},
		&pb.AuthUserDeleteRequest{Name: "nobody"}, &pb.AuthUserDeleteRequest{Name: "hashed"},
		&pb.AuthRoleAddRequest{}, &pb.AuthRoleAddRequest{Name: "r"}, &pb.AuthRoleAddRequest{Name: "r"},
		&pb.AuthRoleAddRequest{Name: "s"}, &pb.AuthRoleAddRequest{Name: "gone"},
		&pb.AuthRoleGetRequest{Role: "r"}, &pb.AuthRoleGetRequest{Role: "nothing"}, &pb.AuthRoleGetRequest{Role: "root"},
		&pb.AuthRoleListRequest{},
		&pb.AuthRoleGrantPermissionRequest{Name: "r"},
		grantPermission("nothing", authpb.Permission_READ, "a", ""), grantPermission("r", authpb.Permission_READ, "", ""),
		grantPermission("r", authpb.Permission_READ, "b", "a"), grantPermission("r", authpb.Permission_READ, "a", "a"),
		grantPermission("r", authpb.Permission_READ, "b", "d"), grantPermission("r", authpb.Permission_WRITE, "b", "d"),
		grantPermission("r", authpb.Permission_READWRITE, "b", "c"), grantPermission("r", authpb.Permission_READ, "b", "d"),
		grantPermission("r", authpb.Permission_READ, "a", ""), grantPermission("r", 7, "x", "y"),
		grantPermission("s", authpb.Permission_READWRITE, "m", "\x00"),
		&pb.AuthRoleGetRequest{Role: "r"},
		revokePermission("r", "a", "b"), revokePermission("r", "b", "d"), revokePermission("nothing", "a", ""),
		revokePermission("r", "b", "c"), revokePermission("r", "a", ""), revokePermission("r", "x", "y"),
		&pb.AuthRoleGetRequest{Role: "r"},
		grantRole("nobody", "r"), grantRole("u", "nothing"), grantRole("u", "s"), grantRole("u", "r"), grantRole("u", "r"),
		grantRole("u", "gone"), &pb.AuthUserGetRequest{Name: "u"},
		&pb.AuthUserRevokeRoleRequest{Name: "nobody", Role: "r"}, &pb.AuthUserRevokeRoleRequest{Name: "u", Role: "nothing"},
		&pb.AuthUserRevokeRoleRequest{Name: "u", Role: "s"}, &pb.AuthRoleDeleteRequest{Role: "nothing"},
		&pb.AuthRoleDeleteRequest{Role: "gone"}, &pb.AuthUserGetRequest{Name: "u"},
		&pb.AuthRoleAddRequest{Name: "root"}, grantRole("root", "root"), &pb.AuthRoleGetRequest{Role: "root"},
		&pb.AuthRoleDeleteRequest{Role: "root"}, &pb.AuthUserDeleteRequest{Name: "root"}, &pb.AuthEnableRequest{},
		userAdd("root", "pw"), &pb.AuthEnableRequest{}, grantRole("root", "root"), &pb.AuthRoleAddRequest{Name: "root"},
		&pb.AuthStatusRequest{}, &pb.AuthUserListRequest{}, &pb.AuthRoleListRequest{},
	}
	steps := make([]authStep, len(requests))
	for i, request := range requests {
		steps[i].request = request
	}
	return steps
}

// TestUsersAndRolesAsEtcd compares all changes of users and roles with etcd's, while authentication is disabled, then
// while it is enabled.
func TestUsersAndRolesAsEtcd(t *testing.T) {
	peers := twoAuthPeers(t)
	if errors := compareSteps(t, peers, managementSteps()); errors < 25 {
		t.Errorf("only %d calls fail", errors)
	}
	enable := []authStep{{"", &pb.AuthEnableRequest{}}}
	compareSteps(t, peers, enable)
	compareSteps(t, peers, []authStep{
		{"", &pb.AuthStatusRequest{}}, {"invalid", &pb.AuthStatusRequest{}},
		{"", &pb.AuthenticateRequest{}}, {"", &pb.AuthenticateRequest{Name: "nobody", Password: "pw"}},
		{"", &pb.AuthenticateRequest{Name: "u", Password: "pw"}}, {"", &pb.AuthenticateRequest{Name: "cert", Password: "pw"}},
		{"", &pb.AuthenticateRequest{Name: "u"}}, {"", &pb.AuthenticateRequest{Name: "empty"}},
		{"", &pb.AuthenticateRequest{Name: "long", Password: strings.Repeat("x", 72)}},
		{"", &pb.AuthenticateRequest{Name: "long", Password: strings.Repeat("x", 80)}},
		{"", &pb.AuthenticateRequest{Name: "u", Password: "pw2"}}, {"invalid", &pb.AuthenticateRequest{Name: "u", Password: "pw2"}},
	})
	for _, peer := range peers {
		peer.login("root", "pw")
		peer.login("u", "pw2")
	}
	compareSteps(t, peers, []authStep{
		{"root", &pb.AuthEnableRequest{}}, {"root", &pb.AuthUserDeleteRequest{Name: "root"}},
		{"root", &pb.AuthUserRevokeRoleRequest{Name: "root", Role: "root"}}, {"root", &pb.AuthRoleDeleteRequest{Role: "root"}},
		{"root", grantRole("u", "s")}, {"root", &pb.AuthUserGetRequest{Name: "u"}},
		{"u", &pb.AuthUserGetRequest{Name: "u"}}, {"u", &pb.AuthUserGetRequest{Name: "root"}}, {"u", &pb.AuthUserGetRequest{Name: "nobody"}},
		{"u", &pb.AuthRoleGetRequest{Role: "r"}}, {"u", &pb.AuthRoleGetRequest{Role: "root"}}, {"u", &pb.AuthRoleGetRequest{Role: "nothing"}},
		{"", &pb.AuthUserGetRequest{}}, {"", &pb.AuthUserGetRequest{Name: "u"}}, {"", &pb.AuthRoleGetRequest{Role: "r"}},
		// Changing the password or deleting the user makes the tokens invalid.
		{"root", &pb.AuthUserChangePasswordRequest{Name: "u", Password: "pw3"}}, {"u", &pb.AuthUserGetRequest{Name: "u"}},
		{"", &pb.AuthenticateRequest{Name: "u", Password: "pw2"}}, {"", &pb.AuthenticateRequest{Name: "u", Password: "pw3"}},
	})
	for _, peer := range peers {
		peer.login("u", "pw3")
	}
	compareSteps(t, peers, []authStep{
		{"u", &pb.AuthStatusRequest{}}, {"root", &pb.AuthUserDeleteRequest{Name: "u"}}, {"u", &pb.AuthStatusRequest{}},
		{"root", &pb.AuthDisableRequest{}}, {"", &pb.AuthUserListRequest{}}, {"invalid", &pb.AuthUserListRequest{}},
	})
	compareSteps(t, peers, enable)
	// The tokens from before are invalid.
	compareSteps(t, peers, []authStep{{"root", &pb.AuthUserListRequest{}}, {"", &pb.AuthStatusRequest{}}})
}

// limitUser adds the user root, and a user u who may read r/, write w/ and both b/ and everything from z on. The keys
// r/1, w/1, b/1 and x exist; b/1 has lease 1, x has lease 2, and lease 3 has no key. Authentication is enabled.
func (p *authPeer) limitUser() {
	p.t.Helper()
	for id := range int64(3) {
		p.must("", &pb.LeaseGrantRequest{ID: id + 1, TTL: 5000})
	}
	for i, key := range []string{"r/1", "b/1", "x", "w/1"} {
		p.must("", &pb.PutRequest{Key: []byte(key), Value: []byte("v"), Lease: []int64{0, 1, 2, 0}[i]})
	}
	for _, request := range []proto.Message{
		userAdd("root", "pw"), userAdd("u", "pw"), &pb.AuthRoleAddRequest{Name: "root"}, &pb.AuthRoleAddRequest{Name: "r"},
		grantPermission("r", authpb.Permission_READ, "r/", "r0"), grantPermission("r", authpb.Permission_WRITE, "w/", "w0"),
		grantPermission("r", authpb.Permission_READWRITE, "b/", "b0"), grantPermission("r", authpb.Permission_READWRITE, "z", "\x00"),
		grantPermission("r", authpb.Permission_READ, "t/1", ""), grantPermission("r", authpb.Permission_READ, "t/1\x00", "t/5"),
		grantRole("root", "root"), grantRole("u", "r"), &pb.AuthEnableRequest{},
	} {
		p.must("", request)
	}
	for _, user := range []string{"root", "u"} {
		p.login(user, "pw")
	}
}

// limitedKeys are ranges of keys that lie inside, outside, and at the borders of the permissions of the user u.
var limitedKeys = [][2]string{
	{"r/1", ""}, {"w/1", ""}, {"b/1", ""}, {"x", ""}, {"z", ""}, {"zz", "\x00"}, {"z", "\x00"}, {"y", "\x00"}, {"\x00", "\x00"},
	{"r/", "r0"}, {"r/", "r1"}, {"w/", "w0"}, {"b/", "b0"}, {"b/", "c"}, {"b", "b0"}, {"b/2", "b/1"}, {"x", "w"}, {"b/1", "b/1"},
	{"t/1", "t/5"}, {"t/1", "t/6"}, {"t/1", "t/1\x00"}, {"t/4", "t/5"}, {"", ""}, {"", "\x00"},
}

func op(request any) *pb.RequestOp {
	switch r := request.(type) {
	case *pb.RangeRequest:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
	case *pb.PutRequest:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: r}}
	case *pb.DeleteRangeRequest:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}
	case *pb.TxnRequest:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: r}}
	default:
		panic(fmt.Sprintf("no operation has the request %T", request))
	}
}

// keyRequests are requests that touch a range of keys in all ways.
func keyRequests(key, end []byte) []proto.Message {
	operations := []any{
		&pb.RangeRequest{Key: key, RangeEnd: end}, &pb.PutRequest{Key: key}, &pb.PutRequest{Key: key, PrevKv: true},
		&pb.PutRequest{Key: key, Lease: 1}, &pb.PutRequest{Key: key, Lease: 2}, &pb.PutRequest{Key: key, Lease: 3}, &pb.PutRequest{Key: key, Lease: 9},
		&pb.PutRequest{Key: key, IgnoreValue: true}, &pb.DeleteRangeRequest{Key: key, RangeEnd: end},
		&pb.DeleteRangeRequest{Key: key, RangeEnd: end, PrevKv: true},
	}
	compare := &pb.Compare{Key: key, RangeEnd: end, TargetUnion: &pb.Compare_Version{}}
	requests := []proto.Message{
		&pb.RangeRequest{Key: key, RangeEnd: end, CountOnly: true}, &pb.RangeRequest{Key: key, RangeEnd: end, Serializable: true},
		&pb.RangeRequest{Key: key, RangeEnd: end, Revision: 1000}, &pb.TxnRequest{Compare: []*pb.Compare{compare}},
		&pb.TxnRequest{Compare: []*pb.Compare{compare}, Success: []*pb.RequestOp{op(&pb.PutRequest{Key: []byte("b/1")})}},
	}
	for _, operation := range operations {
		one := []*pb.RequestOp{op(operation)}
		nested := []*pb.RequestOp{op(&pb.TxnRequest{Failure: one})}
		requests = append(requests, operation.(proto.Message), &pb.TxnRequest{Success: one}, &pb.TxnRequest{Failure: one},
			&pb.TxnRequest{Success: nested, Failure: []*pb.RequestOp{op(&pb.RangeRequest{Key: []byte("r/1")})}})
	}
	return requests
}

// TestKeyPermissionsAsEtcd compares the answers to requests for keys with etcd's, for clients without a token, with an
// invalid one, and for two users.
func TestKeyPermissionsAsEtcd(t *testing.T) {
	peers := twoAuthPeers(t)
	for _, peer := range peers {
		peer.limitUser()
	}
	denied := 0
	for _, keys := range limitedKeys {
		for _, user := range []string{"", "invalid", "u", "root"} {
			var steps []authStep
			for _, request := range keyRequests([]byte(keys[0]), []byte(keys[1])) {
				steps = append(steps, authStep{user, request})
			}
			errors := compareSteps(t, peers, steps)
			if user == "u" {
				denied += errors
			}
			compareStreams(t, peers[0], peers[1], user, keys)
		}
	}
	if denied < 200 {
		t.Errorf("only %d requests of the limited user were denied", denied)
	}
	// A transaction without operations needs no permission.
	compareSteps(t, peers, []authStep{{"", &pb.TxnRequest{}}, {"u", &pb.TxnRequest{}}, {"invalid", &pb.TxnRequest{}}})
}

// compareStreams compares watches and streamed ranges of keys.
func compareStreams(t *testing.T, etcd, ours *authPeer, user string, keys [2]string) {
	t.Helper()
	var outcomes [2]string
	for i, peer := range []*authPeer{etcd, ours} {
		create := &pb.WatchCreateRequest{Key: []byte(keys[0]), RangeEnd: []byte(keys[1])}
		watch := watchOnce(peer.context(user), peer.api, create)
		create.StartRevision = -1
		negative := watchOnce(peer.context(user), peer.api, create)
		_, err := rangeStream(peer.context(user), peer.api, &pb.RangeRequest{Key: []byte(keys[0]), RangeEnd: []byte(keys[1])})
		outcomes[i] = fmt.Sprintf("watch: %v; from a negative revision: %v; range stream: %s", watch, negative, outcome(&pb.RangeResponse{}, err))
	}
	if outcomes[0] != outcomes[1] {
		t.Errorf("keys %q as %q\netcd: %s\nmem_etcd: %s", keys, user, outcomes[0], outcomes[1])
	}
}

// TestMethodPermissionsAsEtcd calls every method as every kind of client, and compares the errors with etcd's.
func TestMethodPermissionsAsEtcd(t *testing.T) {
	peers := twoAuthPeers(t)
	for _, peer := range peers {
		peer.limitUser()
	}
	// Requests with fields that are needed to get beyond the validation.
	filled := map[string]proto.Message{
		"MemberAdd": &pb.MemberAddRequest{PeerURLs: []string{"http://127.0.0.1:1"}},
		"Alarm":     &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE},
		"Compact":   &pb.CompactionRequest{Revision: 1000},
	}
	called := 0
	for input, method := range unaryMethods {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(input)
		if err != nil {
			t.Fatal(err)
		}
		name := string(method.Name())
		requests := []proto.Message{kind.New().Interface()}
		if request := filled[name]; request != nil {
			requests = append(requests, request)
		}
		if name == "MemberAdd" {
			requests = requests[1:]
		}
		for _, user := range []string{"", "invalid", "u", "root"} {
			if user == "root" && (strings.HasPrefix(name, "Member") || name == "AuthDisable") {
				continue // mem_etcd has one member
			}
			for _, request := range requests {
				var errs [2]string
				for i, peer := range peers {
					_, err := peer.call(user, request)
					errs[i] = outcome(&pb.RangeResponse{}, err)
				}
				if errs[0] != errs[1] {
					t.Errorf("%s as %q\netcd: %s\nmem_etcd: %s", name, user, errs[0], errs[1])
				}
				called++
			}
		}
	}
	if called < 150 {
		t.Errorf("only %d calls", called)
	}
	for _, user := range []string{"", "invalid", "u", "root"} {
		var errs [2]string
		for i, peer := range peers {
			snapshot, err := peer.api.maintenance.Snapshot(peer.context(user), &pb.SnapshotRequest{})
			if err == nil {
				_, err = snapshot.Recv()
			}
			errs[i] = outcome(&pb.RangeResponse{}, err)
		}
		if errs[0] != errs[1] {
			t.Errorf("Snapshot as %q\netcd: %s\nmem_etcd: %s", user, errs[0], errs[1])
		}
	}
}

// keepAlive renews a lease once.
func (p *authPeer) keepAlive(user string, id int64) error {
	stream, err := p.api.lease.LeaseKeepAlive(p.context(user))
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: id}); err != nil {
		return err
	}
	response, err := stream.Recv()
	if err == nil {
		err = fmt.Errorf("lease %d has TTL %d", response.ID, response.TTL)
	}
	return err
}

// TestLeasePermissionsAsEtcd compares what users may do with leases that have keys.
func TestLeasePermissionsAsEtcd(t *testing.T) {
	peers := twoAuthPeers(t)
	for _, peer := range peers {
		peer.limitUser()
	}
	ids := []int64{1, 2, 3, 99}
	for _, user := range []string{"", "invalid", "u", "root"} {
		for _, id := range ids {
			var errs [2]string
			for i, peer := range peers {
				_, err := peer.call(user, &pb.LeaseTimeToLiveRequest{ID: id})
				errs[i] = outcome(&pb.LeaseTimeToLiveResponse{}, err)
				ttl, err := peer.call(user, &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
				errs[i] += fmt.Sprintf("; with keys %q %s", ttl.(*pb.LeaseTimeToLiveResponse).Keys, outcome(&pb.LeaseTimeToLiveResponse{}, err))
				errs[i] += fmt.Sprintf("; keep alive: %v", peer.keepAlive(user, id))
			}
			if errs[0] != errs[1] {
				t.Errorf("lease %d as %q\netcd: %s\nmem_etcd: %s", id, user, errs[0], errs[1])
			}
		}
	}
	grant := &pb.LeaseGrantRequest{ID: 7, TTL: 5000}
	compareSteps(t, peers, []authStep{
		{"u", &pb.LeaseLeasesRequest{}}, {"", &pb.LeaseLeasesRequest{}}, {"invalid", &pb.LeaseLeasesRequest{}},
		{"", grant}, {"u", grant}, {"", &pb.LeaseRevokeRequest{ID: 3}}, {"u", &pb.LeaseRevokeRequest{ID: 2}}, {"u", &pb.LeaseRevokeRequest{ID: 99}},
		{"u", &pb.LeaseRevokeRequest{ID: 1}}, {"u", &pb.LeaseRevokeRequest{ID: 3}}, {"root", &pb.LeaseRevokeRequest{ID: 2}},
		{"u", &pb.LeaseLeasesRequest{}}, {"root", &pb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}}},
	})
}

// TestEtcdctlAuthAsEtcd runs etcdctl's commands for users and roles with both servers, and compares the outputs.
func TestEtcdctlAuthAsEtcd(t *testing.T) {
	ctls := []*ctl{
		{t, "etcd", startEtcd(t, cheapHashes...), map[string]string{}},
		{t, "mem_etcd", startMemEtcd(t, cheapHashes...), map[string]string{}},
	}
	for _, step := range []struct{ command, stdin string }{
		{"auth status", ""},
		{"auth enable", ""},
		{"user add root:pw", ""},
		{"user add u --interactive=false", "pw\n"},
		{"user add u:again", ""},
		{"user add cert --no-password", ""},
		{"user list", ""},
		{"role add r", ""},
		{"role add r", ""},
		{"role grant-permission r readwrite a", ""},
		{"role grant-permission r read b c", ""},
		{"role grant-permission r write --prefix=true d", ""},
		{"role grant-permission r read --from-key=true x", ""},
		{"role grant-permission r read c b", ""},
		{"role get r", ""},
		{"role get nothing", ""},
		{"role revoke-permission r b c", ""},
		{"role revoke-permission r b c", ""},
		{"role list", ""},
		{"user grant-role u r", ""},
		{"user grant-role u nothing", ""},
		{"user get u", ""},
		{"user get u --detail", ""},
		{"user passwd u --interactive=false", "pw2\n"},
		{"user grant-role root root", ""},
		{"auth enable", ""},
		{"auth status", ""},
		{"auth status --user root:pw", ""},
		{"user list --user root:pw -w json", ""},
		{"put a 1", ""},
		{"put a 1 --user u:pw", ""},
		{"put a 1 --user u:pw2", ""},
		{"put b 1 --user u:pw2", ""},
		{"get a --user u:pw2", ""},
		{"get --prefix d --user u:pw2", ""},
		{"del --prefix d --user u:pw2", ""},
		{"get --from-key x --user u:pw2", ""},
		{"get a --user nobody:pw", ""},
		{"watch b --user u:pw2", ""},
		{"user add v:pw --user u:pw2", ""},
		{"user get u --user u:pw2", ""},
		{"role get r --user u:pw2 -w json", ""},
		{"compaction 2 --user u:pw2", ""},
		{"compaction 2 --user root:pw", ""},
		{"endpoint hashkv --user u:pw2", ""},
		{"defrag --user u:pw2", ""},
		{"alarm list --user u:pw2", ""},
		{"alarm list", ""},
		{"member list", ""},
		{"lease grant 100", ""},
		{"lock name --user root:pw echo held", ""},
		{"user delete root --user root:pw", ""},
		{"role delete root --user root:pw", ""},
		{"user revoke-role root root --user root:pw", ""},
		{"user revoke-role u r --user root:pw", ""},
		{"get a --user u:pw2", ""},
		{"role delete r --user root:pw", ""},
		{"user delete u --user root:pw", ""},
		{"get a --user u:pw2", ""},
		{"auth disable --user root:pw", ""},
		{"auth status", ""},
		{"get a", ""},
	} {
		want := normalized(ctls[0].run(step.stdin, strings.Fields(step.command)...))
		got := normalized(ctls[1].run(step.stdin, strings.Fields(step.command)...))
		if want != got {
			t.Errorf("%s\netcd:\n%s\nmem_etcd:\n%s", step.command, want, got)
		}
	}
}

// users returns all users and roles, and the revision of them, as text. It calls as root.
func (p *authPeer) users() string {
	p.t.Helper()
	var text []string
	add := func(request proto.Message) proto.Message {
		response := p.must("root", request)
		fields := proto.Clone(response).ProtoReflect()
		fields.Clear(fields.Descriptor().Fields().ByName("header"))
		text = append(text, outcome(fields.Interface(), nil))
		return response
	}
	for _, name := range add(&pb.AuthUserListRequest{}).(*pb.AuthUserListResponse).Users {
		add(&pb.AuthUserGetRequest{Name: name})
	}
	for _, name := range add(&pb.AuthRoleListRequest{}).(*pb.AuthRoleListResponse).Roles {
		add(&pb.AuthRoleGetRequest{Role: name})
	}
	add(&pb.AuthStatusRequest{})
	return strings.Join(text, "\n")
}

// TestUsersSurviveRestarts checks that users, roles and permissions are in the log and in snapshots, and that a restart
// makes simple tokens invalid.
func TestUsersSurviveRestarts(t *testing.T) {
	for _, mode := range []string{"buffered", "fsync"} {
		server := startMemEtcd(t, append([]string{"--wal-mode", mode, "--snapshot-log-bytes", "65536"}, cheapHashes...)...)
		peer := newAuthPeer(t, "mem_etcd", server)
		peer.limitUser()
		want := peer.users()
		for round, end := range []func(){server.kill, func() { server.stop() }, server.kill} {
			end()
			server.restart()
			peer.api = server.dial()
			if _, err := peer.call("root", &pb.AuthUserListRequest{}); outcome(&pb.AuthUserListResponse{}, err) != "Unauthenticated: etcdserver: invalid auth token" {
				t.Fatalf("%s: the error of an old token is %v", mode, err)
			}
			for _, user := range []string{"root", "u"} {
				peer.login(user, "pw")
			}
			if got := peer.users(); got != want {
				t.Fatalf("%s, restart %d: the users and roles are\n%s\nwant\n%s", mode, round, got, want)
			}
			if _, err := peer.call("u", &pb.RangeRequest{Key: []byte("x")}); outcome(&pb.RangeResponse{}, err) != "PermissionDenied: etcdserver: permission denied" {
				t.Fatalf("%s: a read that is not permitted returns %v", mode, err)
			}
			// Put enough for snapshots, after which the log of the changes is removed.
			for range 30 {
				peer.must("u", &pb.PutRequest{Key: []byte("w/1"), Value: make([]byte, 8192)})
			}
		}
	}
}

// TestUsersInSavedSnapshots restores a snapshot that etcdctl saved of mem_etcd, and one of etcd, with their users.
func TestUsersInSavedSnapshots(t *testing.T) {
	for _, peer := range []*authPeer{
		newAuthPeer(t, "mem_etcd", startMemEtcd(t, cheapHashes...)), newAuthPeer(t, "etcd", startEtcd(t, cheapHashes...)),
	} {
		peer.limitUser()
		want := peer.users()
		file := filepath.Join(t.TempDir(), "snapshot")
		if output, err := peer.server.etcdctl("snapshot", "save", file, "--user", "root:pw"); err != nil {
			t.Fatal(output)
		}
		dir := filepath.Join(t.TempDir(), "restored")
		mustMemEtcd(t, "restore", file, "--data-dir", dir, "--bump-revision", "0")
		restored := newAuthPeer(t, "restored", startMemEtcd(t, append([]string{"--data-dir", dir}, cheapHashes...)...))
		if _, err := restored.call("", &pb.RangeRequest{Key: []byte("r/1")}); err == nil {
			t.Errorf("%s: authentication is not enabled after the restore", peer.name)
		}
		for _, user := range []string{"root", "u"} {
			restored.login(user, "pw")
		}
		if got := restored.users(); got != want {
			t.Errorf("%s: the restored users and roles are\n%s\nwant\n%s", peer.name, got, want)
		}
		for key, permitted := range map[string]bool{"r/1": true, "x": false} {
			if _, err := restored.call("u", &pb.RangeRequest{Key: []byte(key)}); (err == nil) != permitted {
				t.Errorf("%s: a read of %s by the restored user returns %v", peer.name, key, err)
			}
		}
	}
}
