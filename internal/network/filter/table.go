package filter

import (
	"fmt"
	"math"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// TableName is the name of the tables that this package makes.
const TableName = "k1m_network"

// batch is the number of elements of a set in one message.
const batch = 200

// table is a table under construction. Its changes are sent by the connection, in one transaction.
type table struct {
	conn *nftables.Conn
	*nftables.Table
	chains []chain
}

// chain is a chain with the number of its rules.
type chain struct {
	*nftables.Chain
	rules int
}

// replace begins the replacement of a table. The kernel does not pass a packet between the old and the new one.
func replace(conn *nftables.Conn, family nftables.TableFamily) *table {
	t := &nftables.Table{Family: family, Name: TableName}
	// A table that does not exist cannot be deleted.
	conn.AddTable(t)
	conn.DelTable(t)
	return &table{conn: conn, Table: conn.AddTable(t)}
}

// remove removes a table, if it exists.
func remove(conn *nftables.Conn, family nftables.TableFamily) {
	t := &nftables.Table{Family: family, Name: TableName}
	conn.AddTable(t)
	conn.DelTable(t)
}

// set adds a set whose keys are the concatenation of types.
func (t *table) set(name string, types ...nftables.SetDatatype) (*nftables.Set, error) {
	key := types[0]
	if len(types) > 1 { // in a concatenation, the length of each type is padded
		var err error
		if key, err = nftables.ConcatSetType(types...); err != nil {
			return nil, err
		}
	}
	s := &nftables.Set{Table: t.Table, Name: name, KeyType: key, Concatenation: len(types) > 1}
	if key == nftables.TypeIFName {
		s.KeyByteOrder = binaryutil.NativeEndian // otherwise nft cannot show the names
	}
	if err := t.conn.AddSet(s, nil); err != nil {
		return nil, fmt.Errorf("set %s: %w", name, err)
	}
	return s, nil
}

// counter adds a named counter.
func (t *table) counter(name string) {
	t.conn.AddObj(&nftables.CounterObj{Table: t.Table, Name: name})
}

// chain adds a chain that accepts what no rule drops.
func (t *table) chain(name string, hook *nftables.ChainHook, priority int32, rules ...[]expr.Any) {
	c := t.conn.AddChain(&nftables.Chain{
		Table: t.Table, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRef(nftables.ChainPriority(priority)),
	})
	for _, r := range rules {
		t.conn.AddRule(&nftables.Rule{Table: t.Table, Chain: c, Exprs: r})
	}
	t.chains = append(t.chains, chain{c, len(rules)})
}

// fill replaces the elements of a set.
func fill(conn *nftables.Conn, set *nftables.Set, keys [][]byte) error {
	conn.FlushSet(set)
	for len(keys) > 0 {
		now := keys[:min(len(keys), batch)]
		keys = keys[len(now):]
		elements := make([]nftables.SetElement, len(now))
		for i, key := range now {
			elements[i].Key = key
		}
		if err := conn.SetAddElements(set, elements); err != nil {
			return fmt.Errorf("elements of set %s: %w", set.Name, err)
		}
	}
	return nil
}

// Priorities of chains.
const (
	priorityRaw    = -300 // before connection tracking
	priorityFilter = -10  // before the chains of kube-proxy and of network policies
	priorityFirst  = math.MinInt32 / 2
)
