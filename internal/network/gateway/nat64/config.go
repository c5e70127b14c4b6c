package nat64

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/k8s-1m/k8s-1m/internal/network/gateway/prefix64"
)

// Config is the configuration of a Translator. Zero durations and counts mean the defaults of
// Default.
type Config struct {
	Prefix prefix64.Prefix
	// Pool contains the IPv4 addresses that the IPv4 side sees.
	Pool []netip.Prefix
	// FirstPort and LastPort bound the ports of each pool address that bindings use.
	FirstPort, LastPort uint16
	// MTU6 is the largest IPv6 packet, in bytes, that the path to a node carries.
	MTU6 int
	// MaxSessions bounds the sessions of all nodes. Beyond it, new ones are refused.
	MaxSessions int
	// MaxFragmented bounds the fragmented packets that are tracked at a time, of all nodes. A node may
	// have a sixteenth of them.
	MaxFragmented int
	// Limits holds for each node.
	Limits Limits
	// Timeouts of idle sessions.
	Timeouts Timeouts
	// Denied are IPv4 destinations that nodes may not reach.
	Denied []netip.Prefix
	// Seed makes the choice of ports unpredictable.
	Seed [32]byte
}

// Limits are the limits of one node.
type Limits struct {
	// Sessions is the most sessions at a time.
	Sessions int
	// Ports is the most ports of the pool at a time, over all protocols.
	Ports int
	// NewPerSecond is the sustained rate of new sessions; a burst of as many is permitted.
	NewPerSecond int
}

// Timeouts are the idle times after which a session ends (RFC 6146, section 4).
type Timeouts struct {
	UDP, TCPEstablished, TCPTransitory, ICMP, Fragment time.Duration
}

// Default returns the configuration for a prefix and a pool with the timers of RFC 6146.
func Default(prefix prefix64.Prefix, pool ...netip.Prefix) Config {
	return Config{
		Prefix: prefix, Pool: pool,
		FirstPort: 1024, LastPort: 65535,
		MTU6: 1420, MaxSessions: 1 << 20, MaxFragmented: 8192,
		Limits: Limits{Sessions: 8192, Ports: 4096, NewPerSecond: 1000},
		Timeouts: Timeouts{
			UDP: 5 * time.Minute, TCPEstablished: 2*time.Hour + 4*time.Minute,
			TCPTransitory: 4 * time.Minute, ICMP: time.Minute, Fragment: 2 * time.Second,
		},
		Denied: NeverReachable(),
	}
}

// NeverReachable returns IPv4 addresses that are local to a machine or a link, among them the metadata
// servers of cloud providers, or no unicast addresses. No configuration can permit them.
func NeverReachable() []netip.Prefix {
	return prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")
}

// NotGlobal returns IPv4 addresses that are private or reserved. The well-known prefix may not
// represent them (RFC 6052, section 3.1), and they are usually networks of the provider.
func NotGlobal() []netip.Prefix {
	return prefixes("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
		"192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24")
}

func prefixes(texts ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		parsed[i] = netip.MustParsePrefix(text)
	}
	return parsed
}

// maxPool bounds the addresses of the pool: 64 Ki addresses have 4 Gi ports, more than sessions fit
// into memory.
const maxPool = 1 << 16

// Validate returns the first value with which there is no translator.
func (c *Config) Validate() error {
	if c.Prefix == (prefix64.Prefix{}) {
		return fmt.Errorf("NAT64: no prefix")
	}
	total := 0
	for _, prefix := range c.Pool {
		if !prefix.Addr().Is4() || prefix.Masked() != prefix {
			return fmt.Errorf("NAT64 pool %v: not an IPv4 prefix such as 192.0.2.0/28", prefix)
		}
		if prefix.Bits() < 16 {
			return fmt.Errorf("NAT64 pool %v: larger than a /16", prefix)
		}
		total += 1 << (32 - prefix.Bits())
	}
	switch {
	case total == 0:
		return fmt.Errorf("NAT64: the pool has no addresses")
	case total > maxPool:
		return fmt.Errorf("NAT64: the pool has %d addresses; at most %d", total, maxPool)
	case c.FirstPort == 0 || c.LastPort < c.FirstPort:
		return fmt.Errorf("NAT64: ports %d to %d are not a range", c.FirstPort, c.LastPort)
	case c.MTU6 < 1280:
		return fmt.Errorf("NAT64: MTU %d; IPv6 needs at least 1280 bytes", c.MTU6)
	case c.MaxSessions <= 0 || c.MaxFragmented <= 0:
		return fmt.Errorf("NAT64: the limits of sessions and of fragmented packets must be positive")
	case c.Limits.Sessions <= 0 || c.Limits.Ports <= 0 || c.Limits.NewPerSecond <= 0:
		return fmt.Errorf("NAT64: the limits of a node must be positive")
	}
	return c.Timeouts.validate()
}

func (t Timeouts) validate() error {
	for _, timeout := range []time.Duration{t.UDP, t.TCPEstablished, t.TCPTransitory, t.ICMP, t.Fragment} {
		if timeout < time.Second {
			return fmt.Errorf("NAT64: timeout %v is shorter than a second", timeout)
		}
	}
	return nil
}
