package simulate

import (
	"maps"
	"slices"
	"strings"
)

// nodeUsage is what the pods of a node request. CPU is in thousandths of a core, memory in bytes.
type nodeUsage struct {
	zone                   string
	requested, allocatable map[string]int64
}

// Usage is how much of a resource is requested. CPU is in thousandths of a core; memory and storage are in bytes.
type Usage struct {
	Resource    string `json:"resource"`
	Allocatable int64  `json:"allocatable"`
	Before      int64  `json:"requestedBefore"`
	After       int64  `json:"requestedAfter"`
}

// ZoneResult is the result in a zone.
type ZoneResult struct {
	Zone      string  `json:"zone"`
	Nodes     int     `json:"nodes"`
	Placed    int     `json:"placed"`
	Resources []Usage `json:"resources"`
}

// NodeResult is the result on a node that got pods or lost some.
type NodeResult struct {
	Node      string  `json:"node"`
	Zone      string  `json:"zone,omitempty"`
	Placed    int     `json:"placed"`
	Evicted   int     `json:"evicted"`
	Resources []Usage `json:"resources"`
}

// sums adds up usages by resource.
type sums map[string]*Usage

func (s sums) add(before, after *nodeUsage) {
	for name, amount := range after.allocatable {
		s.of(name).Allocatable += amount
	}
	for name, amount := range before.requested {
		s.of(name).Before += amount
	}
	for name, amount := range after.requested {
		s.of(name).After += amount
	}
}

func (s sums) of(name string) *Usage {
	if s[name] == nil {
		s[name] = &Usage{Resource: name}
	}
	return s[name]
}

// list returns the usages of the resources that nodes have or pods request.
func (s sums) list() []Usage {
	used := map[string]bool{}
	for name, usage := range s {
		if usage.Allocatable != 0 || usage.Before != 0 || usage.After != 0 {
			used[name] = true
		}
	}
	list := []Usage{}
	for _, name := range names(used) {
		list = append(list, *s[name])
	}
	return list
}

// summarize adds the results by node, by zone and of the whole cluster.
func (r *Report) summarize(before, after map[string]*nodeUsage) {
	placed, evicted := map[string]int{}, map[string]int{}
	for i := range r.Pods {
		if r.Pods[i].State == Placed {
			placed[r.Pods[i].Node]++
		}
	}
	for _, preemption := range r.Preemptions {
		evicted[preemption.Node] += len(preemption.Victims)
	}
	total, byZone, zones := sums{}, map[string]sums{}, map[string]*ZoneResult{}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		zone := after[name].zone
		if zones[zone] == nil {
			zones[zone], byZone[zone] = &ZoneResult{Zone: zone}, sums{}
		}
		zones[zone].Nodes++
		zones[zone].Placed += placed[name]
		total.add(before[name], after[name])
		byZone[zone].add(before[name], after[name])
		if placed[name]+evicted[name] > 0 {
			own := sums{}
			own.add(before[name], after[name])
			r.Nodes = append(r.Nodes, NodeResult{name, zone, placed[name], evicted[name], own.list()})
		}
	}
	r.Resources = total.list()
	for _, zone := range slices.SortedFunc(maps.Keys(zones), strings.Compare) {
		zones[zone].Resources = byZone[zone].list()
		r.Zones = append(r.Zones, *zones[zone])
	}
}
