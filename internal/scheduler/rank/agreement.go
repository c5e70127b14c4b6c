package rank

import (
	"fmt"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Agreement lists the topology keys for which all replicas make counters, so that their answers can be
// merged.
type Agreement struct {
	wire.TermKeys
	// MayGrow is set for the leader, which may add topology keys.
	MayGrow bool
	// PerNode is set if each node is evaluated by itself, for one pod. inUse is set if pods on
	// other shards use a volume claim of it.
	PerNode, inUse bool
}

// appendKey appends what distinguishes classes of different agreements.
func (a *Agreement) appendKey(key []byte) []byte {
	for _, keys := range [][]string{a.Forbid, a.Prefer} {
		for _, topology := range keys {
			key = intern.AppendString(key, topology)
		}
		key = append(key, 0)
	}
	return intern.AppendBool(key, a.PerNode)
}

// missingTermKeys are topology keys for which the class needs counters but that were not agreed on.
type missingTermKeys struct{ wire.TermKeys }

// Error lists the topology keys that were not agreed on.
func (m missingTermKeys) Error() string {
	return fmt.Sprintf("running pods refer to topology keys that the query does not name: %v", m.TermKeys)
}

// agree returns the topology keys that need counters.
func (cl *Class) agree(termKeys wire.TermKeys) (wire.TermKeys, error) {
	if cl.agreed == nil {
		return termKeys, nil
	}
	if missing := termKeys.Without(cl.agreed.TermKeys); !missing.Empty() {
		if !cl.agreed.MayGrow {
			return termKeys, missingTermKeys{missing}
		}
		cl.agreed.TermKeys = cl.agreed.Union(missing)
	}
	return cl.agreed.TermKeys, nil
}
