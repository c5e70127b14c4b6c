package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/connlimit"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/pacing"
)

// Handler processes the messages of other replicas.
type Handler interface {
	// Answer returns the answer of this replica alone; this package queries the branches.
	Answer(ctx context.Context, q *Request) *Answer
	// Receive processes a batch. Batches of one sender arrive in order. An error ends the
	// connection; the sender then opens another one and sends its whole state again.
	Receive(from string, b *Batch) error
	// Connected is called when another replica has opened a new connection, before it sends its
	// whole state on this connection.
	Connected(from string)
}

const (
	serviceName = "k8s1m.Replica"
	// maxMessage is the maximal size of a message in bytes. A pod can be 1.5 MiB large, and a batch
	// contains many pods.
	maxMessage = 64 << 20
	// Sizes of HTTP/2's flow control windows, in bytes. Fixed sizes disable gRPC's estimation of
	// the bandwidth, which sends pings between messages.
	streamWindow, connectionWindow = 1 << 20, 4 << 20
	// gRPC closes the connection to a replica that does not answer a ping within pingTimeout.
	pingInterval = 10 * time.Second
	pingTimeout  = 3 * time.Second
	// A new connection must be authenticated within handshakeTimeout. Connections beyond maxConnections are closed
	// immediately: two of each replica, because the end of an earlier one may be noticed late.
	handshakeTimeout = 5 * time.Second
	maxConnections   = 2 * maxMembers
)

// Serve serves other replicas until the context ends. Without certificates the listener
// must be on a loopback address.
func Serve(ctx context.Context, listener net.Listener, certificates *TLS, handler Handler, dial *Dialer) error {
	if address, ok := listener.Addr().(*net.TCPAddr); certificates == nil && (!ok || !address.IP.IsLoopback()) {
		return fmt.Errorf("replicas that listen on %v need certificates: set --replica-cert-file, --replica-key-file and --replica-ca-file", listener.Addr())
	}
	server := grpc.NewServer(
		grpc.Creds(certificates.serverCredentials()), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(1024),
		grpc.ConnectionTimeout(handshakeTimeout), grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connectionWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingInterval / 2, PermitWithoutStream: true}),
	)
	server.RegisterService(service(handler, dial, certificates != nil), handler)
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	return server.Serve(&connlimit.Listener{Listener: listener, Limit: maxConnections})
}

// service describes the gRPC service with its two methods: Query answers a query and Send
// receives batches. If authenticated is true, callers have certificates with their names.
func service(handler Handler, dial *Dialer, authenticated bool) *grpc.ServiceDesc {
	all := &sessions{latest: map[string]*session{}}
	return &grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*Handler)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Query", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			q := &Request{}
			if err := decode(q); err != nil {
				return nil, err
			}
			if err := q.validate(); err != nil {
				return nil, status.Error(codes.InvalidArgument, err.Error())
			}
			return Gather(ctx, func() *Answer { return handler.Answer(ctx, q) }, q.Branches, q.Patience, q.Query.Offers, dial.forward(q)), nil
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "Send", ClientStreams: true, ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			return receive(handler, all, stream, authenticated)
		}}},
	}
}

// receive processes the batches of one connection. If authenticated is true, the certificate of the
// sender must have the name in the batches.
func receive(handler Handler, all *sessions, stream grpc.ServerStream, authenticated bool) error {
	first := &Batch{}
	if err := stream.RecvMsg(first); err != nil {
		return err
	}
	if first.From == "" {
		return status.Error(codes.InvalidArgument, "the first batch has no sender")
	}
	if caller, known := callerOf(stream.Context()); authenticated && (!known || caller != first.From) {
		return status.Errorf(codes.PermissionDenied, "a batch of replica %q with a certificate of replica %q", first.From, caller)
	}
	// Two connections may begin in the other order than they were opened. Without heartbeats, the sender opens another one
	// in place of the one that was replaced, also if it has nothing to send.
	ctx, stop := context.WithCancel(stream.Context())
	defer stop()
	go sendHeartbeats(ctx, stream)
	s, err := all.begin(ctx, first.From, stop)
	if err != nil {
		return err
	}
	defer all.end(first.From, s)
	for b := first; ; {
		err := b.validate()
		if err == nil && b.From != "" && b.From != first.From {
			err = malformed("batch with another sender than the first")
		}
		if err != nil {
			refusedBatches.Inc()
			return status.Error(codes.InvalidArgument, err.Error())
		}
		err = s.process(func() error {
			if b == first {
				handler.Connected(first.From)
			}
			return handler.Receive(first.From, b)
		})
		if err != nil {
			if !errors.Is(err, errReplaced) {
				refusedBatches.Inc()
			}
			return status.Error(codes.Aborted, err.Error())
		}
		b = &Batch{}
		if err := stream.RecvMsg(b); err != nil {
			return err
		}
	}
}

// sendHeartbeats sends empty batches to the sender of a connection until the context or the connection ends.
func sendHeartbeats(ctx context.Context, stream grpc.ServerStream) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	pacing.EachBeat(ctx, heartbeatInterval, func(context.Context) {
		if stream.SendMsg(&Batch{}) != nil {
			stop()
		}
	})
}
