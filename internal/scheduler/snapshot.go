package scheduler

import (
	"fmt"
	"reflect"
	"unsafe"

	fwk "k8s.io/kube-scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// snapshot gives access to what kube-scheduler's own search and its plugins see of
// the cluster.
//
// Upstream lets a program hand in a snapshot, but only its own cache can fill one,
// and that cache scans all nodes of a zone to add one, copies each node that has
// changed, and makes all lists anew for one node more. So the fields are reached
// from here (ADR 6); [newSnapshot] says so if a release has others.
type snapshot struct {
	nodes    *map[string]*framework.NodeInfo
	list     *[]fwk.NodeInfo
	affinity [3]sublist
	claims   *map[string]int
	whole    *upstream.Snapshot
}

// sublist is those nodes that have a certain kind of pod.
type sublist struct {
	list      *[]fwk.NodeInfo
	positions map[*framework.NodeInfo]int
	has       func(*framework.NodeInfo) bool
}

func newSnapshot(whole *upstream.Snapshot) (s *snapshot, err error) {
	s = &snapshot{whole: whole}
	fields := reflect.ValueOf(whole).Elem()
	reach(fields, "nodeInfoMap", &s.nodes, &err)
	reach(fields, "nodeInfoList", &s.list, &err)
	reach(fields, "usedPVCRefCounts", &s.claims, &err)
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
		reach(fields, sub.name, &s.affinity[i].list, &err)
	}
	if err != nil {
		return nil, err
	}
	*s.nodes = map[string]*framework.NodeInfo{}
	*s.claims = map[string]int{}
	return s, nil
}

// reach makes field point to an unexported field of a struct.
func reach[T any](fields reflect.Value, name string, field **T, err *error) {
	value := fields.FieldByName(name)
	want := reflect.TypeFor[T]()
	if !value.IsValid() || value.Type() != want {
		*err = fmt.Errorf("kube-scheduler's %v has no field %s of type %v: this build needs another release of Kubernetes", fields.Type(), name, want)
		return
	}
	*field = (*T)(unsafe.Pointer(value.UnsafeAddr()))
}

// refresh puts a node into those sublists where it belongs.
func (s *snapshot) refresh(info *framework.NodeInfo) {
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
func (s *snapshot) hidden(showClaims bool, f func()) {
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
