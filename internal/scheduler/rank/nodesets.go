package rank

import (
	"encoding/binary"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	volumehelpers "k8s.io/cloud-provider/volume/helpers"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	fwk "k8s.io/kube-scheduler/framework"
	corehelper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumezone"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/intern"
)

// nodeSet is a condition on the labels of nodes, from a volume or a storage class of a pod. Pods with equal node sets
// share a class, so a nodeSet has no other data of these objects.
type nodeSet struct {
	// key identifies the condition. labels are the keys of all node labels on which it depends.
	key    string
	labels []string
	admits func(labels map[string]string) bool
	// refusal is the status of nodes that the condition excludes.
	refusal *fwk.Status
}

// conditions are what the volumes of a pod require of nodes. Pods with equal conditions may share a class.
type conditions struct {
	// sets are conditions on the labels of nodes.
	sets nodeSets
	// volumes are the volumes that are attached to the node, and the devices that are allocated, by driver, sorted.
	volumes []cache.VolumeRoom
}

// add adds a number of volumes or devices of a driver.
func (c *conditions) add(driver string, number int) {
	position, exists := slices.BinarySearchFunc(c.volumes, driver, func(room cache.VolumeRoom, driver string) int { return strings.Compare(room.Driver, driver) })
	if !exists {
		c.volumes = slices.Insert(c.volumes, position, cache.VolumeRoom{Driver: driver})
	}
	c.volumes[position].Volumes += number
}

// appendKey appends a key that is equal for pods with equal conditions. It appends nothing if there is no condition.
func (c *conditions) appendKey(key []byte) []byte {
	if len(c.sets)+len(c.volumes) == 0 {
		return key
	}
	for i := range c.sets {
		key = intern.AppendString(key, c.sets[i].key)
	}
	key = append(key, 0)
	for _, room := range c.volumes {
		key = binary.AppendUvarint(intern.AppendString(key, room.Driver), uint64(room.Volumes))
	}
	return append(key, 0)
}

// exceeds returns whether the volumes or devices exceed the room on a node.
func (c *conditions) exceeds(room []cache.VolumeRoom) bool {
	return slices.ContainsFunc(c.volumes, func(need cache.VolumeRoom) bool {
		i := slices.IndexFunc(room, func(r cache.VolumeRoom) bool { return r.Driver == need.Driver })
		if i < 0 {
			return strings.HasPrefix(need.Driver, devicePrefix)
		}
		return room[i].Volumes < need.Volumes
	})
}

// nodeSets are the conditions of a pod, each once and sorted by key.
type nodeSets []nodeSet

// add adds a condition unless the pod already has it.
func (s *nodeSets) add(set nodeSet) {
	position, exists := slices.BinarySearchFunc(*s, set, func(a, b nodeSet) int { return strings.Compare(a.key, b.key) })
	if !exists {
		*s = slices.Insert(*s, position, set)
	}
}

// labels returns the keys of all node labels on which the conditions depend.
func (s nodeSets) labels() (keys []string) {
	for i := range s {
		keys = append(keys, s[i].labels...)
	}
	return keys
}

// refuse returns the status with which a condition excludes a node; nil if none does.
func (s nodeSets) refuse(labels map[string]string) *fwk.Status {
	for i := range s {
		if !s[i].admits(labels) {
			return s[i].refusal
		}
	}
	return nil
}

// affinityOfVolume returns the condition of the node affinity of a volume. It returns false if the condition depends on more
// than labels that are part of node shapes.
func affinityOfVolume(volume *v1.PersistentVolume) (nodeSet, bool) {
	required := volume.Spec.NodeAffinity.Required
	terms := termsOf(&v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required})
	selector := nodeaffinity.NewLazyErrorNodeSelector(required)
	return nodeSet{
		key:    string(intern.AppendMessage([]byte{'a'}, required)),
		labels: labelKeys(terms),
		admits: func(labels map[string]string) bool {
			matches, err := selector.Match(&v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}})
			return matches && err == nil
		},
		refusal: fwk.NewStatus(fwk.UnschedulableAndUnresolvable, string(volumebinding.ErrReasonNodeConflict)).WithPlugin(pluginnames.VolumeBinding),
	}, !nameNodes(terms)
}

// zoneLabels are the labels of volumes and nodes that VolumeZone compares (volumezone/volume_zone.go). A node may have
// the present key in place of a former one.
var zoneLabels = []struct{ key, present string }{
	{v1.LabelFailureDomainBetaZone, v1.LabelTopologyZone},
	{v1.LabelFailureDomainBetaRegion, v1.LabelTopologyRegion},
	{v1.LabelTopologyZone, v1.LabelTopologyZone},
	{v1.LabelTopologyRegion, v1.LabelTopologyRegion},
}

// zoneOfVolume returns the condition of VolumeZone for a volume; false if there is none.
func zoneOfVolume(volume *v1.PersistentVolume) (nodeSet, bool) {
	set := nodeSet{refusal: fwk.NewStatus(fwk.UnschedulableAndUnresolvable, volumezone.ErrReasonConflict).WithPlugin(pluginnames.VolumeZone)}
	allowed := make([]sets.Set[string], len(zoneLabels))
	key := []byte{'z'}
	for i, label := range zoneLabels {
		set.labels = append(set.labels, label.key)
		values, err := volumehelpers.LabelZonesToSet(volume.Labels[label.key])
		if err != nil || values.Len() == 0 {
			key = append(key, 0)
			continue
		}
		allowed[i] = sets.Set[string](values)
		for _, value := range sets.List(allowed[i]) {
			key = intern.AppendString(key, value)
		}
		key = append(key, 0)
	}
	set.key = string(key)
	set.admits = func(labels map[string]string) bool { return inZones(labels, allowed) }
	return set, slices.ContainsFunc(allowed, func(values sets.Set[string]) bool { return values != nil })
}

// inZones returns whether a node with the given labels has one of the allowed values of each of zoneLabels. A node
// without any of these labels is in all zones.
func inZones(labels map[string]string, allowed []sets.Set[string]) bool {
	if !hasZoneLabel(labels) {
		return true
	}
	for i, values := range allowed {
		if values == nil {
			continue
		}
		value, has := labels[zoneLabels[i].key]
		if !has {
			value, has = labels[zoneLabels[i].present]
		}
		if !has || !values.Has(value) {
			return false
		}
	}
	return true
}

// hasZoneLabel returns whether a node has one of zoneLabels.
func hasZoneLabel(labels map[string]string) bool {
	for _, label := range zoneLabels {
		if _, has := labels[label.key]; has {
			return true
		}
	}
	return false
}

// topologiesOfClass returns the condition of the topologies in which a storage class creates volumes. It returns false
// if it depends on the hostname.
func topologiesOfClass(terms []v1.TopologySelectorTerm) (nodeSet, bool) {
	set := nodeSet{
		admits: func(nodeLabels map[string]string) bool {
			return corehelper.MatchTopologySelectorTerms(terms, labels.Set(nodeLabels))
		},
		refusal: fwk.NewStatus(fwk.UnschedulableAndUnresolvable, string(volumebinding.ErrReasonBindConflict)).WithPlugin(pluginnames.VolumeBinding),
	}
	key := []byte{'t'}
	for i := range terms {
		key = intern.AppendMessage(key, &terms[i])
		for j := range terms[i].MatchLabelExpressions {
			set.labels = append(set.labels, terms[i].MatchLabelExpressions[j].Key)
		}
	}
	set.key = string(key)
	return set, !slices.Contains(set.labels, v1.LabelHostname)
}
