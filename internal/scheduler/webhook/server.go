// Package webhook serves a validating admission webhook through which the scheduler
// receives pods while the API server creates them, before its watch delivers them. The
// webhook allows every request.
//
// Only the leader serves it. The ValidatingWebhookConfiguration has the URL of this
// process, fails open, and is deleted when the process stops. A failure here delays pods
// but loses none, because the watch delivers all pods.
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
	// The webhook is served for drainTime after its configuration was deleted, for requests
	// that are already under way.
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

// New returns a server for pods with one of the given scheduler names. It calls take,
// concurrently, for each pod, and drop with a reason for each pod that it leaves to the
// watch. It returns an error if the port is in use, so that this is noticed before the
// process becomes the leader.
func New(o Options, schedulers []string, client kubernetes.Interface, take func(*v1.Pod), drop func(reason string)) (*Server, error) {
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
	// The path is random, so that clients without access to the configuration cannot send pods.
	path := "/pods/" + rand.Text()
	return &Server{
		options: o, handler: newHandler(path, take, drop),
		authority: newAuthority(client, o.Name, base.Hostname(), time.Now),
		registrar: newRegistrar(client, o.Name, base.JoinPath(path).String(), schedulers),
		stop:      make(chan struct{}), done: make(chan struct{}),
	}, nil
}

// Run serves the webhook from the time leads is closed until [Server.Stop] is called or
// ctx ends. It then deletes the configuration, so that API servers no longer call this
// process.
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
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	var listening sync.WaitGroup
	s.reconcile(ctx, func() error { return s.listen(serving, &listening) })

	last, done := context.WithTimeout(serving, stopTimeout)
	defer done()
	if err := s.registrar.withdraw(last); err != nil {
		klog.FromContext(ctx).Error(err, "failed to delete the webhook configuration; the next leader replaces it")
	}
	time.Sleep(drainTime)
	end()
	listening.Wait()
}

// reconcile creates and renews certificates and configuration, and starts listening once
// there is a certificate.
func (s *Server) reconcile(ctx context.Context, listen func() error) {
	logger := klog.FromContext(ctx)
	changed, err := s.registrar.watch(ctx)
	if err != nil {
		logger.Error(err, "failed to watch the webhook configuration; it is polled instead", "interval", checkInterval)
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
			logger.Error(err, "failed to set up the webhook; pods arrive by the watch only", "retryAfter", retry)
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
	serving.Go(func() {
		if err := s.handler.serve(ctx, listener, secure); err != nil && !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "webhook server failed; pods arrive by the watch only")
		}
	})
	return nil
}

// Stop ends [Server.Run] and waits until it has returned, for a bounded time. It is called
// before the process gives up leadership.
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
