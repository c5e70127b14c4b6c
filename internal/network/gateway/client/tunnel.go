package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/enroll"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/masquerade"
	"github.com/k8s-1m/k8s-1m/internal/network/gateway/wireguard"
	"github.com/k8s-1m/k8s-1m/internal/network/netns"
)

// keepalive is the interval of keepalives in seconds: only the node knows the address of the other end,
// and so it must keep the keys alive.
const keepalive = 25

// defaultMTU is the MTU until the gateway has told its own: that of WireGuard over IPv6 in 1,500 bytes.
const defaultMTU = 1420

// tunnel is the tunnel device of a node.
type tunnel struct {
	config  Config
	device  *device.Device
	host    *netns.Namespace
	applied string // the configuration that is in effect
	routed  []netip.Prefix
	masked  bool // rules for pods are installed
}

func newTunnel(config Config, key wireguard.PrivateKey) (*tunnel, error) {
	link, err := tun.CreateTUN(config.Link, defaultMTU)
	if err != nil {
		return nil, fmt.Errorf("tunnel device %s: %w; it needs the capability NET_ADMIN and /dev/net/tun", config.Link, err)
	}
	host, err := netns.Current()
	if err != nil {
		return nil, errors.Join(err, link.Close())
	}
	verbose := device.DiscardLogf
	if config.Log.Enabled(context.Background(), slog.LevelDebug) {
		verbose = func(format string, args ...any) {
			config.Log.Debug("wireguard-go: "+fmt.Sprintf(format, args...), slog.String("link", config.Link))
		}
	}
	logger := &device.Logger{Verbosef: verbose, Errorf: func(format string, args ...any) {
		config.Log.Warn("wireguard-go: "+fmt.Sprintf(format, args...), slog.String("link", config.Link))
	}}
	d := device.NewDevice(link, conn.NewDefaultBind(), logger)
	t := &tunnel{config: config, device: d, host: host}
	if err := d.IpcSet("private_key=" + key.Hex() + "\n"); err != nil {
		return nil, errors.Join(fmt.Errorf("tunnel device %s: %w", config.Link, err), t.close())
	}
	if err := d.Up(); err != nil {
		return nil, errors.Join(fmt.Errorf("tunnel device %s: %w", config.Link, err), t.close())
	}
	if err := host.Up(config.Link); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// configure makes a gateway the other end of the tunnel, and routes into it. Nothing is changed if it is
// that already.
func (t *tunnel) configure(answer registration) error {
	response := answer.Response
	endpoint, err := endpointOf(response, answer.server)
	if err != nil {
		return err
	}
	settings := fmt.Sprintf("%v %+v", endpoint, response)
	if settings == t.applied {
		return nil
	}
	destinations, own, err := destinations(response)
	if err != nil {
		return err
	}
	if own.IsValid() && endpoint.Addr().Unmap().Is4() {
		return fmt.Errorf("the gateway masquerades, but its tunnel has the IPv4 address %v, which would be routed into itself; use an IPv6 address", endpoint.Addr())
	}
	t.applied = "" // a failure leaves it changed in part
	if err := t.setPeer(response, endpoint, destinations); err != nil {
		return err
	}
	if err := t.setLink(response, destinations, own); err != nil {
		return err
	}
	t.applied = settings
	return nil
}

// destinations returns what is routed into the tunnel, and the IPv4 address of the node in it.
func destinations(response enroll.Response) (all []netip.Prefix, own netip.Addr, err error) {
	if response.NAT64Prefix != "" {
		prefix, err := netip.ParsePrefix(response.NAT64Prefix)
		if err != nil || !prefix.Addr().Is6() || prefix.Bits() < 32 {
			return nil, own, fmt.Errorf("the gateway names %q as the prefix of NAT64", response.NAT64Prefix)
		}
		all = append(all, prefix)
	}
	if response.IPv4 != "" {
		if own, err = netip.ParseAddr(response.IPv4); err != nil || !own.Is4() {
			return nil, own, fmt.Errorf("the gateway names %q as the address in the tunnel", response.IPv4)
		}
		all = append(all, netip.MustParsePrefix("0.0.0.0/0"))
	}
	if len(all) == 0 {
		return nil, own, errors.New("the gateway neither translates nor masquerades")
	}
	return all, own, nil
}

func (t *tunnel) setPeer(response enroll.Response, endpoint netip.AddrPort, destinations []netip.Prefix) error {
	key, err := wireguard.ParsePublicKey(response.PublicKey)
	if err != nil {
		return fmt.Errorf("the gateway's key: %w", err)
	}
	settings := fmt.Sprintf("replace_peers=true\npublic_key=%s\nendpoint=%v\npersistent_keepalive_interval=%d\n", key.Hex(), endpoint, keepalive)
	for _, destination := range destinations {
		settings += fmt.Sprintf("allowed_ip=%v\n", destination)
	}
	if err := t.device.IpcSet(settings); err != nil {
		return fmt.Errorf("tunnel device %s: %w", t.config.Link, err)
	}
	return nil
}

func (t *tunnel) setLink(response enroll.Response, destinations []netip.Prefix, own netip.Addr) error {
	if response.MTU < 1280 || response.MTU > 65535 {
		return fmt.Errorf("the gateway names the MTU %d", response.MTU)
	}
	if err := t.host.SetMTU(t.config.Link, response.MTU); err != nil {
		return err
	}
	if own.IsValid() {
		if err := t.setAddress(own); err != nil {
			return err
		}
	}
	if err := t.route(destinations); err != nil {
		return err
	}
	if own.IsValid() && t.config.MasqueradePods {
		t.masked = true
		return masquerade.ApplyNode(t.config.Link)
	}
	return nil
}

// close removes the tunnel device; its addresses and routes go with it.
func (t *tunnel) close() error {
	t.device.Close()
	var err error
	if t.masked {
		err = masquerade.RemoveNode()
	}
	return errors.Join(err, t.host.Close())
}
