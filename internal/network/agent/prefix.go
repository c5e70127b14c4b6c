package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/k8s-1m/k8s-1m/internal/network/address"
	"github.com/k8s-1m/k8s-1m/internal/network/claim"
)

// retryInterval is the time after which the agent tries again to get a prefix.
const retryInterval = 5 * time.Second

// releaseInterval is the time after which the agent tries again to give back an earlier prefix.
const releaseInterval = time.Minute

// newClaims returns the store of claims, or nil for --claims none.
func (o *Options) newClaims() (claim.Store, error) {
	switch o.Claims {
	case claimsNone:
		return nil, nil
	case claimsKubernetes:
		config, err := o.restConfig()
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig %s: %w", o.Kubeconfig, err)
		}
		return claim.NewKubernetes(config, o.Namespace)
	}
	return claim.NewDirectory(o.Claims)
}

func (o *Options) restConfig() (*rest.Config, error) {
	if o.Kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
}

// uplinkAddresses returns the global addresses of the uplink, with the lengths of their prefixes.
func (o *Options) uplinkAddresses() (all []netip.Prefix, err error) {
	link, err := netlink.LinkByName(o.Uplink)
	if err != nil {
		return nil, fmt.Errorf("uplink %s: %w", o.Uplink, err)
	}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		return nil, fmt.Errorf("addresses of the uplink %s: %w", o.Uplink, err)
	}
	for _, a := range addresses {
		ip, ok := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		if ok && ip.IsGlobalUnicast() {
			all = append(all, netip.PrefixFrom(ip, ones))
		}
	}
	return all, nil
}

// provided returns the prefix that the provider gave to the node.
func (o *Options) provided() (netip.Prefix, error) {
	if o.Prefix != PrefixFromUplink {
		return netip.MustParsePrefix(o.Prefix), nil
	}
	addresses, err := o.uplinkAddresses()
	if err != nil {
		return netip.Prefix{}, err
	}
	for _, a := range addresses {
		if a.Bits() <= address.PodBits {
			return a.Masked(), nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("uplink %s has no global address with a prefix of at most %d bits; set --prefix", o.Uplink, address.PodBits)
}

// take gets the prefix of the node and its claim.
func (o *Options) take(ctx context.Context, claims claim.Store, before state) (claimed netip.Prefix, err error) {
	if o.Pool != "" {
		return claim.Assign(ctx, claims, netip.MustParsePrefix(o.Pool), address.PodBits, o.Node, before.Claimed, o.ReuseAfter)
	}
	provided, err := o.provided()
	if err != nil || claims == nil {
		return provided, err
	}
	return provided, claim.Take(ctx, claims, provided, o.Node, o.ReuseAfter)
}

// earlier returns the claims of before that the node has to give back, now that it has claimed a prefix.
func (o *Options) earlier(before state, claimed netip.Prefix) []held {
	if o.Claims == claimsNone {
		return before.Earlier // they can be given back when there are claims again
	}
	return slices.DeleteFunc(before.claims(), func(h held) bool { return h.Prefix == claimed })
}

// release gives back earlier claims, and returns those for which that has failed.
func release(ctx context.Context, claims claim.Store, earlier []held, log *slog.Logger) (left []held) {
	for _, h := range earlier {
		if err := claim.Release(ctx, claims, h.Prefix, h.Node); err != nil {
			log.Warn("an earlier prefix of this node could not be given back; trying again", "prefix", h.Prefix, "error", err, "after", releaseInterval)
			left = append(left, h)
			continue
		}
		log.Info("an earlier prefix of this node was given back", "prefix", h.Prefix)
	}
	return left
}

// releaseEarlier gives back earlier claims until none is left or ctx ends. The state forgets those that are given back.
func (o *Options) releaseEarlier(ctx context.Context, claims claim.Store, s state, log *slog.Logger) error {
	for {
		left := release(ctx, claims, s.Earlier, log)
		if len(left) < len(s.Earlier) {
			s.Earlier = left
			if err := s.write(o.StateAt); err != nil {
				return err
			}
		}
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(releaseInterval):
		}
	}
}

// awaitPrefix takes the prefix of the node, again and again until that succeeds. conflict is called when another node has the
// prefix.
func (o *Options) awaitPrefix(ctx context.Context, claims claim.Store, before state, log *slog.Logger, conflict func()) (state, error) {
	for {
		claimed, err := o.take(ctx, claims, before)
		if err == nil {
			pods, err := address.Pods(claimed)
			return state{Node: o.Node, Claimed: claimed, Pods: pods, Earlier: o.earlier(before, claimed)}, err
		}
		var held *claim.HeldError
		if errors.As(err, &held) {
			conflict()
		}
		log.Error("no prefix for the pods of this node; trying again", "error", err, "after", retryInterval)
		select {
		case <-ctx.Done():
			return state{}, ctx.Err()
		case <-time.After(retryInterval):
		}
	}
}
