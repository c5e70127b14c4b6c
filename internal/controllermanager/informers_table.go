package controllermanager

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
)

// gvr returns the resources of a group and version.
func gvr(group, version string, names ...string) (list []schema.GroupVersionResource) {
	for _, name := range names {
		list = append(list, schema.GroupVersionResource{Group: group, Version: version, Resource: name})
	}
	return list
}

func join(lists ...[]schema.GroupVersionResource) (all []schema.GroupVersionResource) {
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}

func core(names ...string) []schema.GroupVersionResource { return gvr("", "v1", names...) }
func apps(names ...string) []schema.GroupVersionResource { return gvr("apps", "v1", names...) }

func storage(names ...string) []schema.GroupVersionResource {
	return gvr("storage.k8s.io", "v1", names...)
}

func certificates(names ...string) []schema.GroupVersionResource {
	return gvr("certificates.k8s.io", "v1", names...)
}

func devices(names ...string) []schema.GroupVersionResource {
	return gvr("resource.k8s.io", "v1", names...)
}

func podGroups(names ...string) []schema.GroupVersionResource {
	return gvr("scheduling.k8s.io", "v1beta1", names...)
}

// informersOf are the resources whose informers the constructor of a controller requests. The garbage collector and
// the quota controller read further resources, which they discover. TestInformersOfControllers compares the table with
// upstream's constructors.
var informersOf = map[string][]schema.GroupVersionResource{
	names.ServiceAccountTokenController: core("serviceaccounts", "secrets"),
	names.EndpointsController:           core("pods", "services", "endpoints"),
	names.EndpointSliceController: join(
		core("pods", "services", "nodes"),
		gvr("discovery.k8s.io", "v1", "endpointslices"),
	),
	names.EndpointSliceMirroringController: join(
		core("endpoints", "services"),
		gvr("discovery.k8s.io", "v1", "endpointslices"),
	),
	names.ReplicationControllerController: core("pods", "replicationcontrollers"),
	names.PodGarbageCollectorController:   core("pods", "nodes"),
	names.ResourceQuotaController: join(
		core("resourcequotas", "pods"),
		devices("deviceclasses", "resourceclaims"),
	),
	names.NamespaceController:      core("namespaces"),
	names.ServiceAccountController: core("serviceaccounts", "namespaces"),
	names.DaemonSetController:      join(apps("daemonsets", "controllerrevisions"), core("pods", "nodes")),
	names.JobController: join(
		core("pods"),
		gvr("batch", "v1", "jobs"),
		podGroups("workloads", "podgroups"),
	),
	names.DeploymentController:              join(apps("deployments", "replicasets"), core("pods")),
	names.ReplicaSetController:              join(apps("replicasets"), core("pods")),
	names.HorizontalPodAutoscalerController: join(gvr("autoscaling", "v2", "horizontalpodautoscalers"), core("pods")),
	names.DisruptionController: join(
		core("pods", "replicationcontrollers"),
		apps("replicasets", "deployments", "statefulsets"),
		gvr("policy", "v1", "poddisruptionbudgets"),
	),
	names.StatefulSetController: join(
		core("pods", "persistentvolumeclaims"),
		apps("statefulsets", "controllerrevisions"),
	),
	names.CronJobController:                            gvr("batch", "v1", "jobs", "cronjobs"),
	names.CertificateSigningRequestSigningController:   certificates("certificatesigningrequests"),
	names.CertificateSigningRequestApprovingController: certificates("certificatesigningrequests"),
	names.CertificateSigningRequestCleanerController:   certificates("certificatesigningrequests"),
	names.PodCertificateRequestCleanerController:       certificates("podcertificaterequests"),
	names.TTLController:                                core("nodes"),
	names.BootstrapSignerController:                    core("secrets", "configmaps"),
	names.TokenCleanerController:                       core("secrets"),
	names.NodeIpamController:                           core("nodes"),
	names.NodeLifecycleController: join(
		core("pods", "nodes"),
		apps("daemonsets"),
		gvr("coordination.k8s.io", "v1", "leases"),
	),
	names.TaintEvictionController: core("pods", "nodes"),
	names.DeviceTaintEvictionController: join(
		core("pods"),
		devices("resourceclaims", "resourceslices", "devicetaintrules", "deviceclasses"),
	),
	names.PersistentVolumeBinderController: join(
		core("persistentvolumes", "persistentvolumeclaims", "pods", "nodes"),
		storage("storageclasses"),
	),
	names.PersistentVolumeAttachDetachController: join(
		core("pods", "nodes", "persistentvolumeclaims", "persistentvolumes"),
		storage("csinodes", "csidrivers", "volumeattachments"),
	),
	names.PersistentVolumeExpanderController:        core("persistentvolumeclaims"),
	names.ClusterRoleAggregationController:          gvr("rbac.authorization.k8s.io", "v1", "clusterroles"),
	names.PersistentVolumeClaimProtectionController: core("persistentvolumeclaims", "pods"),
	names.PersistentVolumeProtectionController:      core("persistentvolumes"),
	names.PodGroupProtectionController:              join(podGroups("podgroups"), core("pods")),
	names.TTLAfterFinishedController:                gvr("batch", "v1", "jobs"),
	names.RootCACertificatePublisherController:      core("configmaps", "namespaces"),
	names.EphemeralVolumeController:                 core("pods", "persistentvolumeclaims"),
	names.StorageVersionGarbageCollectorController: join(
		gvr("coordination.k8s.io", "v1", "leases"),
		gvr("internal.apiserver.k8s.io", "v1alpha1", "storageversions"),
	),
	names.ResourceClaimController: join(
		core("pods"),
		podGroups("podgroups"),
		devices("resourceclaims", "resourceclaimtemplates"),
	),
	names.ResourcePoolStatusRequestController: join(
		gvr("resource.k8s.io", "v1alpha3", "resourcepoolstatusrequests"),
		devices("resourceslices", "resourceclaims", "devicetaintrules"),
	),
	names.LegacyServiceAccountTokenCleanerController: core("serviceaccounts", "secrets", "pods"),
	names.ValidatingAdmissionPolicyStatusController:  gvr("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"),
	names.VolumeAttributesClassProtectionController: join(
		core("persistentvolumeclaims", "persistentvolumes"),
		storage("volumeattributesclasses"),
	),
	names.ServiceCIDRController:            gvr("networking.k8s.io", "v1", "servicecidrs", "ipaddresses"),
	names.StorageVersionMigratorController: gvr("storagemigration.k8s.io", "v1", "storageversionmigrations"),
	names.SELinuxWarningController: join(
		core("pods", "persistentvolumeclaims", "persistentvolumes"),
		storage("csidrivers"),
	),
}
