// Package agent is the program network-agent: it gives the pods of a node real IPv6 addresses, without overlay and NAT.
//
// command.go has the command line and options.go its flags. agent.go runs the parts: prefix.go gets the prefix of the node,
// host.go prepares the kernel, pods.go follows the pods and keeps the filter up to date, metrics.go has the pages.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/k8s-1m/k8s-1m/internal/network/claim"
	"github.com/k8s-1m/k8s-1m/internal/network/cni"
	"github.com/k8s-1m/k8s-1m/internal/network/filter"
	"github.com/k8s-1m/k8s-1m/internal/network/neighbour"
)

// prefixInterval is the time after which the agent looks whether the provider has given the uplink another prefix.
const prefixInterval = 10 * time.Second

// errPrefixChanged ends the service of a prefix.
var errPrefixChanged = errors.New("the prefix of the node has changed")

// serving are the parts that work for a prefix.
type serving struct {
	state     state
	pods      *pods
	responder *neighbour.Responder // nil if the provider does not ask
}

// Run runs the agent until ctx ends.
func Run(parent context.Context, o *Options, log *slog.Logger) error {
	claims, err := o.newClaims()
	if err != nil {
		return err
	}
	status := &status{}
	ctx, cancel := context.WithCancelCause(parent)
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel(nil)
	if o.MetricsAddress != "" {
		listener, err := net.Listen("tcp", o.MetricsAddress)
		if err != nil {
			return fmt.Errorf("--metrics-address %s: %w", o.MetricsAddress, err)
		}
		wait.Go(func() {
			if err := status.serve(ctx, listener); err != nil {
				cancel(err)
			}
		})
	}
	for {
		err := o.runPrefix(ctx, claims, status, log)
		switch {
		case parent.Err() != nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, errPrefixChanged):
			return err
		}
		log.Info("the provider has given this node another prefix")
	}
}

// runPrefix gets a prefix and serves it until it changes.
func (o *Options) runPrefix(ctx context.Context, claims claim.Store, status *status, log *slog.Logger) error {
	before, err := readState(o.StateAt)
	if err != nil {
		return err
	}
	now, err := o.awaitPrefix(ctx, claims, before, log, func() { status.conflicts.Add(1) })
	if err != nil {
		return err
	}
	if err := now.write(o.StateAt); err != nil {
		return err
	}
	s, err := o.start(now, log)
	if err != nil {
		return err
	}
	defer func() {
		status.serving.Store(nil)
		_ = s.pods.filter.Close()
	}()
	status.serving.Store(s)
	log.Info("pods of this node can start", "prefix", now.Pods, "mode", o.Mode, "bridge", o.Bridge, "uplink", o.Uplink)
	return o.serve(ctx, claims, s, log)
}

// start prepares the node for a prefix.
func (o *Options) start(now state, log *slog.Logger) (*serving, error) {
	uplink, err := netlink.LinkByName(o.Uplink)
	if err != nil {
		return nil, fmt.Errorf("uplink %s: %w", o.Uplink, err)
	}
	mtu := o.MTU
	if mtu == 0 {
		mtu = uplink.Attrs().MTU
	}
	if err := o.prepareHost(now.Pods, mtu, log); err != nil {
		return nil, err
	}
	own, err := o.uplinkAddresses()
	if err != nil {
		return nil, err
	}
	s := &serving{state: now, pods: &pods{options: o, prefix: now.Pods, log: log}}
	if err := s.pods.install(); err != nil {
		return nil, err
	}
	if err := s.begin(o, own, mtu); err != nil {
		return nil, errors.Join(err, s.pods.filter.Close())
	}
	return s, nil
}

// begin does what makes pods start, after the filter is there.
func (s *serving) begin(o *Options, own []netip.Prefix, mtu int) (err error) {
	config := cni.Config{Bridge: o.Bridge, Pods: s.state.Pods, MTU: mtu, LeasesDir: o.LeasesDir}
	var except []netip.Addr
	for _, a := range own {
		except = append(except, a.Addr())
		if s.state.Pods.Contains(a.Addr()) {
			config.Node = a.Addr()
		}
	}
	if o.answers() {
		if s.responder, err = neighbour.NewResponder(o.Uplink, s.state.Pods, except...); err != nil {
			return err
		}
	}
	return config.Write(o.ConfigDir)
}

// serve runs the parts until ctx ends, one of them fails or the prefix changes.
func (o *Options) serve(ctx context.Context, claims claim.Store, s *serving, log *slog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	part := func(run func(context.Context) error) {
		wait.Go(func() {
			if err := run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	part(s.pods.watch)
	if claims != nil && len(s.state.Earlier) > 0 {
		part(func(ctx context.Context) error { return o.releaseEarlier(ctx, claims, s.state, log) })
	}
	if s.responder != nil {
		part(func(ctx context.Context) error {
			s.responder.Run(ctx, log)
			return nil
		})
	}
	if o.Prefix == PrefixFromUplink {
		part(func(ctx context.Context) error { return o.watchPrefix(ctx, s.state.Claimed) })
	}
	<-ctx.Done()
	wait.Wait()
	return context.Cause(ctx)
}

// watchPrefix returns errPrefixChanged when the uplink has another prefix. It ignores a uplink without one, which may come back.
func (o *Options) watchPrefix(ctx context.Context, before netip.Prefix) error {
	ticker := time.NewTicker(prefixInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if now, err := o.provided(); err == nil && now != before {
				return errPrefixChanged
			}
		}
	}
}

// Leave gives back the prefix of the node and removes what the agent made.
func Leave(ctx context.Context, o *Options) error {
	claims, err := o.newClaims()
	if err != nil {
		return err
	}
	before, err := readState(o.StateAt)
	if err != nil {
		return err
	}
	if claims != nil {
		for _, h := range before.claims() {
			if err := claim.Release(ctx, claims, h.Prefix, h.Node); err != nil {
				return err
			}
		}
	}
	err = errors.Join(cni.Remove(o.ConfigDir), filter.Remove(), o.removeHost())
	if err != nil {
		return err
	}
	if err := os.Remove(o.StateAt); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the state: %w", err)
	}
	return nil
}
