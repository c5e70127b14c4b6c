package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
	"github.com/k8s-1m/k8s-1m/internal/cluster/bulk"
	"github.com/k8s-1m/k8s-1m/internal/cluster/component"
	"github.com/k8s-1m/k8s-1m/internal/util/authority"
)

const (
	// leaseTimeout is the time limit of a kubelet for a renewal.
	leaseTimeout = 10 * time.Second
	// leasePeriod is the time between two renewals of a node. That of a kubelet is ten times longer, but each
	// node here stands for ten.
	leasePeriod = time.Second
)

// storm measures the API servers while clients list all pods in a loop and nodes renew their Leases.
func (l *lab) storm(ctx context.Context) error {
	if err := l.createPods(ctx, l.options.StormPods.N); err != nil {
		return err
	}
	table := l.Result.Table(fmt.Sprintf("%d clients list %d pods in a loop", l.options.StormClients.N, l.options.StormPods.N), "front",
		"lists", "failed", "list p50, s", "p99, s", "memory of the API servers before, MiB", "peak, MiB", "Lease renewals", "failed", "p50, ms", "p99, ms", "cores of the API servers")
	peak := map[string]float64{}
	for _, name := range l.names(direct, haproxy, kubeGateway) {
		task := l.Display.Task(name+": LIST storm", 0)
		m, err := l.measureStorm(ctx, name)
		if err != nil {
			task.Interrupt()
			return fmt.Errorf("%s: %w", name, err)
		}
		peak[name] = float64(m.usage.Peak[component.RoleAPIServer]) / mebibyte
		task.Done(fmt.Sprintf("peak %.0f MiB, Lease renewals p99 %.0f ms", peak[name], m.renewals.Latencies.Millis(99)))
		table.Add(name, m.lists.Latencies.Count(), m.lists.Tally.Describe(), m.lists.Latencies.Seconds(50), m.lists.Latencies.Seconds(99),
			float64(m.before)/mebibyte, peak[name], m.renewals.Latencies.Count(), m.renewals.Tally.Describe(),
			m.renewals.Latencies.Millis(50), m.renewals.Latencies.Millis(99), m.usage.Cores(component.RoleAPIServer))
		if name == kubeGateway {
			l.Judge(limitMemory, peak[name]/max(peak[direct], 1), int(m.lists.Latencies.Count()), "")
			l.Judge(limitLeases, m.renewals.Latencies.Seconds(99), int(m.renewals.Latencies.Count()), "")
		}
	}
	l.Result.Note("Failed lists and Lease renewals of a LIST storm are results, so they do not count as errors of the run. A failed Lease renewal counts with its duration in the percentiles.")
	return nil
}

// stormy is what was measured in a LIST storm.
type stormy struct {
	lists, renewals experiment.Load
	before          int64 // memory of the API servers in bytes
	usage           experiment.Measured
}

// measureStorm restarts the API servers, so that their memory is that of a new process, and runs a LIST storm
// through a front.
func (l *lab) measureStorm(ctx context.Context, name string) (m stormy, err error) {
	if err := l.restartServers(ctx); err != nil {
		return m, err
	}
	err = l.target.with(ctx, name, func(f *front) error {
		nodes, err := l.leaseNodes(ctx, f)
		if err != nil {
			return err
		}
		clients, err := l.listers(f)
		if err != nil {
			return err
		}
		m.before = l.Sampler.Usage()[component.RoleAPIServer].Resident
		window := l.Sampler.Begin(ctx)
		storming, stop := context.WithTimeout(ctx, l.options.Storm.D)
		defer stop()
		var group sync.WaitGroup
		m.lists = experiment.Load{
			Workers: len(clients), Kind: bulk.ErrorKind, Latencies: experiment.NewLatencies(), Tally: experiment.NewTally(1),
			Do: func(ctx context.Context, _, worker int) error { return listPods(ctx, clients[worker]) },
		}
		m.renewals = renewals(nodes)
		group.Go(func() { m.lists.Run(storming) })
		group.Go(func() { m.renewals.Run(storming) })
		group.Wait()
		m.usage = window.End(ctx)
		return ctx.Err()
	})
	return m, err
}

// restartServers kills all API servers, and waits until they are ready and idle again.
func (l *lab) restartServers(ctx context.Context) error {
	for n := range l.target.servers {
		if err := l.signalServer(n, syscall.SIGKILL); err != nil {
			return err
		}
	}
	// The supervisor notices the end of a process within this time.
	if err := experiment.Sleep(ctx, time.Second); err != nil {
		return err
	}
	for n := range l.target.servers {
		if err := l.awaitServer(ctx, n); err != nil {
			return err
		}
	}
	return l.AwaitQuiet(ctx)
}

