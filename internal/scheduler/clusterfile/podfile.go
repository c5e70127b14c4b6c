package clusterfile

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/utils/ptr"
)

// MaxPods is the largest number of pods of one manifest, with those of its workloads.
const MaxPods = 100_000

// workloads are the kinds whose pods are made from a template, with their API groups.
var workloads = map[string]string{"Deployment": "apps", "ReplicaSet": "apps", "StatefulSet": "apps", "Job": "batch", "ReplicationController": ""}

// isWorkload returns whether a kind is a workload. Kinds of other groups, such as Volcano's Job, have the same names.
func isWorkload(kind schema.GroupVersionKind) bool {
	group, found := workloads[kind.Kind]
	return found && group == kind.Group
}

// Pods are pods that are to be scheduled, in the order of their manifest.
type Pods struct {
	List []*v1.Pod
	// Notes are what a user should know about them.
	Notes []string
}

// LoadPods reads a manifest of pods, and of workloads (Deployment, ReplicaSet, StatefulSet, Job, ReplicationController),
// whose pods it makes. Other objects of the manifest that schedulers read, such as claims, are added to the cluster.
// Unknown fields are errors, as for `kubectl create`. Defaults and priorities are set as by the API server.
func LoadPods(path string, stdin io.Reader, cluster *Objects) (*Pods, error) {
	file, name, closeFile, err := open(path, stdin)
	if err != nil {
		return nil, err
	}
	defer closeFile()
	m := &manifest{source: name, cluster: cluster, ignored: map[string]int{}}
	t := &textReader{
		source: name, decoder: strict, each: m.add,
		wanted: func(kind schema.GroupVersionKind) bool { return isRead(kind) || isWorkload(kind) },
		skipped: func(kind schema.GroupVersionKind) {
			m.ignored[shorten(kind.Kind)]++
		},
	}
	if err := t.read(bufio.NewReaderSize(file, bufferBytes)); err != nil {
		return nil, err
	}
	if len(m.pods) == 0 {
		return nil, fmt.Errorf("%s: it has no pods; supported kinds are Pod, %s", name, strings.Join(slices.Sorted(maps.Keys(workloads)), ", "))
	}
	for _, pod := range m.pods {
		if err := Admit(pod, cluster); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return &Pods{List: m.pods, Notes: m.notes()}, nil
}

// manifest collects the pods of a manifest.
type manifest struct {
	source  string
	cluster *Objects
	pods    []*v1.Pod
	names   sets.Set[string]
	ignored map[string]int
}

func (m *manifest) notes() []string {
	var kinds []string
	for kind, count := range m.ignored {
		kinds = append(kinds, fmt.Sprintf("%d %s", count, kind))
	}
	if len(kinds) == 0 {
		return nil
	}
	slices.Sort(kinds)
	return []string{fmt.Sprintf("%s: ignored: %s", m.source, strings.Join(kinds, ", "))}
}

// add adds an object of the manifest.
func (m *manifest) add(object runtime.Object) error {
	switch o := object.(type) {
	case *v1.Pod:
		return m.addPod(o)
	case *appsv1.Deployment:
		// The controller of Deployments makes a ReplicaSet, which is the owner of the pods.
		set := &appsv1.ReplicaSet{ObjectMeta: o.ObjectMeta, Spec: appsv1.ReplicaSetSpec{Replicas: o.Spec.Replicas, Selector: o.Spec.Selector, Template: o.Spec.Template}}
		return m.fromReplicaSet(set)
	case *appsv1.ReplicaSet:
		return m.fromReplicaSet(o)
	case *v1.ReplicationController:
		if o.Spec.Template == nil {
			return fmt.Errorf("%s: ReplicationController %q has no template", m.source, shorten(o.Name))
		}
		owner, err := m.own(o, "ReplicationController")
		if err != nil {
			return err
		}
		return m.fromTemplate(owner, o.Spec.Template, ptr.Deref(o.Spec.Replicas, 1))
	case *appsv1.StatefulSet:
		return m.fromStatefulSet(o)
	case *batchv1.Job:
		if ptr.Deref(o.Spec.Suspend, false) {
			m.ignored["suspended Job"]++
			return nil
		}
		parallelism := ptr.Deref(o.Spec.Parallelism, 1)
		return m.fromTemplate(owner{name: o.Name, namespace: o.Namespace}, &o.Spec.Template, min(parallelism, ptr.Deref(o.Spec.Completions, parallelism)))
	}
	return m.cluster.Add(object, m.source)
}

func (m *manifest) fromReplicaSet(set *appsv1.ReplicaSet) error {
	owner, err := m.own(set, "ReplicaSet")
	if err != nil {
		return err
	}
	return m.fromTemplate(owner, &set.Spec.Template, ptr.Deref(set.Spec.Replicas, 1))
}

// owner is the workload that pods belong to. reference is nil if schedulers do not read it.
type owner struct {
	name, namespace string
	reference       *metav1.OwnerReference
}

// own adds a workload to the cluster, unless the cluster has it: the default topology spread constraints of pods depend on
// the selector of their owner.
func (m *manifest) own(workload interface {
	runtime.Object
	metav1.Object
}, kind string) (owner, error) {
	if workload.GetNamespace() == "" {
		workload.SetNamespace(metav1.NamespaceDefault)
	}
	if known, ok := m.cluster.byKind[kind][keyOf(workload)].object.(metav1.Object); ok {
		workload.SetUID(known.GetUID())
	} else {
		if workload.GetUID() == "" {
			workload.SetUID(types.UID(kind + "/" + keyOf(workload)))
		}
		if err := m.cluster.Add(workload, m.source); err != nil {
			return owner{}, err
		}
	}
	reference := metav1.NewControllerRef(workload, schema.FromAPIVersionAndKind(kindByName[kind].apiVersion, kind))
	return owner{workload.GetName(), workload.GetNamespace(), reference}, nil
}

// addPod adds a pod.
func (m *manifest) addPod(pod *v1.Pod) error {
	if pod.Name == "" && pod.GenerateName != "" {
		pod.Name = fmt.Sprintf("%s%d", pod.GenerateName, len(m.pods))
	}
	if pod.Name == "" {
		return fmt.Errorf("%s: a pod has no name; set metadata.name", m.source)
	}
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	if m.names == nil {
		m.names = sets.New[string]()
	}
	if key := keyOf(pod); m.names.Has(key) {
		return fmt.Errorf("%s: pod %s is in it twice; use another name", m.source, key)
	} else if m.names.Insert(key); len(m.pods) >= MaxPods {
		return fmt.Errorf("%s: it has more than %d pods; use several files", m.source, MaxPods)
	}
	trim(pod)
	m.pods = append(m.pods, pod)
	return nil
}

// fromTemplate makes the pods of a workload.
func (m *manifest) fromTemplate(owner owner, template *v1.PodTemplateSpec, replicas int32) error {
	for i := range replicas {
		if err := m.addPod(podOf(owner, template, i)); err != nil {
			return err
		}
	}
	return nil
}

// podOf returns a pod of a workload.
func podOf(owner owner, template *v1.PodTemplateSpec, number int32) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Name, pod.Namespace = fmt.Sprintf("%s-%d", owner.name, number), owner.namespace
	if owner.reference != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*owner.reference}
	}
	return pod
}

