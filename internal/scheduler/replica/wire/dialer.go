package wire

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/membership"
)

// Dialer connects to other replicas and queries them. Its methods may be called
// concurrently.
type Dialer struct {
	certificates *TLS
	connections  connections
}

// NewDialer returns a Dialer. Without certificates (nil) it does not use TLS.
func NewDialer(certificates *TLS) *Dialer { return &Dialer{certificates: certificates} }

// forward returns the function that forwards a query to a branch.
func (d *Dialer) forward(q *Request) func(context.Context, *membership.Branch) (*Answer, error) {
	return func(ctx context.Context, b *membership.Branch) (*Answer, error) {
		// The root of the branch gets a shorter timeout than this replica. It stops waiting earlier, and
		// so has time to report which replicas below it did not answer.
		patience := q.Patience
		patience.Deadline -= patience.Deadline / 8
		return d.Query(ctx, b, &Request{
			Query: q.Query, Term: q.Term, Number: q.Number, From: q.From, Branches: b.Branches, Patience: patience,
			AwaitNodes: q.AwaitNodes, Reservations: q.Reservations,
		})
	}
}

// Query sends a query to the root of a branch and returns its answer, which includes the
// answers of q.Branches. It returns an error if the answer is malformed. If the query or the answer is larger than
// maxMessage, or the answer cannot be decoded, the replica has failed to evaluate the pod.
func (d *Dialer) Query(ctx context.Context, b *membership.Branch, q *Request) (*Answer, error) {
	connection, err := d.connections.get(b.Member, d.certificates)
	if err != nil {
		return nil, err
	}
	received := &receivedAnswer{}
	err = connection.Invoke(ctx, "/"+serviceName+"/Query", q, received, grpc.ForceCodec(codec{}))
	if status.Code(err) == codes.ResourceExhausted {
		// The message is too large. The replica can answer queries for other pods.
		return FailedAnswer(b.Member.Name, err), nil
	}
	if err != nil {
		return nil, err
	}
	if received.err != nil {
		// For example, it has more elements than maxElements. The replica is not late: its answers for other pods may be
		// smaller.
		return FailedAnswer(b.Member.Name, fmt.Errorf("decoding the answer: %w", received.err)), nil
	}
	return &received.answer, received.answer.validate()
}

// Scatter queries members along a tree (see [membership.Grow]) and merges their answers with the answer
// that own returns. own may be nil.
func (d *Dialer) Scatter(ctx context.Context, own func() *Answer, members []membership.Member, fanout int, key []byte, q *Request) *Answer {
	return Gather(ctx, own, membership.Grow(members, fanout, key), q.Patience, q.Query.Offers, d.forward(q))
}
