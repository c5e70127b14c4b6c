package rank

import (
	"fmt"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// agreement is which demands all shards make counters for, so that theirs are the same.
type Agreement struct {
	wire.Demands
	// open says that others can be added: this is whoever asks the shards.
	MayGrow bool
	// walk says that each node is looked at by itself, for one pod, and inUse that pods
	// elsewhere use what it claims.
	PerNode, inUse bool
}

// appendKey appends what tells classes apart that were made by different agreements.
func (a *Agreement) appendKey(key []byte) []byte {
	for _, keys := range [][]string{a.Forbid, a.Prefer} {
		for _, topology := range keys {
			key = intern.AppendString(key, topology)
		}
		key = append(key, 0)
	}
	return intern.AppendBool(key, a.PerNode)
}

// missingDemands are those that a class has and that were not agreed on.
type missingDemands struct{ wire.Demands }

func (m missingDemands) Error() string {
	return fmt.Sprintf("pods that are there refer to topology keys that were not asked for: %v", m.Demands)
}

// agree says which demands there are to be counters for.
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
