package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"golang.zx2c4.com/wireguard/tun"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/client"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/dataplane"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/dns64"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/enroll"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/masquerade"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/nat64"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/nodes"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/registry"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/reload"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

const (
	// maxRequests bounds the HTTPS connections of nodes at a time; others wait in the kernel.
	maxRequests = 1024
	// expiryInterval is how often certificates, revocations and registrations are looked at, and files read
	// again.
	expiryInterval = time.Second
)

// gateway is a running gateway.
type gateway struct {
	settings    *settings
	log         *slog.Logger
	plane       *dataplane.Dataplane
	registry    *registry.Registry
	revocations *enroll.Revocations
	dns         *dns64.Server
	collector   *collector
	host        *netns.Namespace
	failed      chan error
	wait        sync.WaitGroup
}

// serve runs a gateway until the context ends.
func serve(ctx context.Context, s *settings, log *slog.Logger) error {
	g := &gateway{settings: s, log: log, failed: make(chan error, 8)}
	if err := g.open(); err != nil {
		return errors.Join(err, g.close())
	}
	ctx, cancel := context.WithCancel(ctx)
	err := g.run(ctx)
	cancel()
	g.wait.Wait()
	return errors.Join(err, g.saveState(), g.close())
}

// open makes everything that can fail for lack of rights or files.
func (g *gateway) open() (err error) {
	s := g.settings
	if g.revocations, err = enroll.NewRevocations(s.clientCRL, s.clientCA); err != nil {
		return err
	}
	key, err := client.LoadPrivateKey(s.privateKeyFile)
	if err != nil {
		return err
	}
	if s.nat64 != nil {
		if _, err := rand.Read(s.nat64.Seed[:]); err != nil {
			return err
		}
	}
	if g.host, err = netns.Current(); err != nil {
		return err
	}
	device, err := tun.CreateTUN(s.link, s.linkMTU())
	if err != nil {
		return fmt.Errorf("TUN device %s: %w; it needs the capability NET_ADMIN and /dev/net/tun", s.link, err)
	}
	g.plane, err = dataplane.New(dataplane.Config{
		PrivateKey: key, Port: s.tunnelPort, MTU: s.mtu, NAT64: s.nat64, Masquerade: s.masquerade.IsValid(),
	}, device)
	if err != nil {
		return errors.Join(err, device.Close())
	}
	g.registry = registry.New(registry.Config{MaxPeers: s.maxNodes, TTL: s.ttl, IPv4: s.masquerade}, g.plane)
	g.collector = &collector{g: g, statuses: map[int]uint64{}}
	if err := g.openLink(); err != nil {
		return err
	}
	g.restoreState(g.log)
	return g.openDNS()
}

// openLink routes IPv4 for nodes to the TUN device, and installs the rules of the kernel.
func (g *gateway) openLink() error {
	s := g.settings
	if err := g.host.Up(s.link); err != nil {
		return err
	}
	rules := masquerade.Gateway{Link: s.link, Nodes: s.masquerade, Denied: s.denied, Connections: s.nodeConnections, NewPerSecond: s.nodeRate}
	var routed []netip.Prefix
	if s.nat64 != nil {
		routed = append(routed, s.nat64.Pool...)
		if s.masqueradePool {
			rules.Sources = append(rules.Sources, s.nat64.Pool...)
		}
	}
	if s.masquerade.IsValid() {
		routed = append(routed, s.masquerade)
		rules.Sources = append(rules.Sources, s.masquerade)
	}
	for _, prefix := range routed {
		if err := g.host.AddRoute(netns.Route{To: prefix, Link: s.link}); err != nil {
			return err
		}
	}
	if err := netns.SetSysctl("ipv4/ip_forward", "1"); err != nil {
		return err
	}
	return rules.Apply()
}

func (g *gateway) openDNS() (err error) {
	s := g.settings
	if len(s.dnsListen) == 0 {
		return nil
	}
	excluded := nat64.NeverReachable()
	if !s.allowPrivate {
		excluded = append(excluded, nat64.NotGlobal()...)
	}
	g.dns, err = dns64.NewServer(dns64.ServerConfig{
		Config: dns64.Config{Prefix: s.prefix, ExcludeAAAA: dns64.DefaultExcludeAAAA(), ExcludeA: excluded},
		Listen: s.dnsListen, Upstreams: s.dnsUpstreams, Timeout: s.dnsTimeout, MaxQueries: s.dnsQueries, Clients: s.dnsClients,
	})
	return err
}

