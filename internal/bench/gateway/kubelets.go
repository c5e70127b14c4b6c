package gateway

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/bench/experiment"
)

const (
	// The time limits of client-go for a TCP connection and for a TLS handshake.
	kubeletDialTimeout = 30 * time.Second
	handshakeTimeout   = 10 * time.Second
	// The delay of client-go's reflectors after a failed attempt. It doubles with each one, and is prolonged by a
	// random share.
	firstRetry = 800 * time.Millisecond
	lastRetry  = 30 * time.Second
	// askedRetries is how often client-go tries again after the time for which a server asks, before it uses its own delay.
	askedRetries = 10
	// openConcurrency bounds the kubelets that start at the same time.
	openConcurrency = 64
	// connectionsPerAddress bounds the connections from one loopback address: Linux has about 28,000 local ports for
	// each.
	connectionsPerAddress = 20_000
)

// kubelets are clients with the watches of a kubelet each, on a connection of their own. They do what client-go does
// when a watch ends, a request fails or the connection is lost.
type kubelets struct {
	front *front
	all   []*kubelet
	// register reports whether a kubelet that starts also reads its Node, for which the gateway needs a connection to
	// an API server.
	register bool
	running  sync.WaitGroup
	cancel   context.CancelFunc
	// modified is the number of events MODIFIED that all of them received.
	modified atomic.Int64

	mu    sync.Mutex
	phase phase
	// gate is closed while kubelets may dial.
	gate chan struct{}
}

// phase is what happened since the kubelets were started, or since their connections were closed.
type phase struct {
	// number tells the connections of a phase from those of earlier ones.
	number int
	begun  time.Time
	// complete is the number of kubelets that have all their watches, and last the time until all had them.
	complete  int
	last      time.Duration
	latencies *experiment.Latencies
	// failures are the attempts that failed, and failure is the error of the last one.
	failures *experiment.Tally
	failure  error
}

func newPhase(number int) phase {
	return phase{number: number, begun: time.Now(), latencies: experiment.NewLatencies(), failures: experiment.NewTally(1)}
}

// kubelet is one of the kubelets. Only its own goroutine and that of a delayed watch use what it has watched.
type kubelet struct {
	name        string
	source      net.IP
	credentials *tls.Config
	group       *kubelets
	watched     [len(kubeletResources)]watched
	// opened is called when the kubelet has all its watches for the first time; nil afterwards.
	opened func()

	mu   sync.Mutex
	conn *net.TCPConn // the current connection, or nil
}

// watched is how far a kubelet has watched a resource.
type watched struct {
	// version is that of the last bookmark. Other events are not decoded, so that the load generator uses little CPU.
	version string
	// synced is true if the kubelet has the state at that version. Its next watch then begins there.
	synced bool
}

// kubeletsOptions says which kubelets are started.
type kubeletsOptions struct {
	prefix string
	count  int
	// version is where the first watches begin. A kubelet that starts has none, and gets the state of now, which only the
	// store knows. With 0, the state comes from a cache.
	version  string
	register bool
}

// startKubelets starts kubelets that connect to a front, and waits until they have all their watches. The caller must
// call stop, unless there is an error.
func (l *lab) startKubelets(ctx context.Context, f *front, o kubeletsOptions) (*kubelets, error) {
	credentials, err := l.nodeCredentials(o.prefix, o.count)
	if err != nil {
		return nil, err
	}
	g := newKubelets(f, credentials, o)
	g.start(ctx)
	if err := l.await(ctx, fmt.Sprintf("%s: kubelets with their %d watches", f.name, len(kubeletResources)), o.count, g.complete); err != nil {
		g.stop()
		if p := g.current(); p.failure != nil {
			err = fmt.Errorf("%w; failed attempts: %s; last error: %w", err, p.failures.Describe(), p.failure)
		}
		return nil, err
	}
	return g, nil
}

// newKubelets returns kubelets, one for each of the credentials.
func newKubelets(f *front, credentials []*tls.Config, o kubeletsOptions) *kubelets {
	g := &kubelets{front: f, register: o.register, phase: newPhase(0), gate: make(chan struct{})}
	close(g.gate)
	for i := range credentials {
		k := &kubelet{name: nodeName(o.prefix, i), source: loopbackAddress(i / connectionsPerAddress), credentials: forHTTP2(credentials[i], f), group: g}
		for r := range k.watched {
			k.watched[r].version = o.version
		}
		g.all = append(g.all, k)
	}
	return g
}

// forHTTP2 returns the configuration for connections to a front.
func forHTTP2(credentials *tls.Config, f *front) *tls.Config {
	host, _, _ := net.SplitHostPort(f.addresses[0])
	config := credentials.Clone()
	config.ServerName, config.NextProtos = host, []string{"h2"}
	return config
}

