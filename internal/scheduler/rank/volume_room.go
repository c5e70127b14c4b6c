package rank

import (
	"cmp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	toolscache "k8s.io/client-go/tools/cache"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
)

// Indexes of VolumeAttachments.
const (
	attachmentsByNode   = "k8s-1m.dev/node"
	attachmentsByVolume = "k8s-1m.dev/volume"
)

// addIndexers adds indexers to an informer, unless another scheduler of this process has done so.
func addIndexers(informer toolscache.SharedIndexInformer, indexers toolscache.Indexers) error {
	err := informer.AddIndexers(indexers)
	for name := range indexers {
		if informer.GetIndexer().GetIndexers()[name] == nil {
			return err
		}
	}
	return nil
}

func nodeOfAttachment(object any) ([]string, error) {
	if attachment, ok := object.(*storagev1.VolumeAttachment); ok {
		return []string{attachment.Spec.NodeName}, nil
	}
	return nil, nil
}

func volumeOfAttachment(object any) ([]string, error) {
	if attachment, ok := object.(*storagev1.VolumeAttachment); ok && attachment.Spec.Source.PersistentVolumeName != nil {
		return []string{*attachment.Spec.Source.PersistentVolumeName}, nil
	}
	return nil, nil
}

// uncounted is the driver of a [cache.VolumeRoom] that marks nodes whose room is not known, because a CSI driver may handle some
// in-tree volumes on them.
const uncounted = ""

// room returns the room for volumes on a node, and its free devices.
func (s *storage) room(n *cache.Node) []cache.VolumeRoom {
	room := s.volumeRoom(n)
	for driver, free := range s.devices.free(n.Info.Node().Name) {
		room = append(room, cache.VolumeRoom{Driver: devicePrefix + driver, Volumes: free})
	}
	slices.SortFunc(room, func(a, b cache.VolumeRoom) int { return cmp.Compare(a.Driver, b.Driver) })
	return room
}

// volumeRoom returns the room for volumes on a node, as NodeVolumeLimits counts it: the limit of each driver that has one, less the
// volumes of pods on the node and other attached volumes.
func (s *storage) volumeRoom(n *cache.Node) []cache.VolumeRoom {
	name := n.Info.Node().Name
	object, exists, err := s.nodes.GetByKey(name)
	if err != nil || !exists {
		return nil
	}
	csiNode, room := object.(*storagev1.CSINode), []cache.VolumeRoom(nil)
	for i := range csiNode.Spec.Drivers {
		if driver := &csiNode.Spec.Drivers[i]; driver.Allocatable != nil && driver.Allocatable.Count != nil {
			room = append(room, cache.VolumeRoom{Driver: driver.Name, Volumes: int(*driver.Allocatable.Count)})
		}
	}
	if len(room) == 0 {
		return nil
	}
	attached := attachedVolumes{storage: s, drivers: map[string]string{}}
	attached.addPods(n)
	attached.addAttachments(name)
	for _, driver := range attached.drivers {
		for i := range room {
			if room[i].Driver == driver {
				room[i].Volumes--
			}
		}
	}
	if attached.uncounted {
		room = append(room, cache.VolumeRoom{Driver: uncounted})
	}
	return room
}

// attachedVolumes are the volumes on one node.
type attachedVolumes struct {
	*storage
	// drivers has the driver of each volume. Volumes are identified by driver and handle.
	drivers   map[string]string
	uncounted bool
}

// add adds a volume.
func (a *attachedVolumes) add(driver, handle string) {
	if driver != "" && handle != "" {
		a.drivers[driver+"/"+handle] = driver
	}
}

// addPods adds the volumes of the pods on a node.
func (a *attachedVolumes) addPods(n *cache.Node) {
	for claim := range n.Info.PVCRefCounts {
		namespace, name, _ := strings.Cut(claim, "/")
		a.addClaim(namespace, name)
	}
	if n.OtherVolumes == 0 {
		return
	}
	for _, info := range n.Info.Pods {
		pod := info.GetPod()
		for i := range pod.Spec.Volumes {
			switch volume := &pod.Spec.Volumes[i]; {
			case volume.Ephemeral != nil:
				a.addClaim(pod.Namespace, pod.Name+"-"+volume.Name)
			case volume.PersistentVolumeClaim == nil && restricts(&volume.VolumeSource):
				a.uncounted = true
			}
		}
	}
}

// addClaim adds the volume of a claim, or the one that its driver will create.
func (a *attachedVolumes) addClaim(namespace, name string) {
	claim, err := a.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return
	}
	if claim.Spec.VolumeName != "" {
		if volume, err := a.volumes.Get(claim.Spec.VolumeName); err == nil {
			a.addVolume(volume)
			return
		}
	}
	class, err := a.classes.Get(storagehelpers.GetPersistentVolumeClaimClass(claim))
	switch {
	case err != nil:
	case cache.InTree.IsMigratableIntreePluginByName(class.Provisioner):
		a.uncounted = true
	default:
		a.add(class.Provisioner, "new-"+namespace+"/"+name)
	}
}

func (a *attachedVolumes) addVolume(volume *v1.PersistentVolume) {
	if source := volume.Spec.CSI; source != nil {
		a.add(source.Driver, source.VolumeHandle)
	} else if cache.InTree.IsPVMigratable(volume) {
		a.uncounted = true
	}
}

// addAttachments adds the volumes that are attached to a node.
func (a *attachedVolumes) addAttachments(node string) {
	attachments, err := a.attachments.ByIndex(attachmentsByNode, node)
	if err != nil {
		a.uncounted = true
		return
	}
	for _, object := range attachments {
		attachment := object.(*storagev1.VolumeAttachment)
		name := attachment.Spec.Source.PersistentVolumeName
		if attachment.Spec.Attacher == "" || name == nil {
			continue
		}
		if volume, err := a.volumes.Get(*name); err == nil && volume.Spec.CSI != nil {
			a.add(attachment.Spec.Attacher, volume.Spec.CSI.VolumeHandle)
		}
	}
}
