// Package client connects a node to a gateway: it registers the node's WireGuard key, makes the tunnel and
// its routes, renews the registration, and goes to another gateway if one does not answer. The tunnel is
// that of the wireguard-go library.
package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/enroll"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
)

// Config is the configuration of a node.
type Config struct {
	// Gateways are the HTTPS addresses of gateways, such as https://[2001:db8::1]:8443.
	Gateways []string
	// Certificate and Key are the client certificate of kubelet; CA verifies the gateways.
	Certificate, Key, CA string
	// PrivateKeyFile keeps the WireGuard key, which is made if it does not exist.
	PrivateKeyFile string
	// Link is the name of the tunnel device.
	Link string
	// IPv4Metric is the metric of the IPv4 default route into the tunnel, if the gateway masquerades.
	IPv4Metric int
	// MasqueradePods masquerades IPv4 of pods with the address of the node in the tunnel.
	MasqueradePods bool
	// KeepRegistration leaves the node registered when the client stops.
	KeepRegistration bool
	// StatusFile gets the state as JSON after each change; unused if empty.
	StatusFile string
	Log        *slog.Logger
}

const (
	// attempts is how often a gateway is asked before the next one is.
	attempts = 3
	// retryAfter is the time between attempts.
	retryAfter = 2 * time.Second
)

// Run connects the node until the context ends, then disconnects it.
func Run(ctx context.Context, config Config) error {
	key, err := LoadPrivateKey(config.PrivateKeyFile)
	if err != nil {
		return err
	}
	api, err := newAPI(config)
	if err != nil {
		return err
	}
	tunnel, err := newTunnel(config, key)
	if err != nil {
		return err
	}
	r := &runner{config: config, key: key, api: api, tunnel: tunnel, order: order(api.name, config.Gateways)}
	defer r.end()
	return r.run(ctx)
}

// runner is a node that is connected, or tries to be.
type runner struct {
	config  Config
	key     wireguard.PrivateKey
	api     *api
	tunnel  *tunnel
	order   []string // gateways by preference
	gateway string   // of the last successful registration
	// unanswered is a gateway that may have registered this node, but whose answer did not arrive or could not be used.
	unanswered string
}

func (r *runner) run(ctx context.Context) error {
	for {
		wait, err := r.register(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			r.config.Log.Warn("no gateway accepts this node; trying again", "err", err)
			wait = retryAfter // the gateway may not know a new node yet
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.tunnel.device.Wait():
			return fmt.Errorf("tunnel device %s was closed unexpectedly", r.config.Link)
		case <-time.After(wait):
		}
	}
}

// register registers with the first gateway that accepts the node, and returns when to do it again.
func (r *runner) register(ctx context.Context) (time.Duration, error) {
	var problems []error
	var unusable []string // gateways that have registered the node, but whose answer cannot be used
	for _, gateway := range r.candidates() {
		answer, err := r.ask(ctx, gateway)
		if err == nil {
			if err = r.tunnel.configure(answer); err != nil {
				unusable = append(unusable, gateway)
			}
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", gateway, err))
			continue
		}
		if len(problems) > 0 {
			r.config.Log.Warn("other gateways cannot be used", "err", errors.Join(problems...))
		}
		r.connected(gateway, answer.Response)
		r.leaveAll(ctx, unusable)
		return time.Duration(max(answer.RenewSeconds, 1)) * time.Second, nil
	}
	return 0, errors.Join(problems...)
}

// connected records that the tunnel leads to a gateway.
func (r *runner) connected(gateway string, response enroll.Response) {
	if r.gateway != gateway {
		r.config.Log.Info("connected", "gateway", gateway, "nat64Prefix", response.NAT64Prefix, "ipv4", response.IPv4)
	} else {
		r.config.Log.Debug("registration renewed", "gateway", gateway, "renewSeconds", response.RenewSeconds)
	}
	r.gateway, r.unanswered = gateway, ""
	if err := writeStatus(r.config.StatusFile, gateway, response); err != nil {
		r.config.Log.Warn("status cannot be written", "err", err)
	}
}