// run serves until the context ends or a part fails.
func (g *gateway) run(ctx context.Context) error {
	if err := g.watchNodes(ctx); err != nil {
		return err
	}
	g.wait.Go(func() { g.expire(ctx) })
	g.wait.Go(func() {
		reload.Every(ctx, expiryInterval, g.revocations.Reload, func(err error) {
			g.log.Error("failed to reload revocation lists; keeping the previous ones", "err", err)
		})
	})
	g.wait.Go(func() { g.save(ctx) })
	if err := g.serveRegistrations(ctx); err != nil {
		return err
	}
	if err := g.servePages(ctx); err != nil {
		return err
	}
	g.log.Info("gateway serves nodes", "listen", g.settings.listen, "tunnelPort", g.plane.Port(), "publicKey", g.plane.PublicKey(),
		"nat64", g.settings.nat64 != nil, "masquerade", g.settings.masquerade)
	var dnsFailed <-chan error
	if g.dns != nil {
		dnsFailed = g.dns.Failed()
	}
	select {
	case <-ctx.Done():
		g.log.Info("gateway stops")
		return nil
	case err := <-g.failed:
		return err
	case err := <-g.plane.Failed():
		return err
	case err := <-dnsFailed:
		return err
	}
}

// watchNodes follows the nodes of the file or the cluster.
func (g *gateway) watchNodes(ctx context.Context) error {
	s := g.settings
	if s.nodesFile != "" {
		g.wait.Go(func() { g.report(nodes.FromFile(ctx, s.nodesFile, expiryInterval, g.registry, g.log)) })
		return nil
	}
	config, err := rest.InClusterConfig()
	if !s.inCluster {
		config, err = clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	}
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	g.wait.Go(func() {
		g.report(nodes.FromKubernetes(ctx, api, nodes.Options{Selector: s.selector, Annotation: s.annotation, ClaimsNamespace: s.claims}, g.registry, g.log))
	})
	return nil
}

// report ends the gateway after an error.
func (g *gateway) report(err error) {
	if err != nil {
		select {
		case g.failed <- err:
		default:
		}
	}
}

// expire disconnects nodes whose certificate or registration has ended.
func (g *gateway) expire(ctx context.Context) {
	ticker := time.NewTicker(expiryInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if gone := g.registry.Expire(time.Now(), g.revocations.Revoked); len(gone) > 0 {
			g.log.Info("nodes are disconnected: certificate expired or revoked, or registration not renewed", "nodes", gone)
		}
	}
}

// save writes the state now and then, for a gateway that is killed.
func (g *gateway) save(ctx context.Context) {
	ticker := time.NewTicker(g.settings.stateInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := g.saveState(); err != nil {
			g.log.Error("failed to save the state; a restart would lose connections", "err", err)
		}
	}
}

// serveRegistrations starts the HTTPS server for nodes.
func (g *gateway) serveRegistrations(ctx context.Context) error {
	s := g.settings
	clients, err := enroll.ReadCertificates(s.clientCA)
	if err != nil {
		return err
	}
	tlsConfig, err := enroll.ServerTLS(s.certificate, s.key, clients)
	if err != nil {
		return err
	}
	template := enroll.Response{
		PublicKey: g.plane.PublicKey().String(), Host: s.tunnelHost, Port: g.plane.Port(), MTU: s.mtu,
		DNS64: s.dnsListen, RenewSeconds: max(1, int(s.ttl/(3*time.Second))),
	}
	if s.nat64 != nil {
		template.NAT64Prefix = s.prefix.String()
	}
	listener, err := net.Listen("tcp", s.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	server := &http.Server{
		Handler: &enroll.Server{
			Template: template, Registry: g.registry, Revoked: g.revocations.Revoked, Now: time.Now, Count: g.collector.countStatus,
		},
		TLSConfig: tlsConfig, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
	g.runServer(ctx, server, func() error { return server.ServeTLS(netutil.LimitListener(listener, maxRequests), "", "") })
	return nil
}

// servePages starts the HTTP server of the metrics.
func (g *gateway) servePages(ctx context.Context) error {
	if g.settings.metricsListen == "" {
		return nil
	}
	pages, err := g.pages()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", g.settings.metricsListen)
	if err != nil {
		return fmt.Errorf("--metrics-listen: %w", err)
	}
	server := &http.Server{Handler: pages, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute}
	g.runServer(ctx, server, func() error { return server.Serve(netutil.LimitListener(listener, 64)) })
	return nil
}

// runServer runs a server until the context ends.
func (g *gateway) runServer(ctx context.Context, server *http.Server, run func() error) {
	g.wait.Go(func() {
		if err := run(); !errors.Is(err, http.ErrServerClosed) {
			g.report(err)
		}
	})
	g.wait.Go(func() {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if server.Shutdown(stop) != nil {
			_ = server.Close()
		}
	})
}

// close stops moving packets and removes the rules of the kernel.
func (g *gateway) close() error {
	var errs []error
	if g.dns != nil {
		g.dns.Close()
	}
	if g.plane != nil {
		errs = append(errs, g.plane.Close(), masquerade.Remove())
	}
	if g.host != nil {
		errs = append(errs, g.host.Close())
	}
	return errors.Join(errs...)
}
