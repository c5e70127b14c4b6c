package filter

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
)

// Provider are the rules of the lab's provider.
type Provider struct {
	conn   *nftables.Conn
	bridge *nftables.Table
	nodes  *nftables.Set
}

// InstallProvider replaces the rules of a provider in the namespace of the calling thread. With oneMAC set, a port of its bridge accepts
// only frames with the Ethernet address that Allow has given to it.
func InstallProvider(oneMAC bool) (*Provider, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	p := &Provider{conn: conn}
	ip := replace(conn, nftables.TableFamilyIPv6)
	// A router that sends a packet back to the link from which it came tells the sender to use a shorter way. Providers
	// do not, because their nodes cannot reach each other directly.
	ip.chain("no_redirects", nftables.ChainHookOutput, priorityFirst, rule(icmp6(redirect), drop()))
	if oneMAC {
		err = p.addBridge()
	}
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("install nftables rules of the provider: %w", err), conn.CloseLasting())
	}
	return p, nil
}

func (p *Provider) addBridge() (err error) {
	t := replace(p.conn, nftables.TableFamilyBridge)
	p.bridge = t.Table
	if p.nodes, err = t.set("nodes", nftables.TypeIFName, nftables.TypeEtherAddr); err != nil {
		return err
	}
	t.counter(CounterMAC)
	t.chain("one_mac", nftables.ChainHookPrerouting, priorityRaw,
		rule(in(p.nodes, false, inputLink, sourceMAC), accept()),
		rule(count(CounterMAC), drop()),
	)
	return nil
}

// OpenProvider returns the rules that InstallProvider has installed with oneMAC in the namespace of the calling thread.
func OpenProvider() (*Provider, error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	p := &Provider{conn: conn, bridge: &nftables.Table{Family: nftables.TableFamilyBridge, Name: TableName}}
	if p.nodes, err = conn.GetSetByName(p.bridge, "nodes"); err != nil {
		return nil, errors.Join(fmt.Errorf("find the provider's set of nodes: %w", err), conn.CloseLasting())
	}
	return p, nil
}

// Allow allows an Ethernet address at a port. Without oneMAC it does nothing.
func (p *Provider) Allow(port string, mac [6]byte) error {
	return p.change("add", port, mac, p.conn.SetAddElements)
}

// Forbid takes back what Allow has allowed.
func (p *Provider) Forbid(port string, mac [6]byte) error {
	return p.change("remove", port, mac, p.conn.SetDeleteElements)
}

func (p *Provider) change(verb, port string, mac [6]byte, change func(*nftables.Set, []nftables.SetElement) error) error {
	if p.nodes == nil {
		return nil
	}
	err := change(p.nodes, []nftables.SetElement{{Key: join(linkName(port), paddedMAC(mac))}})
	if err == nil {
		err = p.conn.Flush()
	}
	if err != nil {
		return fmt.Errorf("%s the Ethernet address of port %s: %w", verb, port, err)
	}
	return nil
}

// Dropped returns the number of frames with a wrong Ethernet address.
func (p *Provider) Dropped() (uint64, error) {
	if p.bridge == nil {
		return 0, nil
	}
	object, err := p.conn.GetObject(&nftables.CounterObj{Table: p.bridge, Name: CounterMAC})
	if err != nil {
		return 0, fmt.Errorf("read the provider's counter: %w", err)
	}
	counter, ok := object.(*nftables.CounterObj)
	if !ok {
		return 0, fmt.Errorf("the provider's counter is a %T", object)
	}
	return counter.Packets, nil
}

// Close closes the connection to the kernel. The rules stay.
func (p *Provider) Close() error { return p.conn.CloseLasting() }
