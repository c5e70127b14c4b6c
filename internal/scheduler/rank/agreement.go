package rank

import (
	"fmt"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Agreement has what all replicas must know alike of a class, so that their answers can be merged: the
// topology keys for which they make counters, and whether they evaluate each node.
type Agreement struct {
	wire.TermKeys
	// MayGrow is true in the leader, which may add topology keys.
	MayGrow bool
	// PerNode is true if the class is for one pod and each node is evaluated separately.
	PerNode bool
	// inUse are those volume claims of this pod that another pod uses, as namespace/name.
	inUse []string
}

// appendKey appends the fields by which classes with different agreements differ.
func (a *Agreement) appendKey(key []byte) []byte {
	for _, keys := range [][]string{a.Forbid, a.Prefer} {
		for _, topology := range keys {
			key = intern.AppendString(key, topology)
		}
		key = append(key, 0)
	}
	return intern.AppendBool(key, a.PerNode)
}

// missingTermKeys are topology keys for which the class needs counters, but which the query does not name.
type missingTermKeys struct{ wire.TermKeys }

// Error returns a message with the missing keys.
func (m missingTermKeys) Error() string {
	return fmt.Sprintf("running pods refer to topology keys that the query does not name: %v", m.TermKeys)
}

// agreedTermKeys returns the topology keys for which all replicas make counters, given those for which this
// class needs counters. If the agreement lacks some, it adds them or returns missingTermKeys.
func (cl *Class) agreedTermKeys(termKeys wire.TermKeys) (wire.TermKeys, error) {
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
