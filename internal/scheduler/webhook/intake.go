// Package webhook is told of pods by the API server while it creates them: a validating
// webhook that allows everything at once, and hands each pod on before any watch
// shows it.
//
// It runs where the scheduler leads. The configuration of the webhook names this
// process and nothing else, fails open, and is taken away when the process ends in
// good order. Whatever goes wrong here costs a head start, and no pod: the watch shows
// all of them.
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
	// A configuration that cannot be written is tried again after so long, and twice as
	// long each time, up to how often certificates are looked after.
	retryInterval = 2 * time.Second
	checkInterval = time.Minute
	// Ending takes no longer, whatever the API server does.
	stopTimeout = 3 * time.Second
	// Requests that are on their way when the configuration goes are still answered.
	drainTime = 200 * time.Millisecond
)

// Intake is a webhook that has not been started, or runs.
type Intake struct {
	options    Options
	server     *server
	authority  *authority
	registrar  *registrar
	stopOnce   sync.Once
	stop, done chan struct{}
}

// New makes a webhook for pods that name one of these schedulers, which are handed to
// take, several at a time. It fails if its port is taken, so that this is known before
// the process leads.
func New(o Options, schedulers []string, client kubernetes.Interface, take func(*v1.Pod), drop func(reason string)) (*Intake, error) {
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
	// Whoever does not know the path hands over nothing.
	path := "/pods/" + rand.Text()
	return &Intake{
		options: o, server: newServer(path, take, drop),
		authority: newAuthority(client, o.Name, base.Hostname(), time.Now),
		registrar: newRegistrar(client, o.Name, base.JoinPath(path).String(), schedulers),
		stop:      make(chan struct{}), done: make(chan struct{}),
	}, nil
}

// Run serves from when the process leads until [Intake.Stop] is called, or ctx ends. It
// then takes the configuration away, so that nobody waits for this process.
func (i *Intake) Run(ctx context.Context, leads <-chan struct{}) {
	defer close(i.done)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-i.stop:
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
	var server sync.WaitGroup
	i.reconcile(ctx, func() error { return i.listen(serving, &server) })

	last, done := context.WithTimeout(serving, stopTimeout)
	defer done()
	if err := i.registrar.withdraw(last); err != nil {
		klog.FromContext(ctx).Error(err, "The webhook's configuration stays; the next leader replaces it")
	}
	time.Sleep(drainTime)
	end()
	server.Wait()
}

// reconcile keeps certificates and configuration as they should be, and has the webhook
// served as soon as there is a certificate.
func (i *Intake) reconcile(ctx context.Context, listen func() error) {
	logger := klog.FromContext(ctx)
	changed, err := i.registrar.watch(ctx)
	if err != nil {
		logger.Error(err, "Changes of the webhook's configuration are noticed late")
	}
	listening, retry := false, retryInterval
	for {
		wait := checkInterval
		err := i.authority.ensure(ctx)
		if err == nil && !listening {
			err = listen()
			listening = err == nil
		}
		if err == nil {
			err = i.registrar.ensure(ctx, i.authority.bundle())
		}
		if err != nil && ctx.Err() == nil {
			logger.Error(err, "Pods come by the watch only, until this works", "retryAfter", retry)
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

// listen serves in the background until ctx ends.
func (i *Intake) listen(ctx context.Context, serving *sync.WaitGroup) error {
	listener, err := net.Listen("tcp", i.options.address())
	if err != nil {
		return fmt.Errorf("listening for the webhook: %w", err)
	}
	secure := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.authority.serving(), nil },
	}
	serving.Go(func() {
		if err := i.server.serve(ctx, listener, secure); err != nil && !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "The webhook has ended; pods come by the watch only")
		}
	})
	return nil
}

// Stop ends [Intake.Run] and waits for it, but not for ever. It is called before the
// process stops to lead.
func (i *Intake) Stop() {
	i.stopOnce.Do(func() { close(i.stop) })
	select {
	case <-i.done:
	case <-time.After(stopTimeout + drainTime):
	}
}

// baseURL is where API servers reach the webhook.
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
