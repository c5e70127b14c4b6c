// Package masquerade has the nftables rules with which the kernel masquerades IPv4 of a gateway or a node.
// Each set of rules is a table of its own, which is replaced as a whole.
package masquerade

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Gateway describes the rules of a gateway.
type Gateway struct {
	// Link is the TUN device.
	Link string
	// Sources are masqueraded when they leave by another link than Link.
	Sources []netip.Prefix
	// Nodes is the range of addresses in the tunnel, to which the limits apply; invalid without
	// masquerading for nodes.
	Nodes netip.Prefix
	// Denied destinations are dropped.
	Denied []netip.Prefix
	// Connections is the most connections of a node at a time, and NewPerSecond its rate of new ones.
	Connections, NewPerSecond int
}

const (
	gatewayTable = "network-gateway"
	nodeTable    = "network-gateway-node"

	sourceOffset, destinationOffset = 12, 16 // in the IPv4 header
	register                        = 1
	maxNodes                        = 65536 // elements of the sets for limits
)

// Apply installs the rules of a gateway in place of former ones.
func (g *Gateway) Apply() error {
	return replace(gatewayTable, func(c *nftables.Conn, table *nftables.Table) error {
		postrouting := c.AddChain(&nftables.Chain{
			Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		for _, source := range g.Sources {
			c.AddRule(&nftables.Rule{Table: table, Chain: postrouting, Exprs: join(
				inPrefix(sourceOffset, source), link(expr.MetaKeyOIFNAME, expr.CmpOpNeq, g.Link), []expr.Any{&expr.Masq{}},
			)})
		}
		if !g.Nodes.IsValid() {
			return nil
		}
		return g.limits(c, table)
	})
}

// limits adds the rules for forwarded packets of nodes.
func (g *Gateway) limits(c *nftables.Conn, table *nftables.Table) error {
	forward := c.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	rates := &nftables.Set{Table: table, Name: "rates", KeyType: nftables.TypeIPAddr, Dynamic: true, HasTimeout: true, Timeout: time.Minute, Size: maxNodes}
	connections := &nftables.Set{Table: table, Name: "connections", KeyType: nftables.TypeIPAddr, Dynamic: true, Size: maxNodes}
	for _, set := range []*nftables.Set{rates, connections} {
		if err := c.AddSet(set, nil); err != nil {
			return err
		}
	}
	fromNode := join(link(expr.MetaKeyIIFNAME, expr.CmpOpEq, g.Link), inPrefix(sourceOffset, g.Nodes))
	add := func(exprs ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: join(append(exprs, drop())...)})
	}
	for _, denied := range g.Denied {
		add(fromNode, inPrefix(destinationOffset, denied))
	}
	// Nodes reach each other by IPv6, and nobody opens connections to them.
	add(fromNode, link(expr.MetaKeyOIFNAME, expr.CmpOpEq, g.Link))
	add(inPrefix(destinationOffset, g.Nodes), link(expr.MetaKeyOIFNAME, expr.CmpOpEq, g.Link), newConnection())
	add(fromNode, newConnection(), meter(rates, unix.NFT_DYNSET_OP_UPDATE, &expr.Limit{
		Type: expr.LimitTypePkts, Rate: uint64(g.NewPerSecond), Unit: expr.LimitTimeSecond, Burst: uint32(g.NewPerSecond), Over: true,
	}))
	add(fromNode, newConnection(), meter(connections, unix.NFT_DYNSET_OP_ADD, &expr.Connlimit{
		Count: uint32(g.Connections), Flags: expr.NFT_CONNLIMIT_F_INV,
	}))
	return nil
}

// Remove removes the rules of a gateway. Connections that are masqueraded go on.
func Remove() error { return replace(gatewayTable, nil) }

// ApplyNode masquerades what a node sends into the tunnel, so that its pods use its address there.
func ApplyNode(tunnel string) error {
	return replace(nodeTable, func(c *nftables.Conn, table *nftables.Table) error {
		postrouting := c.AddChain(&nftables.Chain{
			Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: postrouting, Exprs: join(
			link(expr.MetaKeyOIFNAME, expr.CmpOpEq, tunnel), []expr.Any{&expr.Masq{}},
		)})
		return nil
	})
}

// RemoveNode removes the rules of a node.
func RemoveNode() error { return replace(nodeTable, nil) }

// replace makes a table anew, or removes it if build is nil, in one transaction.
func replace(name string, build func(*nftables.Conn, *nftables.Table) error) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w; the gateway needs the capability NET_ADMIN", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: name}
	c.AddTable(table) // so that the removal finds one
	c.DelTable(table)
	if build != nil {
		c.AddTable(table)
		if err := build(c, table); err != nil {
			return fmt.Errorf("nftables table %s: %w", name, err)
		}
	}
	if err := c.Flush(); err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("nftables table %s: %w; the kernel needs nf_tables with masquerade, connlimit and limit", name, err)
		}
		return fmt.Errorf("nftables table %s: %w", name, err)
	}
	return nil
}

func join(parts ...[]expr.Any) (all []expr.Any) {
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}

// inPrefix matches an address of the IPv4 header.
func inPrefix(offset uint32, prefix netip.Prefix) []expr.Any {
	address := prefix.Masked().Addr().As4()
	var mask [4]byte
	binary.BigEndian.PutUint32(mask[:], uint32(0xffffffff)<<(32-prefix.Bits()))
	return []expr.Any{
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: mask[:], Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: address[:]},
	}
}

func link(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: key, Register: register}, &expr.Cmp{Op: op, Register: register, Data: padded}}
}

// newConnection matches the first packet of a connection.
func newConnection() []expr.Any {
	state := make([]byte, 4)
	binary.NativeEndian.PutUint32(state, expr.CtStateBitNEW)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: register},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: state, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: make([]byte, 4)},
	}
}

// meter evaluates a limit for each source address.
func meter(set *nftables.Set, operation uint32, limit expr.Any) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: sourceOffset, Len: 4},
		&expr.Dynset{SrcRegKey: register, SetName: set.Name, SetID: set.ID, Operation: operation, Exprs: []expr.Any{limit}},
	}
}

func drop() []expr.Any { return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}} }
