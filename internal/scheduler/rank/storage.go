package rank

import (
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	toolscache "k8s.io/client-go/tools/cache"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	pluginnames "k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"

	"github.com/k8s-1m/k8s-1m/internal/scheduler/cache"
	"github.com/k8s-1m/k8s-1m/internal/scheduler/unexported"
)

// storage has the listers of the objects that volumes refer to.
type storage struct {
	volumes corelisters.PersistentVolumeLister
	claims  corelisters.PersistentVolumeClaimLister
	classes storagelisters.StorageClassLister
	drivers storagelisters.CSIDriverLister
	// nodes are the CSINodes. A lister would make an error for each node without one.
	nodes, attachments toolscache.Indexer
	devices            *devices
	// scoresCapacity is true if VolumeBinding prefers nodes by the capacity of volumes.
	scoresCapacity bool
}

// WatchStorage makes the ranker keep track of the room for volumes on nodes. It must be called before the informers of the factory
// run. Without it, filters for volumes are asked about each node.
func (r *Ranker) WatchStorage(factory informers.SharedInformerFactory) error {
	if r.storage != nil {
		return nil
	}
	core, group := factory.Core().V1(), factory.Storage().V1()
	attachments := group.VolumeAttachments().Informer()
	err := addIndexers(attachments, toolscache.Indexers{attachmentsByNode: nodeOfAttachment, attachmentsByVolume: volumeOfAttachment})
	if err != nil {
		return err
	}
	r.storage = &storage{
		volumes: core.PersistentVolumes().Lister(), claims: core.PersistentVolumeClaims().Lister(), classes: group.StorageClasses().Lister(),
		drivers: group.CSIDrivers().Lister(), nodes: group.CSINodes().Informer().GetIndexer(), attachments: attachments.GetIndexer(),
		scoresCapacity: utilfeature.DefaultFeatureGate.Enabled(features.StorageCapacityScoring),
	}
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { r.NoteStorage(nil, object) },
		UpdateFunc: r.NoteStorage,
		DeleteFunc: func(object any) { r.NoteStorage(object, nil) },
	}
	if r.storage.devices, err = newDevices(factory, handler); err != nil {
		return err
	}
	r.Cluster.LimitVolumes(r.storage.room)
	for _, informer := range []toolscache.SharedIndexInformer{
		attachments, group.CSINodes().Informer(), group.StorageClasses().Informer(), core.PersistentVolumes().Informer(), core.PersistentVolumeClaims().Informer(),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	return nil
}

// NoteStorage reports that an object of the storage API was created (before is nil), changed, or deleted (after is nil). The
// handlers of the informers call it.
func (r *Ranker) NoteStorage(before, after any) {
	if unknown, ok := before.(toolscache.DeletedFinalStateUnknown); ok {
		before = unknown.Obj
	}
	// after is first, because devices.shared must not be 0 while a slice is updated.
	for i, object := range []any{after, before} {
		switch object := object.(type) {
		case *resourcev1.ResourceSlice:
			r.storage.devices.noteSlice(r.Cluster, object, int64(1-2*i))
		case *resourcev1.ResourceClaim:
			r.storage.devices.noteClaim(r.Cluster, object)
		case *storagev1.CSINode:
			r.Cluster.NoteVolumesOnNode(object.Name)
		case *storagev1.VolumeAttachment:
			r.Cluster.NoteVolumesOnNode(object.Spec.NodeName)
		case *storagev1.StorageClass:
			r.Cluster.NoteAllVolumes()
		case *v1.PersistentVolume:
			r.noteVolume(before, after, object)
		case *v1.PersistentVolumeClaim:
			if known, ok := before.(*v1.PersistentVolumeClaim); !ok || after == nil || known.Spec.VolumeName != after.(*v1.PersistentVolumeClaim).Spec.VolumeName {
				r.Cluster.NoteClaim(framework.GetNamespacedName(object.Namespace, object.Name))
			}
		}
	}
}

// noteVolume reports that a volume was created or deleted. The source of a volume does not change.
func (r *Ranker) noteVolume(before, after any, volume *v1.PersistentVolume) {
	if before != nil && after != nil {
		return
	}
	if claim := volume.Spec.ClaimRef; claim != nil {
		r.Cluster.NoteClaim(framework.GetNamespacedName(claim.Namespace, claim.Name))
	}
	attachments, err := r.storage.attachments.ByIndex(attachmentsByVolume, volume.Name)
	if err != nil {
		r.Cluster.NoteAllVolumes()
		return
	}
	for _, attachment := range attachments {
		r.Cluster.NoteVolumesOnNode(attachment.(*storagev1.VolumeAttachment).Spec.NodeName)
	}
}