// loopbackAddress returns a loopback address: 127.0.0.1 for 0, and the following ones.
func loopbackAddress(number int) net.IP {
	address := make(net.IP, net.IPv4len)
	binary.BigEndian.PutUint32(address, 127<<24+1+uint32(number))
	return address
}

// start starts the kubelets, in the background. At most openConcurrency of them have no watches yet.
func (g *kubelets) start(ctx context.Context) {
	ctx, g.cancel = context.WithCancel(ctx)
	starting := make(chan struct{}, openConcurrency)
	g.running.Go(func() {
		for _, k := range g.all {
			select {
			case starting <- struct{}{}:
			case <-ctx.Done():
				return
			}
			k.opened = func() { <-starting }
			g.running.Go(func() { k.run(ctx) })
		}
	})
}

// stop closes all connections, and waits until the kubelets have ended.
func (g *kubelets) stop() {
	g.cancel()
	for _, k := range g.all {
		k.reset()
	}
	g.running.Wait()
}

// disconnect closes the connections of all kubelets, and begins a phase in which all of them dial at once. They wait until
// the last connection is closed: otherwise the first ones would take the CPU that closing needs.
func (g *kubelets) disconnect() {
	g.mu.Lock()
	gate := make(chan struct{})
	g.gate, g.phase = gate, newPhase(g.phase.number+1)
	g.mu.Unlock()
	for _, k := range g.all {
		k.reset()
	}
	g.mu.Lock()
	g.phase.begun = time.Now()
	g.mu.Unlock()
	close(gate)
}

// awaitGate waits until kubelets may dial, or until ctx ends.
func (g *kubelets) awaitGate(ctx context.Context) {
	g.mu.Lock()
	gate := g.gate
	g.mu.Unlock()
	select {
	case <-gate:
	case <-ctx.Done():
	}
}

// current returns the current phase.
func (g *kubelets) current() phase {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.phase
}

// complete returns the number of kubelets that have all their watches.
func (g *kubelets) complete() int { return g.current().complete }

// completed records that a kubelet got all its watches, or lost one, on a connection of a phase.
func (g *kubelets) completed(number int, complete bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &g.phase
	if p.number != number {
		return
	}
	if !complete {
		p.complete--
		return
	}
	p.complete++
	took := time.Since(p.begun)
	p.latencies.Record(took)
	if p.complete == len(g.all) && p.last == 0 {
		p.last = took
	}
}

// failed records an attempt that failed.
func (g *kubelets) failed(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.phase.failures.Add(watchFailure(err), err)
	g.phase.failure = err
}

// watchFailure classifies the error of an attempt.
func watchFailure(err error) string {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.Is(err, errShortWatch):
		return errShortWatch.Error()
	}
	return kindOf(err)
}

// run connects until ctx ends.
func (k *kubelet) run(ctx context.Context) {
	for attempt := 0; ctx.Err() == nil; {
		k.group.awaitGate(ctx)
		s, err := k.dial(ctx)
		if err == nil {
			err = s.serve()
			k.forget()
			if s.succeeded {
				// The watches have ended as if their time were over, so client-go watches on at once.
				attempt = 0
				continue
			}
		}
		if ctx.Err() != nil {
			return
		}
		k.group.failed(err)
		attempt++
		_ = experiment.Sleep(ctx, retryDelay(attempt))
	}
}

// retryDelay returns the delay of a reflector after so many failed attempts.
func retryDelay(attempts int) time.Duration {
	delay := firstRetry
	for i := 1; i < attempts && delay < lastRetry; i++ {
		delay *= 2
	}
	return time.Duration(float64(min(delay, lastRetry)) * (1 + rand.Float64()))
}

// dial opens a connection.
func (k *kubelet) dial(ctx context.Context) (*session, error) {
	dialer := net.Dialer{Timeout: kubeletDialTimeout, LocalAddr: &net.TCPAddr{IP: k.source}}
	connected, err := dialer.DialContext(ctx, "tcp", k.group.front.addresses[0])
	if err != nil {
		return nil, err
	}
	k.keep(connected.(*net.TCPConn))
	// Read after keep: a connection that is kept before a phase begins is closed then.
	number := k.group.current().number
	conn := tls.Client(connected, k.credentials)
	limited, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(limited); err != nil {
		k.forget()
		return nil, err
	}
	return newSession(k, conn, number), nil
}

// keep makes a connection the current one.
func (k *kubelet) keep(conn *net.TCPConn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conn = conn
}

// forget closes the current connection.
func (k *kubelet) forget() {
	k.reset()
	k.keep(nil)
}

// reset closes the current connection, if there is one, with RST, so that its local port is free at once.
func (k *kubelet) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn != nil {
		_ = k.conn.SetLinger(0)
		_ = k.conn.Close()
	}
}
