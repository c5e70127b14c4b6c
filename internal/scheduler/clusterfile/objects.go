// Package clusterfile reads what a scheduler sees of a cluster from files: Lists of `kubectl get -o json|yaml`,
// snapshots of etcd and mem_etcd, and snapshots of k1m. [Load] recognises the format, and [Read] reads a running
// cluster.
//
// Files are not trusted. Each reader has limits, and errors name the file, what is wrong, and what to do.
package clusterfile

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Objects are the objects of a cluster that a scheduler reads.
type Objects struct {
	byKind map[string]map[string]stored
	// Ignored counts the objects of other kinds, by kind.
	Ignored map[string]int
}

// stored is an object, and the name of the source that it was read from.
type stored struct {
	object runtime.Object
	source string
}

// New returns an empty set of objects.
func New() *Objects {
	return &Objects{byKind: map[string]map[string]stored{}, Ignored: map[string]int{}}
}

// Add adds an object that was read from a source. Objects of kinds that no scheduler reads are only counted. It
// returns an error if the object has no name, or if another object has its name.
func (o *Objects) Add(object runtime.Object, source string) error {
	k := kindOf(object)
	if k == nil {
		o.Ignored[ignoredName(object)]++
		return nil
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return fmt.Errorf("%s: reading a %s: %w", source, k.name, err)
	}
	if accessor.GetName() == "" {
		return fmt.Errorf("%s: a %s has no name; set metadata.name", source, k.name)
	}
	if k.namespaced && accessor.GetNamespace() == "" {
		accessor.SetNamespace(metav1.NamespaceDefault)
	}
	trim(accessor)
	all := o.byKind[k.name]
	if all == nil {
		all = map[string]stored{}
		o.byKind[k.name] = all
	}
	key := keyOf(accessor)
	if first, exists := all[key]; exists {
		if sameVersion(first.object, object) {
			return nil
		}
		return fmt.Errorf("%s: %s %s is also in %s; remove one of the two", source, k.name, key, first.source)
	}
	all[key] = stored{object, source}
	return nil
}

// sameVersion reports whether two objects are the same version of one object, as in two exports of one cluster.
func sameVersion(a, b runtime.Object) bool {
	first, err := meta.Accessor(a)
	if err != nil {
		return false
	}
	second, err := meta.Accessor(b)
	return err == nil && first.GetUID() != "" && first.GetUID() == second.GetUID() && first.GetResourceVersion() == second.GetResourceVersion()
}

// trim removes what takes memory and what no plugin reads.
func trim(object metav1.Object) {
	object.SetManagedFields(nil)
	if annotations := object.GetAnnotations(); annotations[v1.LastAppliedConfigAnnotation] != "" {
		delete(annotations, v1.LastAppliedConfigAnnotation)
		object.SetAnnotations(annotations)
	}
}

// keyOf returns namespace/name, or the name of an object without a namespace.
func keyOf(object metav1.Object) string {
	if object.GetNamespace() == "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}

// ignoredName returns the kind of an object, for messages.
func ignoredName(object runtime.Object) string {
	if name := object.GetObjectKind().GroupVersionKind().Kind; name != "" {
		return name
	}
	t := reflect.TypeOf(object)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Name()
}

// Each calls each for all objects, in a fixed order: by kind (classes and nodes before pods), then by name.
func (o *Objects) Each(each func(runtime.Object)) {
	for i := range kinds {
		all := o.byKind[kinds[i].name]
		for _, key := range slices.Sorted(maps.Keys(all)) {
			each(all[key].object)
		}
	}
}

// ofKind returns the objects of a type, sorted by namespace and name.
func ofKind[T runtime.Object](o *Objects, name string) []T {
	all := o.byKind[name]
	list := make([]T, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[key].object.(T))
	}
	return list
}

// Nodes returns the nodes, sorted by name.
func (o *Objects) Nodes() []*v1.Node { return ofKind[*v1.Node](o, "Node") }

// Pods returns the pods, sorted by namespace and name.
func (o *Objects) Pods() []*v1.Pod { return ofKind[*v1.Pod](o, "Pod") }

// PriorityClasses returns the priority classes, sorted by name.
func (o *Objects) PriorityClasses() []*schedulingv1.PriorityClass {
	return ofKind[*schedulingv1.PriorityClass](o, "PriorityClass")
}

// Pod returns the pod with this namespace and name; nil if there is none.
func (o *Objects) Pod(namespace, name string) *v1.Pod {
	pod, _ := o.byKind["Pod"][namespace+"/"+name].object.(*v1.Pod)
	return pod
}

// RemovePod removes a pod.
func (o *Objects) RemovePod(namespace, name string) { delete(o.byKind["Pod"], namespace+"/"+name) }

// Complete adds what a cluster always has, but files may lack: the namespaces of the pods. It returns an error if
// there are no nodes.
func (o *Objects) Complete() (notes []string, err error) {
	if len(o.byKind["Node"]) == 0 {
		return nil, fmt.Errorf("the cluster has no nodes; export them too, for example with `kubectl get %s -A -o json`", Resources())
	}
	if len(o.byKind["Namespace"]) == 0 {
		notes = append(notes, "the cluster has no namespaces: namespace selectors of affinity terms see namespaces without labels")
	}
	for _, pod := range o.Pods() {
		if o.byKind["Namespace"][pod.Namespace].object == nil {
			ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace, Labels: map[string]string{v1.LabelMetadataName: pod.Namespace}}}
			if err := o.Add(ns, "pods"); err != nil {
				return nil, err
			}
		}
	}
	if len(o.Ignored) > 0 {
		var names []string
		for _, name := range slices.Sorted(maps.Keys(o.Ignored)) {
			names = append(names, fmt.Sprintf("%d %s", o.Ignored[name], name))
		}
		notes = append(notes, "ignored, because no scheduler reads them: "+strings.Join(names, ", "))
	}
	return notes, nil
}
