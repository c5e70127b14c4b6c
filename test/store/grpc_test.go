package store

import (
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

// connect opens a gRPC connection to the server.
func connect(t *testing.T, s *server) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestHealth(t *testing.T) {
	client := health.NewHealthClient(connect(t, startMemEtcd(t)))
	response, err := client.Check(t.Context(), &health.HealthCheckRequest{})
	if err != nil || response.Status != health.HealthCheckResponse_SERVING {
		t.Errorf("Check returned %v, error %v; want SERVING", response, err)
	}
	if _, err := client.Check(t.Context(), &health.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("Check of an unknown service returned the error %v; want NOT_FOUND", err)
	}
	list, err := client.List(t.Context(), &health.HealthListRequest{})
	if err != nil || list.Statuses[""].GetStatus() != health.HealthCheckResponse_SERVING {
		t.Errorf("List returned %v, error %v; want SERVING for the server", list, err)
	}
	watch, err := client.Watch(t.Context(), &health.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if response, err = watch.Recv(); err != nil || response.Status != health.HealthCheckResponse_SERVING {
		t.Errorf("Watch returned %v, error %v; want SERVING", response, err)
	}
}

func TestReflection(t *testing.T) {
	conn := connect(t, startMemEtcd(t))
	stream, err := reflection.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflection.ServerReflectionRequest{MessageRequest: &reflection.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	response, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	hasName := func(name string) func(*reflection.ServiceResponse) bool {
		return func(service *reflection.ServiceResponse) bool { return service.Name == name }
	}
	for _, name := range []string{"etcdserverpb.KV", "etcdserverpb.Watch", "grpc.health.v1.Health"} {
		if !slices.ContainsFunc(response.GetListServicesResponse().GetService(), hasName(name)) {
			t.Errorf("the service %s is not listed in %v", name, response)
		}
	}
	// Older tools use the service name v1alpha with the same messages.
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	alpha, err := conn.NewStream(t.Context(), desc, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
	if err != nil {
		t.Fatal(err)
	}
	symbol := &reflection.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "etcdserverpb.Watch"}
	if err := alpha.SendMsg(&reflection.ServerReflectionRequest{MessageRequest: symbol}); err != nil {
		t.Fatal(err)
	}
	var described reflection.ServerReflectionResponse
	if err := alpha.RecvMsg(&described); err != nil {
		t.Fatal(err)
	}
	// The file of the service, and those of keys and of users that it imports.
	if files := described.GetFileDescriptorResponse().GetFileDescriptorProto(); len(files) != 3 {
		t.Errorf("v1alpha returned %d file descriptors, want 3", len(files))
	}
}