// fromStatefulSet makes the pods of a StatefulSet, and those of their claims that do not exist.
func (m *manifest) fromStatefulSet(set *appsv1.StatefulSet) error {
	owner, err := m.own(set, "StatefulSet")
	if err != nil {
		return err
	}
	for i := range ptr.Deref(set.Spec.Replicas, 1) {
		pod := podOf(owner, &set.Spec.Template, i)
		for j := range set.Spec.VolumeClaimTemplates {
			template := &set.Spec.VolumeClaimTemplates[j]
			claim := template.DeepCopy()
			claim.Name, claim.Namespace = template.Name+"-"+pod.Name, pod.Namespace
			corev1defaults.SetObjectDefaults_PersistentVolumeClaim(claim)
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: template.Name, VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
			}})
			if m.cluster.byKind["PersistentVolumeClaim"][keyOf(claim)].object != nil {
				continue
			}
			if err := m.cluster.Add(claim, m.source); err != nil {
				return err
			}
		}
		if err := m.addPod(pod); err != nil {
			return err
		}
	}
	return nil
}

// Admit sets the fields of a new pod that the API server sets and that schedulers read: defaults and the priority. It
// removes the node and the status, as if the pod had just been created.
func Admit(pod *v1.Pod, cluster *Objects) error {
	corev1defaults.SetObjectDefaults_Pod(pod)
	Unbind(pod)
	return setPriority(pod, cluster)
}

// Unbind makes a pod one that was not scheduled.
func Unbind(pod *v1.Pod) {
	pod.Spec.NodeName, pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = "", nil, nil
	pod.Status = v1.PodStatus{Phase: v1.PodPending, ResourceClaimStatuses: pod.Status.ResourceClaimStatuses}
}

// systemPriorities are the priority classes that each API server has.
var systemPriorities = map[string]int32{"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}

// setPriority sets the priority of a pod from its class, or from the default class.
func setPriority(pod *v1.Pod, cluster *Objects) error {
	if priority, system := systemPriorities[pod.Spec.PriorityClassName]; system {
		pod.Spec.Priority = ptr.To(priority)
		return nil
	}
	for _, class := range cluster.PriorityClasses() {
		if class.Name == pod.Spec.PriorityClassName || pod.Spec.PriorityClassName == "" && pod.Spec.Priority == nil && class.GlobalDefault {
			pod.Spec.PriorityClassName, pod.Spec.Priority = class.Name, ptr.To(class.Value)
			if class.PreemptionPolicy != nil {
				pod.Spec.PreemptionPolicy = ptr.To(*class.PreemptionPolicy)
			}
			return nil
		}
	}
	if pod.Spec.PriorityClassName != "" {
		return fmt.Errorf("pod %s has the priority class %q, which the cluster does not have; add the PriorityClass to the cluster", keyOf(pod), shorten(pod.Spec.PriorityClassName))
	}
	if pod.Spec.Priority == nil {
		pod.Spec.Priority = ptr.To[int32](0)
	}
	return nil
}
