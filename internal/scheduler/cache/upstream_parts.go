package cache

import (
	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
)

// upstreamParts has the methods of kube-scheduler's cache that do not concern nodes and the pods on them: pod
// groups, and binds through the API dispatcher. It lists them one by one: a method that a Kubernetes release
// adds to the interface must not pass unnoticed to upstream's cache, which has no nodes.
type upstreamParts struct{ upstream schedcache.Cache }

var _ schedcache.Cache = &Cache{}

// BindPod sends a bind through the API dispatcher.
func (u upstreamParts) BindPod(binding *v1.Binding) (<-chan error, error) {
	return u.upstream.BindPod(binding)
}

// PodGroupStates returns a lister of the states of pod groups.
func (u upstreamParts) PodGroupStates() fwk.PodGroupStateLister {
	return u.upstream.PodGroupStates()
}

// PodGroups returns a lister of pod groups.
func (u upstreamParts) PodGroups() fwk.PodGroupLister {
	return u.upstream.PodGroups()
}

// CompositePodGroupStates returns a lister of the states of composite pod groups.
func (u upstreamParts) CompositePodGroupStates() fwk.CompositePodGroupStateLister {
	return u.upstream.CompositePodGroupStates()
}

// CompositePodGroups returns a lister of composite pod groups.
func (u upstreamParts) CompositePodGroups() fwk.CompositePodGroupLister {
	return u.upstream.CompositePodGroups()
}

// AddPodGroupMember adds a pod to the state of its pod group.
func (u upstreamParts) AddPodGroupMember(pod *v1.Pod) {
	u.upstream.AddPodGroupMember(pod)
}

// UpdatePodGroupMember replaces a pod in the state of its pod group.
func (u upstreamParts) UpdatePodGroupMember(logger klog.Logger, oldPod, newPod *v1.Pod) {
	u.upstream.UpdatePodGroupMember(logger, oldPod, newPod)
}

// RemovePodGroupMember removes a pod from the state of its pod group.
func (u upstreamParts) RemovePodGroupMember(pod *v1.Pod) {
	u.upstream.RemovePodGroupMember(pod)
}

// AddPodGroup adds a pod group.
func (u upstreamParts) AddPodGroup(group *schedulingv1beta1.PodGroup) {
	u.upstream.AddPodGroup(group)
}

// UpdatePodGroup replaces a pod group.
func (u upstreamParts) UpdatePodGroup(logger klog.Logger, before, after *schedulingv1beta1.PodGroup) {
	u.upstream.UpdatePodGroup(logger, before, after)
}

// RemovePodGroup removes a pod group.
func (u upstreamParts) RemovePodGroup(logger klog.Logger, group *schedulingv1beta1.PodGroup) {
	u.upstream.RemovePodGroup(logger, group)
}

// AddCompositePodGroup adds a composite pod group.
func (u upstreamParts) AddCompositePodGroup(logger klog.Logger, group *schedulingv1alpha3.CompositePodGroup) {
	u.upstream.AddCompositePodGroup(logger, group)
}

// UpdateCompositePodGroup replaces a composite pod group.
func (u upstreamParts) UpdateCompositePodGroup(logger klog.Logger, before, after *schedulingv1alpha3.CompositePodGroup) {
	u.upstream.UpdateCompositePodGroup(logger, before, after)
}

// RemoveCompositePodGroup removes a composite pod group.
func (u upstreamParts) RemoveCompositePodGroup(logger klog.Logger, group *schedulingv1alpha3.CompositePodGroup) {
	u.upstream.RemoveCompositePodGroup(logger, group)
}

// BuildHierarchySnapshotFromPod returns the hierarchy of a pod's groups.
func (u upstreamParts) BuildHierarchySnapshotFromPod(pod *v1.Pod) (fwk.PodGroupManager, error) {
	return u.upstream.BuildHierarchySnapshotFromPod(pod)
}

// GetRootKeyForGroup returns the key of the root of a group.
func (u upstreamParts) GetRootKeyForGroup(key fwk.EntityKey) (fwk.EntityKey, bool, error) {
	return u.upstream.GetRootKeyForGroup(key)
}