// candidates returns the gateways, the one in use first.
func (r *runner) candidates() []string {
	if r.gateway == "" {
		return r.order
	}
	return append([]string{r.gateway}, slices.DeleteFunc(slices.Clone(r.order), func(g string) bool { return g == r.gateway })...)
}

func (r *runner) ask(ctx context.Context, gateway string) (answer registration, err error) {
	for attempt := range attempts {
		if attempt > 0 {
			r.config.Log.Debug("gateway does not answer; trying again", "gateway", gateway, "err", err)
			select {
			case <-ctx.Done():
				return answer, ctx.Err()
			case <-time.After(retryAfter):
			}
		}
		r.unanswered = gateway
		answer, err = r.api.register(ctx, gateway, r.key.Public())
		var refused *refusedError
		if errors.As(err, &refused) {
			r.unanswered = ""
		}
		if err == nil || r.unanswered == "" {
			return answer, err
		}
	}
	return answer, err
}

// end disconnects the node.
func (r *runner) end() {
	if !r.config.KeepRegistration {
		r.leave()
	}
	if err := r.tunnel.close(); err != nil {
		r.config.Log.Warn("the tunnel was not closed properly", "err", err)
	}
	if r.config.StatusFile != "" {
		_ = os.Remove(r.config.StatusFile) // there may be none
	}
}

// leave tells the gateways that have registered this node, or may have, that it leaves.
func (r *runner) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	gateways := slices.DeleteFunc([]string{r.gateway, r.unanswered}, func(g string) bool { return g == "" })
	slices.Sort(gateways)
	r.leaveAll(ctx, slices.Compact(gateways))
}

func (r *runner) leaveAll(ctx context.Context, gateways []string) {
	for _, gateway := range gateways {
		if err := r.api.leave(ctx, gateway); err != nil {
			r.config.Log.Warn("the gateway was not told that the node leaves", "gateway", gateway, "err", err)
		}
	}
}

// order sorts gateways by the hash of their address with the name of the node, so that nodes spread over
// the gateways, and those of one that fails over the others (rendezvous hashing).
func order(node string, gateways []string) []string {
	weight := func(gateway string) uint64 {
		h := fnv.New64a()
		h.Write([]byte(gateway + "\x00" + node))
		sum := h.Sum64() // FNV changes few high bits for similar names; mix them
		sum ^= sum >> 33
		sum *= 0xff51afd7ed558ccd
		return sum ^ sum>>33
	}
	sorted := slices.Clone(gateways)
	slices.SortStableFunc(sorted, func(a, b string) int {
		switch x, y := weight(a), weight(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	return sorted
}

// LoadPrivateKey reads a WireGuard key from a file, or makes one and stores it there.
func LoadPrivateKey(path string) (wireguard.PrivateKey, error) {
	data, err := os.ReadFile(path)
	if err == nil {
		key, err := wireguard.ParsePrivateKey(string(data))
		if err != nil {
			return key, fmt.Errorf("%s: %w; remove the file for a new key", path, err)
		}
		return key, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return wireguard.PrivateKey{}, fmt.Errorf("WireGuard key: %w", err)
	}
	key, err := wireguard.NewPrivateKey(rand.Reader)
	if err != nil {
		return key, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return key, fmt.Errorf("WireGuard key: %w", err)
	}
	if err := os.WriteFile(path, []byte(key.Text()+"\n"), 0o600); err != nil {
		return key, fmt.Errorf("WireGuard key: %w", err)
	}
	return key, nil
}

// endpointOf returns the address of a gateway's tunnel.
func endpointOf(response enroll.Response, server netip.Addr) (netip.AddrPort, error) {
	if response.Port == 0 {
		return netip.AddrPort{}, errors.New("the gateway names no port for its tunnel")
	}
	if response.Host == "" {
		return netip.AddrPortFrom(server, response.Port), nil
	}
	address, err := netip.ParseAddr(response.Host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("the gateway names %q as the address of its tunnel", response.Host)
	}
	return netip.AddrPortFrom(address, response.Port), nil
}
