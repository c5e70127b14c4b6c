package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// Question is a question on its way through the tree.
type Question struct {
	Ask *Ask
	// Term and Number are the assignment that it is asked by; who is not ready for that
	// one does not answer.
	Term, Number int64
	// From is the leader, and Seen how many of its reservations each replica has to know
	// of before it answers.
	From     string
	Branches []Branch `cbor:",omitempty"`
	Patience Patience

	Seen map[string]uint64 `cbor:",omitempty"`
}

// Handler is what a replica does with what others send it.
type Handler interface {
	// Answer asks this replica only.
	Answer(ctx context.Context, q *Question) *Answer
	// Receive takes what another replica has to tell, in the order in which it does.
	Receive(from string, b *Batch) error
	// Connected says that another replica begins anew to tell what it has to.
	Connected(from string)
}

const (
	serviceName = "k8s1m.Replica"
	// A pod can be 1.5 MiB, and a batch has many.
	maxMessage = 64 << 20
)

// codec is what messages are encoded by on the way.
type codec struct{}

func (codec) Name() string { return "cbor" }

func (codec) Marshal(message any) ([]byte, error) { return Encode(message) }

func (codec) Unmarshal(data []byte, message any) error { return Decode(data, message) }

func init() { encoding.RegisterCodec(codec{}) }

// TLS are the certificates by which replicas trust each other; each is server and
// client. Files that change are read anew.
type TLS struct {
	certificate *dynamiccertificates.DynamicCertKeyPairContent
	authority   *dynamiccertificates.DynamicFileCAContent
}

// NewTLS reads the files with a certificate and its key, and the authority that has
// signed those of all replicas.
func NewTLS(ctx context.Context, certFile, keyFile, caFile string) (*TLS, error) {
	certificate, err := dynamiccertificates.NewDynamicServingContentFromFiles("replica", certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate for other replicas: %w", err)
	}
	authority, err := dynamiccertificates.NewDynamicCAContentFromFile("replicas", caFile)
	if err != nil {
		return nil, fmt.Errorf("reading the authority of other replicas: %w", err)
	}
	go certificate.Run(ctx, 1)
	go authority.Run(ctx, 1)
	return &TLS{certificate, authority}, nil
}

func (t *TLS) config() *tls.Config {
	own := func() (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(t.certificate.CurrentCertKeyContent())
		return &pair, err
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() },
		// Both sides have to show a certificate by the same authority. Which replica it is
		// for does not matter: all may do the same, and addresses come and go.
		ClientAuth:         tls.RequireAnyClientCert,
		InsecureSkipVerify: true,
		VerifyConnection:   t.verify,
	}
}

func (t *TLS) verify(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the other replica has shown no certificate")
	}
	options, ok := t.authority.VerifyOptions()
	if !ok {
		return errors.New("there is no authority to verify other replicas by")
	}
	options.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	options.Intermediates = x509.NewCertPool()
	for _, intermediate := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	_, err := state.PeerCertificates[0].Verify(options)
	return err
}

func (t *TLS) credentials() credentials.TransportCredentials {
	if t == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(t.config())
}

// Serve answers other replicas until the context ends. Without certificates it does so
// on loopback only.
func Serve(ctx context.Context, listener net.Listener, certificates *TLS, handler Handler, dial *Dialer) error {
	if address, ok := listener.Addr().(*net.TCPAddr); certificates == nil && (!ok || !address.IP.IsLoopback()) {
		return fmt.Errorf("replicas on %v need certificates: set --replica-cert-file, --replica-key-file and --replica-ca-file", listener.Addr())
	}
	server := grpc.NewServer(
		grpc.Creds(certificates.credentials()), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(1024),
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connectionWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAfter / 2, PermitWithoutStream: true}),
	)
	server.RegisterService(service(handler, dial), handler)
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	return server.Serve(listener)
}

const (
	// Windows that are given have gRPC not look for the best with a ping beside each
	// message.
	streamWindow, connectionWindow = 1 << 20, 4 << 20
	// A replica that does not answer to a ping for so long is taken for gone.
	pingAfter   = 10 * time.Second
	pingTimeout = 3 * time.Second
)

func service(handler Handler, dial *Dialer) *grpc.ServiceDesc {
	all := &sessions{latest: map[string]*session{}}
	return &grpc.ServiceDesc{
		ServiceName: serviceName,
		HandlerType: (*Handler)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Ask", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			q := &Question{}
			if err := decode(q); err != nil {
				return nil, err
			}
			if err := q.validate(); err != nil {
				return nil, status.Error(codes.InvalidArgument, err.Error())
			}
			return Gather(ctx, func() *Answer { return handler.Answer(ctx, q) }, q.Branches, q.Patience, q.Ask.Offers, dial.asker(q)), nil
		}}},
		Streams: []grpc.StreamDesc{{StreamName: "Tell", ClientStreams: true, ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			return listen(handler, all, stream)
		}}},
	}
}

// listen receives what another replica tells.
func listen(handler Handler, all *sessions, stream grpc.ServerStream) error {
	first := &Batch{}
	if err := stream.RecvMsg(first); err != nil {
		return err
	}
	if first.From == "" {
		return status.Error(codes.InvalidArgument, "a replica did not say who it is")
	}
	go sayHeard(stream)
	s := all.begin(first.From)
	defer all.end(first.From, s)
	for b := first; ; {
		err := b.validate()
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		err = s.take(func() error {
			if b == first {
				handler.Connected(first.From)
			}
			return handler.Receive(first.From, b)
		})
		if err != nil {
			return status.Error(codes.Aborted, err.Error())
		}
		b = &Batch{}
		if err := stream.RecvMsg(b); err != nil {
			return err
		}
	}
}

// sayHeard says to who tells that somebody listens.
func sayHeard(stream grpc.ServerStream) {
	ctx, stop := context.WithCancel(stream.Context())
	defer stop()
	EachBeat(ctx, hearEvery, func(context.Context) {
		if stream.SendMsg(&Batch{}) != nil {
			stop()
		}
	})
}

// Dialer connects to other replicas.
type Dialer struct {
	certificates *TLS
	connections  connections
}

// NewDialer connects with certificates, or without if they are nil.
func NewDialer(certificates *TLS) *Dialer { return &Dialer{certificates: certificates} }

// asker sends questions on to branches.
func (d *Dialer) asker(q *Question) func(context.Context, *Branch) (*Answer, error) {
	return func(ctx context.Context, b *Branch) (*Answer, error) {
		// Whoever hands on leaves itself the time to say who was late.
		patience := q.Patience
		patience.Deadline -= patience.Deadline / 8
		return d.Ask(ctx, b, &Question{
			Ask: q.Ask, Term: q.Term, Number: q.Number, From: q.From, Branches: b.Branches, Patience: patience, Seen: q.Seen,
		})
	}
}

// Ask sends a question to a replica, and what it is to hand on.
func (d *Dialer) Ask(ctx context.Context, b *Branch, q *Question) (*Answer, error) {
	connection, err := d.connections.get(b.Member.Address, d.certificates)
	if err != nil {
		return nil, err
	}
	answer := &Answer{}
	if err := connection.Invoke(ctx, "/"+serviceName+"/Ask", q, answer, grpc.ForceCodec(codec{})); err != nil {
		return nil, err
	}
	return answer, answer.validate()
}

// Scatter asks members through a tree, and own if it is not nil.
func (d *Dialer) Scatter(ctx context.Context, own func() *Answer, members []Member, fanout int, key []byte, q *Question) *Answer {
	return Gather(ctx, own, Grow(members, fanout, key), q.Patience, q.Ask.Offers, d.asker(q))
}
