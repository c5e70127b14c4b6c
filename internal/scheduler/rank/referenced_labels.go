package rank

import (
	"time"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/index"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/replica/wire"
)

// referencedLabels numbers the versions of [cache.Names.Visible], so that a replica sends them only when they have
// changed: one pod may refer to 55,000 labels.
type referencedLabels struct {
	// index and version identify the current version in the cluster. The ranker's cluster replaces its index when it
	// forgets names.
	index   *index.Index
	version int
	// number is the number of that version.
	number int64
}

// reportLabels adds to an answer the pod labels to which selectors refer, unless the leader knows this version of them.
func (r *Ranker) reportLabels(a *wire.Answer, query *wire.Query) {
	names, last := &r.Cluster.Names, &r.referenced
	if last.index != r.Cluster.Index || last.version != names.Version {
		last.index, last.version = r.Cluster.Index, names.Version
		// Start from the time, so that a restarted replica does not reuse numbers.
		last.number = max(last.number+1, time.Now().UnixNano())
	}
	a.LabelVersions = map[string]int64{r.Replica: last.number}
	switch {
	case query.KnownLabels[r.Replica] == last.number:
	case len(names.Visible) > wire.MaxReferencedLabels:
		a.AllLabelsReferenced = true
	default:
		a.ReferencedLabels = names.Visible.UnsortedList()
	}
}
