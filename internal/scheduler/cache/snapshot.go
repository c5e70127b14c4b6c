package cache

import (
	"reflect"

	fwk "k8s.io/kube-scheduler/framework"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/unexported"
)

// Snapshot gives access to the unexported fields of kube-scheduler's snapshot, which upstream's search and
// plugins read.
//
// Only upstream's cache can fill a snapshot through exported methods. To add one node, that cache scans
// all nodes of a zone and rebuilds all lists, and it copies each changed node. So this package writes the
// fields through reflection (ADR 6). [newSnapshot] returns an error if the Kubernetes release has other
// fields.
type Snapshot struct {
	nodes    *map[string]*framework.NodeInfo
	list     *[]fwk.NodeInfo
	affinity [3]sublist
	claims   *map[string]int
	Upstream *schedcache.Snapshot
}

// sublist is the list of the nodes that have pods with a certain type of affinity.
type sublist struct {
	list      *[]fwk.NodeInfo
	positions map[*framework.NodeInfo]int
	has       func(*framework.NodeInfo) bool
}

// newSnapshot returns access to the fields of an upstream snapshot, and empties the snapshot.
func newSnapshot(whole *schedcache.Snapshot) (s *Snapshot, err error) {
	s = &Snapshot{Upstream: whole}
	fields := reflect.ValueOf(whole).Elem()
	unexported.Field(fields, "nodeInfoMap", &s.nodes, &err)
	unexported.Field(fields, "nodeInfoList", &s.list, &err)
	unexported.Field(fields, "usedPVCRefCounts", &s.claims, &err)
	for i, sub := range []struct {
		name string
		has  func(*framework.NodeInfo) bool
	}{
		{"havePodsWithAffinityNodeInfoList", func(n *framework.NodeInfo) bool { return len(n.PodsWithAffinity) > 0 }},
		{"havePodsWithRequiredAntiAffinityNodeInfoList", func(n *framework.NodeInfo) bool { return len(n.PodsWithRequiredAntiAffinity) > 0 }},
		{"havePodsWithRequiredNonHostScopedAntiAffinityNodeInfoList", func(n *framework.NodeInfo) bool {
			return len(n.PodsWithRequiredNonHostScopedAntiAffinity) > 0
		}},
	} {
		s.affinity[i] = sublist{has: sub.has, positions: map[*framework.NodeInfo]int{}}
		unexported.Field(fields, sub.name, &s.affinity[i].list, &err)
	}
	if err != nil {
		return nil, err
	}
	*s.nodes = map[string]*framework.NodeInfo{}
	*s.claims = map[string]int{}
	return s, nil
}

// refresh adds a node to the sublists to which it belongs, and removes it from the others.
func (s *Snapshot) refresh(info *framework.NodeInfo) {
	for i := range s.affinity {
		s.affinity[i].set(info, info.Node() != nil && s.affinity[i].has(info))
	}
}

func (l *sublist) set(info *framework.NodeInfo, member bool) {
	position, ok := l.positions[info]
	switch {
	case member && !ok:
		l.positions[info] = len(*l.list)
		*l.list = append(*l.list, info)
	case !member && ok:
		last := len(*l.list) - 1
		moved := (*l.list)[last]
		(*l.list)[position] = moved
		l.positions[moved.(*framework.NodeInfo)] = position
		(*l.list)[last] = nil
		*l.list = (*l.list)[:last]
		delete(l.positions, info)
	}
}

// HideNodes calls f while the snapshot lists no nodes, so that plugins compute their state for a pod without
// reading every node. If showClaims is true, the snapshot still has the volume claims in use.
func (s *Snapshot) HideNodes(showClaims bool, f func()) {
	list, claims := *s.list, *s.claims
	var sublists [len(s.affinity)][]fwk.NodeInfo
	*s.list = nil
	if !showClaims {
		*s.claims = nil
	}
	for i := range s.affinity {
		sublists[i], *s.affinity[i].list = *s.affinity[i].list, nil
	}
	defer func() {
		*s.list, *s.claims = list, claims
		for i := range s.affinity {
			*s.affinity[i].list = sublists[i]
		}
	}()
	f()
}
