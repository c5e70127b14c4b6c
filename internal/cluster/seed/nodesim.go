package seed

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// kubeletVersion and kubeletPort are those of the kubelet that node-sim simulates.
	kubeletVersion = "v1.37.1"
	kubeletPort    = 10250
	// migratedPlugins are the volume plugins that CSI drivers replace, as kubelet lists them in an annotation of CSINodes.
	migratedPlugins = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder," +
		"kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"
)

var csiNodeWrites = endpoint{kind: storagev1.SchemeGroupVersion.WithKind("CSINode")}

// reportedNode returns a copy of a node after node-sim has reported its complete status (report_all in
// crates/node-sim/src/sim/requests.rs).
func reportedNode(node *corev1.Node, ip string, reported metav1.Time) *corev1.Node {
	node = node.DeepCopy()
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: reported, LastTransitionTime: reported,
		}
	}
	node.Status.Conditions = []corev1.NodeCondition{
		condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
		condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"),
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}, {Type: corev1.NodeHostName}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
	node.Status.NodeInfo = corev1.NodeSystemInfo{
		KernelVersion: "simulated", OSImage: "node-sim", ContainerRuntimeVersion: "node-sim://1", KubeletVersion: kubeletVersion,
		OperatingSystem: "linux", Architecture: "amd64",
	}
	identifyReported(node)
	return node
}

// identifyReported sets what node-sim reports of a node and what contains the name of the node.
func identifyReported(node *corev1.Node) {
	machine := nodeSimManager + "-" + node.Name
	info := &node.Status.NodeInfo
	info.MachineID, info.SystemUUID, info.BootID = machine, machine, machine
	node.Status.Addresses[1].Address = node.Name
}

// createdCSINode returns what the API server stores for the CSINode that node-sim creates.
func createdCSINode(node *corev1.Node, uid types.UID, created metav1.Time) (*storagev1.CSINode, error) {
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name: node.Name, OwnerReferences: ownedBy(node), Annotations: map[string]string{corev1.MigratedPluginsAnnotationKey: migratedPlugins},
	}}
	csiNode.SetGroupVersionKind(csiNodeWrites.kind)
	csiNode, err := write(csiNodeWrites, &storagev1.CSINode{}, csiNode, nodeSimManager)
	if err != nil {
		return nil, err
	}
	csiNode.UID, csiNode.CreationTimestamp = uid, created
	setTimes(csiNode, created)
	return csiNode, nil
}
