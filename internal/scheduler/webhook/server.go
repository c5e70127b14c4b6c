// Package webhook serves a validating admission webhook. Through it, the scheduler receives pods while the API
// server creates them, before its watch delivers them. The webhook allows every request.
//
// Only the leader serves the webhook. The ValidatingWebhookConfiguration contains the URL of this process and
// fails open. It is deleted when the process stops. A failure of the webhook delays pods, but loses none,
// because the watch delivers all pods.
package webhook

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const (
	// Failed writes are retried after retryInterval, which doubles up to checkInterval.
	// Certificates and configuration are checked every checkInterval.
	retryInterval = 2 * time.Second
	checkInterval = time.Minute
	// stopTimeout bounds the requests to the API server during a stop.
	stopTimeout = 3 * time.Second
	// The webhook is served for drainTime after its configuration was deleted, to answer requests
	// that API servers have already sent or still send.
	drainTime = 200 * time.Millisecond
)

// Server serves the webhook and maintains its certificates and configuration.
type Server struct {
	options    Options
	handler    *handler
	authority  *authority
	registrar  *registrar
	stopOnce   sync.Once
	stop, done chan struct{}
}

// New returns a server for pods with one of the given scheduler names. The server calls take for each
// pod, and drop with a reason for each pod that it leaves to the watch. It may call both concurrently.
// New returns an error if the port is in use, or if the CA of the clients cannot be read, so that the
// process fails at its start and not when it becomes the leader. Changed files are read again until ctx
// ends.
func New(ctx context.Context, o Options, schedulers []string, client kubernetes.Interface, take func(*v1.Pod), drop func(reason string)) (*Server, error) {
	listener, err := net.Listen("tcp", o.address())
	if err != nil {
		return nil, fmt.Errorf("--intake-port %d: %w; choose another", o.Port, err)
	}
	if err := listener.Close(); err != nil {
		return nil, err
	}
	base, err := o.baseURL()
	if err != nil {
		return nil, err
	}
	clients, err := newClients(ctx, o)
	if err != nil {
		return nil, err
	}
	// The path is random. If no client certificate is required, only this prevents clients without
	// access to the configuration from sending pods.
	path := "/pods/" + rand.Text()
	return &Server{
		options: o, handler: newHandler(path, clients, take, drop),
		authority: newAuthority(client, o.Name, base.Hostname(), time.Now),
		registrar: newRegistrar(client, o.Name, base.JoinPath(path).String(), schedulers),
		stop:      make(chan struct{}), done: make(chan struct{}),
	}, nil
}

// Run waits until leads is closed, and then serves the webhook until [Server.Stop] is called or ctx ends. Then
// it deletes the configuration, so that API servers no longer call this process.
func (s *Server) Run(ctx context.Context, leads <-chan struct{}) {
	defer close(s.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	select {
	case <-leads:
	case <-ctx.Done():
		return
	}
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	var listening sync.WaitGroup
	s.reconcile(ctx, func() error { return s.listen(serving, &listening) })

	withdrawal, cancelWithdrawal := context.WithTimeout(serving, stopTimeout)
	defer cancelWithdrawal()
	if err := s.registrar.withdraw(withdrawal); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to delete the webhook configuration; the next leader replaces it")
	}
	time.Sleep(drainTime)
	stopServing()
	listening.Wait()
}

// reconcile creates and renews the certificates and the configuration until the context ends. It calls listen
// when there is a certificate, before it writes the configuration.
func (s *Server) reconcile(ctx context.Context, listen func() error) {
	logger := klog.FromContext(ctx)
	changed, err := s.registrar.watch(ctx)
	if err != nil {
		logger.Error(err, "Failed to watch the webhook configuration; polling it instead", "interval", checkInterval)
	}
	listening, retry := false, retryInterval
	for {
		wait := checkInterval
		err := s.authority.ensure(ctx)
		if err == nil && !listening {
			err = listen()
			listening = err == nil
		}
		if err == nil {
			err = s.registrar.ensure(ctx, s.authority.bundle())
		}
		if err != nil && ctx.Err() == nil {
			logger.Error(err, "Failed to set up the webhook; pods arrive only through the watch", "retryAfter", retry)
			wait, retry = retry, min(2*retry, checkInterval)
		} else {
			retry = retryInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(wait):
		}
	}
}

// listen serves requests in the background until ctx ends.
func (s *Server) listen(ctx context.Context, serving *sync.WaitGroup) error {
	listener, err := net.Listen("tcp", s.options.address())
	if err != nil {
		return fmt.Errorf("listening for the webhook: %w", err)
	}
	secure := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.authority.serving(), nil },
	}
	s.handler.clients.configure(secure)
	serving.Go(func() {
		if err := s.handler.serve(ctx, listener, secure); err != nil && !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "Webhook server failed; pods arrive only through the watch")
		}
	})
	return nil
}

// Stop ends [Server.Run], and waits for a bounded time until it has returned. It must be called before the
// process releases the leader election lock.
func (s *Server) Stop() {
	s.stopOnce.Do(func() { close(s.stop) })
	select {
	case <-s.done:
	case <-time.After(stopTimeout + drainTime):
	}
}

// baseURL returns the URL of the webhook without its path.
func (o *Options) baseURL() (*url.URL, error) {
	if o.URL != "" {
		return url.Parse(o.URL)
	}
	host, err := o.advertised()
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, fmt.Sprint(o.Port))}, nil
}
