package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

const (
	nodeLeases = "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases"
	// kubeletAgent is the User-Agent of a kubelet. Its product is the manager in the managedFields of the Lease.
	kubeletAgent = "kubelet/v1.37.1 (linux/amd64) kubernetes/k1m-bench"
	// renewalsInFlight bounds the renewals of all nodes at the same time.
	renewalsInFlight = 256
	// leaseSeconds is the default of kubelets.
	leaseSeconds = 40
)

// leaseCodec encodes and decodes Leases in protobuf.
var leaseCodec = newLeaseCodec()

func newLeaseCodec() runtime.Codec {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), protobuf)
	return scheme.Codecs.CodecForVersions(info.Serializer, info.Serializer, coordinationv1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion)
}

// node sends what a kubelet sends for its Lease, on a connection of its own.
type node struct {
	name string

	mu    sync.Mutex
	conn  nodeConn
	lease *coordinationv1.Lease
	// stale is true if the Lease must be read before it is renewed, as after a conflict.
	stale bool
	// renewed is the time in the last renewal that succeeded. A node that failed renews no more.
	renewed time.Time
	failed  bool
}

// startNodes connects nodes to a front, each with its certificate, and creates their Leases.
func (l *lab) startNodes(ctx context.Context, f *front, prefix string, count int) (nodes []*node, closeAll func(), err error) {
	credentials, err := l.nodeCredentials(prefix, count)
	if err != nil {
		return nil, nil, err
	}
	for i := range count {
		nodes = append(nodes, &node{name: nodeName(prefix, i), conn: nodeConn{front: f, number: i, credentials: credentials[i]}})
	}
	closeAll = func() {
		for _, n := range nodes {
			n.close()
		}
	}
	task := l.Display.Task(f.name+": Leases created", count)
	load := experiment.Load{
		Workers: renewalsInFlight, Count: count, Kind: kindOf, Latencies: experiment.NewLatencies(), Tally: experiment.NewTally(0), Progress: task.Set,
		Do: func(ctx context.Context, number, _ int) error { return nodes[number].create(ctx) },
	}
	load.Run(ctx)
	if ctx.Err() != nil || load.Tally.Err() != nil {
		task.Interrupt()
		closeAll()
		return nil, nil, fmt.Errorf("creating Leases: %w", errors.Join(ctx.Err(), load.Tally.Err()))
	}
	task.Done(fmt.Sprint(count))
	return nodes, closeAll, nil
}

// nodeCredentials returns the credentials of nodes, with a certificate of its own for each.
func (l *lab) nodeCredentials(prefix string, count int) ([]*tls.Config, error) {
	ca, err := l.authority()
	if err != nil {
		return nil, err
	}
	credentials := make([]*tls.Config, count)
	for i := range credentials {
		certificate, err := nodeCertificate(ca, nodeName(prefix, i))
		if err != nil {
			return nil, err
		}
		credentials[i] = &tls.Config{RootCAs: l.tls.RootCAs, Certificates: []tls.Certificate{*certificate}}
	}
	return credentials, nil
}

func nodeName(prefix string, number int) string { return fmt.Sprintf("%s-%d", prefix, number) }

func (n *node) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conn.close()
}

// create creates the Lease.
func (n *node) create(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Namespace: corev1.NamespaceNodeLease},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(n.name), LeaseDurationSeconds: new(int32(leaseSeconds)), RenewTime: &metav1.MicroTime{Time: time.Now()},
		},
	}
	return n.exchange(ctx, http.MethodPost, nodeLeases, lease)
}

// renew renews the Lease as a kubelet does: it updates the Lease of the last answer. After a conflict or another error,
// the next renewal reads the Lease first.
func (n *node) renew(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failed {
		return nil
	}
	path := nodeLeases + "/" + n.name + "?timeout=10s"
	if n.stale {
		if err := n.exchange(ctx, http.MethodGet, path, nil); err != nil {
			return err
		}
		n.stale = false
	}
	// A Lease in protobuf has microseconds.
	now := time.Now().Truncate(time.Microsecond)
	n.lease.Spec.RenewTime = &metav1.MicroTime{Time: now}
	if err := n.exchange(ctx, http.MethodPut, path, n.lease); err != nil {
		n.stale = true
		return err
	}
	n.renewed = now
	return nil
}

// fail ends the renewals of the node, and returns the time in the last one.
func (n *node) fail() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failed = true
	return n.renewed
}

// exchange sends a Lease, or nothing, and keeps the Lease of the answer.
func (n *node) exchange(ctx context.Context, method, path string, lease *coordinationv1.Lease) error {
	request := nodeRequest{method: method, path: path}
	if lease != nil {
		encoded, err := runtime.Encode(leaseCodec, lease)
		if err != nil {
			return err
		}
		request.body = encoded
	}
	answer, err := n.conn.exchange(ctx, request)
	if err == nil {
		err = answer.failed()
	}
	if err != nil {
		return err
	}
	answered := &coordinationv1.Lease{}
	if err := runtime.DecodeInto(leaseCodec, answer.body, answered); err != nil {
		return fmt.Errorf("decoding a Lease: %w", err)
	}
	n.lease = answered
	return nil
}

// renewAll returns a load in which the nodes renew their Leases in turn; rate is per second, 0 for as many as possible.
func renewAll(nodes []*node, rate float64) experiment.Load {
	return experiment.Load{
		Workers: renewalsInFlight, Rate: rate, Kind: kindOf, Latencies: experiment.NewLatencies(), Tally: experiment.NewTally(1),
		Do: func(ctx context.Context, number, _ int) error { return nodes[number%len(nodes)].renew(ctx) },
	}
}
