package rank

import (
	"fmt"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// Agreement lists the demands for which all shards make counters, so that their answers can be
// merged.
type Agreement struct {
	wire.Demands
	// MayGrow is set for the leader, which may add demands.
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

// missingDemands are demands of a class that were not agreed on.
type missingDemands struct{ wire.Demands }

// Error lists the topology keys that were not agreed on.
func (m missingDemands) Error() string {
	return fmt.Sprintf("running pods refer to topology keys that the query does not name: %v", m.Demands)
}

// agree returns the demands to make counters for.
func (cl *Class) agree(demands wire.Demands) (wire.Demands, error) {
	if cl.agreed == nil {
		return demands, nil
	}
	if missing := demands.Without(cl.agreed.Demands); !missing.Empty() {
		if !cl.agreed.MayGrow {
			return demands, missingDemands{missing}
		}
		cl.agreed.Demands = cl.agreed.And(missing)
	}
	return cl.agreed.Demands, nil
}
