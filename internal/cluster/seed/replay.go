package seed

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// endpoint is a resource or a subresource of the API.
type endpoint struct {
	kind        schema.GroupVersionKind
	subresource string
	// reset is the field that a write to the endpoint cannot change, so that no writer owns it. It is
	// empty if there is none.
	reset string
}

// object is a Kubernetes object of a known type.
type object interface {
	runtime.Object
	metav1.Object
}

// write returns the object that the API server stores when a manager changes live to changed: it records in
// managedFields which fields the manager owns. For a new object, live is an empty object.
func write[T object](e endpoint, live, changed T, manager string) (T, error) {
	var none T
	reset := map[fieldpath.APIVersion]fieldpath.Filter{}
	if e.reset != "" {
		path := fieldpath.NewSet(fieldpath.MakePathOrDie(e.reset))
		reset = fieldpath.NewExcludeFilterSetMap(map[fieldpath.APIVersion]*fieldpath.Set{fieldpath.APIVersion(e.kind.GroupVersion().String()): path})
	}
	fields, err := managedfields.NewDefaultFieldManager(applyconfigurations.NewTypeConverter(scheme.Scheme),
		scheme.Scheme, scheme.Scheme, scheme.Scheme, e.kind, e.kind.GroupVersion(), e.subresource, reset)
	if err != nil {
		return none, fmt.Errorf("managed fields of a %s: %w", e.kind.Kind, err)
	}
	written, err := fields.Update(live, changed, manager)
	if err != nil {
		return none, fmt.Errorf("managed fields of a %s: %w", e.kind.Kind, err)
	}
	return written.(T), nil
}

// setTimes sets the time of all entries of managedFields, and sorts the entries as the API server does.
func setTimes(o metav1.Object, at metav1.Time) {
	entries := o.GetManagedFields()
	for i := range entries {
		entries[i].Time = &at
	}
	slices.SortFunc(entries, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Manager, b.Manager),
			cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Subresource, b.Subresource))
	})
	o.SetManagedFields(entries)
}
