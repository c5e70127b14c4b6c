package cache

import (
	"reflect"

	fwk "k8s.io/kube-scheduler/framework"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/unexported"
)

// Snapshot gives access to what kube-scheduler's own search and its plugins see of
// the cluster.
//
// Upstream lets a program hand in a snapshot, but only its own cache can fill one,
// and that cache scans all nodes of a zone to add one, copies each node that has
// changed, and makes all lists anew for one node more. So the fields are reached
// from here (ADR 6); [newSnapshot] says so if a release has others.
type Snapshot struct {
	nodes    *map[string]*framework.NodeInfo
	list     *[]fwk.NodeInfo
	affinity [3]sublist
	claims   *map[string]int
	Upstream *schedcache.Snapshot
}

// sublist is those nodes that have a certain kind of pod.
type sublist struct {
	list      *[]fwk.NodeInfo
	positions map[*framework.NodeInfo]int
	has       func(*framework.NodeInfo) bool
}

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

// refresh puts a node into those sublists where it belongs.
func (s *Snapshot) refresh(info *framework.NodeInfo) {
	for i := range s.affinity {
		s.affinity[i].set(info, info.Node() != nil && s.affinity[i].has(info))
	}
}

func (l *sublist) set(info *framework.NodeInfo, member bool) {
	position, is := l.positions[info]
	switch {
	case member && !is:
		l.positions[info] = len(*l.list)
		*l.list = append(*l.list, info)
	case !member && is:
		last := len(*l.list) - 1
		moved := (*l.list)[last]
		(*l.list)[position] = moved
		l.positions[moved.(*framework.NodeInfo)] = position
		(*l.list)[last] = nil
		*l.list = (*l.list)[:last]
		delete(l.positions, info)
	}
}

// hidden runs f while the snapshot seems to have no nodes. Plugins then prepare
// what they know of the pod without looking at every node for it. Which claims are in
// use they may see.
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