// listers returns clients with a connection each, which decode nothing.
func (l *lab) listers(f *front) (clients []rest.Interface, err error) {
	for n := range l.options.StormClients.N {
		client, err := newClient(l.admin, f.address(n))
		if err != nil {
			return nil, err
		}
		clients = append(clients, client.CoreV1().RESTClient())
	}
	return clients, nil
}

// newClient returns a client with a connection of its own.
func newClient(config *rest.Config, address string) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.Host = "https://" + address
	// client-go shares a connection between clients with equal configurations. A separate dialer makes each
	// configuration different.
	config.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	return kubernetes.NewForConfig(config)
}

// listPods lists all pods in JSON, as kubectl does, and discards the response.
func listPods(ctx context.Context, client rest.Interface) error {
	body, err := client.Get().Resource("pods").SetHeader("Accept", runtime.ContentTypeJSON).Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}

// leaseNode is a client with the identity of a node, which renews the Lease of this node.
type leaseNode struct {
	client kubernetes.Interface
	lease  *coordinationv1.Lease
}

// leaseNodes returns clients with the identities of nodes, and creates their Leases if they do not exist.
func (l *lab) leaseNodes(ctx context.Context, f *front) ([]*leaseNode, error) {
	ca, err := l.authority()
	if err != nil {
		return nil, err
	}
	nodes := make([]*leaseNode, l.options.LeaseNodes.N)
	for n := range nodes {
		name := fmt.Sprintf("renewing-%d", n)
		config, err := l.nodeConfig(ca, name)
		if err != nil {
			return nil, err
		}
		node := &leaseNode{}
		if node.client, err = newClient(config, f.address(n)); err != nil {
			return nil, err
		}
		leases := l.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		if node.lease, err = leases.Get(ctx, name, metav1.GetOptions{}); err != nil {
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{
				HolderIdentity: new(name), LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: time.Now()},
			}}
			if node.lease, err = leases.Create(ctx, lease, metav1.CreateOptions{}); err != nil {
				return nil, fmt.Errorf("creating the Lease of a node: %w", err)
			}
		}
		nodes[n] = node
	}
	return nodes, nil
}

// authority returns the CA of the cluster's clients.
func (l *lab) authority() ([]authority.CA, error) {
	cert, err := os.ReadFile(filepath.Join(l.target.pki, "ca.crt"))
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(filepath.Join(l.target.pki, "ca.key"))
	if err != nil {
		return nil, err
	}
	return authority.Parse(cert, key)
}

// nodeCertificate returns a certificate of a node.
func nodeCertificate(ca []authority.CA, name string) (*tls.Certificate, error) {
	subject := pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
	certificate, err := authority.Issue(ca, &x509.Certificate{Subject: subject, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, time.Now())
	if err != nil {
		return nil, fmt.Errorf("certificate of a node: %w", err)
	}
	return certificate, nil
}

// nodeConfig returns the credentials of a node.
func (l *lab) nodeConfig(ca []authority.CA, name string) (*rest.Config, error) {
	certificate, err := nodeCertificate(ca, name)
	if err != nil {
		return nil, err
	}
	config := rest.CopyConfig(l.admin)
	config.UserAgent, config.Timeout = "kubelet/bench", leaseTimeout
	config.CertFile, config.KeyFile = "", ""
	config.CertData = pkiutil.EncodeCertPEM(certificate.Leaf)
	config.KeyData, err = keyutil.MarshalPrivateKeyToPEM(certificate.PrivateKey)
	return config, err
}

// renewals returns a load in which each node renews its Lease once per period.
func renewals(nodes []*leaseNode) experiment.Load {
	load := experiment.Load{
		Workers: len(nodes), Rate: float64(len(nodes)) / leasePeriod.Seconds(), Kind: bulk.ErrorKind,
		Latencies: experiment.NewLatencies(), Tally: experiment.NewTally(1),
	}
	load.Do = func(ctx context.Context, _, worker int) error {
		begun := time.Now()
		err := nodes[worker].renew(ctx)
		if err != nil && ctx.Err() == nil {
			load.Latencies.Record(time.Since(begun))
		}
		return err
	}
	return load
}

// renew renews the Lease as a kubelet does: it updates the Lease of the last response. After a conflict or
// another error, the next renewal reads the Lease first.
func (n *leaseNode) renew(ctx context.Context) error {
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if n.lease.ResourceVersion == "" {
		current, err := leases.Get(ctx, n.lease.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.lease = current
	}
	n.lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	renewed, err := leases.Update(ctx, n.lease, metav1.UpdateOptions{})
	if err != nil {
		n.lease.ResourceVersion = ""
		return err
	}
	n.lease = renewed
	return nil
}