// requiresDriver returns whether NodeVolumeLimits rejects nodes on which a driver is not installed.
func (s *storage) requiresDriver(driver string) bool {
	object, err := s.drivers.Get(driver)
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	required := object.Spec.PreventPodSchedulingIfMissing
	return required != nil && *required
}

// needs are what the volumes and claims of one pod require of nodes, as far as the index can represent it.
type needs struct {
	conditions
	// nodes are the names of the only nodes on which the pod may run; nil if it may run on all nodes.
	nodes sets.Set[string]
	// sure is true if sets and nodes contain all that the plugins require. The others must be asked.
	sure bool
	// scores is true if a plugin may prefer some nodes because of the volumes or claims.
	scores bool
	// perNode are conditions on labels that differ on each node. They are not in sets.
	perNode nodeSets
	// unfit is true if the pod fits on no node at present.
	unfit bool
	// handles are the volumes in conditions.volumes.
	handles sets.Set[string]
}

// restrict restricts the pod to the named nodes.
func (n *needs) restrict(names sets.Set[string]) {
	if n.nodes == nil {
		n.nodes = names
	} else {
		n.nodes = n.nodes.Intersection(names)
	}
}

// claimsOfPod are the claims of a pod as VolumeBinding has found them in PreFilter. Its Filter uses them.
type claimsOfPod struct {
	bound, unbound []*v1.PersistentVolumeClaim
	// available are the volumes of the storage classes of unbound, by class.
	available map[string][]*v1.PersistentVolume
}

// readClaims reads what VolumeBinding has written into a cycle state. The fields are unexported.
func readClaims(state fwk.CycleState) (found claimsOfPod, err error) {
	data, err := state.Read(fwk.StateKey(pluginnames.VolumeBinding))
	if err != nil {
		return found, err
	}
	var claims **volumebinding.PodVolumeClaims
	unexported.Field(reflect.ValueOf(data).Elem(), "podVolumeClaims", &claims, &err)
	if err != nil || *claims == nil {
		return found, err
	}
	fields := reflect.ValueOf(*claims).Elem()
	var bound, unbound *[]*v1.PersistentVolumeClaim
	var available *map[string][]*v1.PersistentVolume
	unexported.Field(fields, "boundClaims", &bound, &err)
	unexported.Field(fields, "unboundClaimsDelayBinding", &unbound, &err)
	unexported.Field(fields, "unboundVolumesDelayBinding", &available, &err)
	if err != nil {
		return found, err
	}
	return claimsOfPod{*bound, *unbound, *available}, nil
}

// addVolumes adds what the volumes of a pod require. claims are its claims, and asked are the plugins whose filters handle the
// pod.
func (n *needs) addVolumes(s *storage, c *cache.Cluster, pod *v1.Pod, claims claimsOfPod, asked sets.Set[string]) {
	limits := asked.Has(pluginnames.NodeVolumeLimits)
	named := sets.New[string]()
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if claim := volume.PersistentVolumeClaim; claim != nil {
			named.Insert(claim.ClaimName)
		} else if volume.Ephemeral == nil && limits && restricts(&volume.VolumeSource) {
			// NodeVolumeLimits may count the volume, depending on the node.
			n.sure = false
		}
	}
	for _, claim := range claims.bound {
		volume, err := s.volumes.Get(claim.Spec.VolumeName)
		if err != nil || cache.InTree.IsPVMigratable(volume) {
			n.sure = false
			continue
		}
		// VolumeZone ignores generic ephemeral volumes.
		n.addBound(c, volume, asked.Has(pluginnames.VolumeZone) && named.Has(claim.Name))
		if source := volume.Spec.CSI; limits && source != nil {
			n.attach(s, source.Driver, source.VolumeHandle, c.UsesClaim(claim.Namespace, claim.Name))
		}
		if asked.Has(pluginnames.VolumeRestrictions) && slices.Contains(claim.Spec.AccessModes, v1.ReadWriteOncePod) && c.UsesClaim(claim.Namespace, claim.Name) {
			n.unfit = true
		}
	}
	for _, claim := range claims.unbound {
		n.addUnbound(s, c, claim, claims.available[storagehelpers.GetPersistentVolumeClaimClass(claim)], limits)
	}
}

// addBound adds what a bound volume requires.
func (n *needs) addBound(c *cache.Cluster, volume *v1.PersistentVolume, zones bool) {
	if affinity := volume.Spec.NodeAffinity; affinity != nil && affinity.Required != nil {
		if set, ok := affinityOfVolume(volume); ok {
			n.addSet(c, set)
		} else {
			n.sure = false
		}
		if names, named := namesIn(affinity.Required, false); named {
			n.restrict(names)
		}
	}
	if set, restricted := zoneOfVolume(volume); zones && restricted {
		n.sets.add(set)
	}
}

// addSet adds a condition on labels.
func (n *needs) addSet(c *cache.Cluster, set nodeSet) {
	if slices.ContainsFunc(set.labels, c.IsPerNode) {
		n.perNode.add(set)
	} else {
		n.sets.add(set)
	}
}

// addUnbound adds what a claim requires that is bound after the pod got a node. available are the volumes of its storage
// class.
func (n *needs) addUnbound(s *storage, c *cache.Cluster, claim *v1.PersistentVolumeClaim, available []*v1.PersistentVolume, limits bool) {
	if node, selected := claim.Annotations[storagehelpers.AnnSelectedNode]; selected {
		n.restrict(sets.New(node))
	}
	static := false
	for _, volume := range available {
		owner := volume.Spec.ClaimRef
		static = static || owner == nil || owner.Name == claim.Name && owner.Namespace == claim.Namespace
	}
	if static {
		// Whether the claim can be bound to an existing volume depends on the node.
		n.sure, n.scores = false, n.scores || s.scoresCapacity
		return
	}
	class, err := s.classes.Get(storagehelpers.GetPersistentVolumeClaimClass(claim))
	if err != nil || c.UsesClaim(claim.Namespace, claim.Name) {
		// Another pod may already have selected a node for the claim.
		n.sure = false
		return
	}
	if class.Provisioner == "" || class.Provisioner == storagehelpers.NotSupportedProvisioner {
		n.unfit = true
	}
	if set, ok := topologiesOfClass(class.AllowedTopologies); !ok {
		n.sure = false
	} else if len(class.AllowedTopologies) > 0 {
		n.addSet(c, set)
	}
	if s.tracksCapacity(claim, class.Provisioner) {
		n.sure, n.scores = false, n.scores || s.scoresCapacity
	}
	if limits {
		n.attach(s, class.Provisioner, "new-"+claim.Name, false)
	}
}

// attach adds a volume that is attached to the node of the pod. A volume that another pod uses may be attached to some nodes already.
func (n *needs) attach(s *storage, driver, handle string, used bool) {
	if driver == "" || handle == "" {
		return
	}
	n.sure = n.sure && !used && !s.requiresDriver(driver) && !cache.InTree.IsMigratableIntreePluginByName(driver)
	if used {
		return
	}
	if n.handles == nil {
		n.handles = sets.New[string]()
	}
	if unique := driver + "/" + handle; !n.handles.Has(unique) {
		n.handles.Insert(unique)
		n.conditions.add(driver, 1)
	}
}

// tracksCapacity returns whether a volume that a driver creates for a claim needs free capacity that the driver
// publishes.
func (s *storage) tracksCapacity(claim *v1.PersistentVolumeClaim, driver string) bool {
	if _, requested := claim.Spec.Resources.Requests[v1.ResourceStorage]; !requested {
		return false
	}
	object, err := s.drivers.Get(driver)
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	tracked := object.Spec.StorageCapacity
	return tracked != nil && *tracked
}

// addDevices adds what the resource claims of a pod require.
func (n *needs) addDevices(d *devices, fw framework.Framework, pod *v1.Pod) error {
	n.sure = false
	n.scores = n.scores || utilfeature.DefaultFeatureGate.Enabled(features.DRANodeAllocatableResources)
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		claim, err := fw.SharedDRAManager().ResourceClaims().Get(pod.Namespace, *name)
		if err != nil {
			return ReasonClaims
		}
		n.scores = n.scores || hasAlternatives(&claim.Spec)
		n.addRequests(d, fw, claim)
		if allocation := claim.Status.Allocation; allocation != nil && allocation.NodeSelector != nil {
			if names, named := namesIn(allocation.NodeSelector, true); named {
				n.restrict(names)
			}
		}
	}
	return nil
}

// hasAlternatives returns whether a claim lists alternative requests. DynamicResources prefers nodes that have the first
// of them.
func hasAlternatives(spec *resourcev1.ResourceClaimSpec) bool {
	for i := range spec.Devices.Requests {
		if len(spec.Devices.Requests[i].FirstAvailable) > 0 {
			return true
		}
	}
	return false
}
