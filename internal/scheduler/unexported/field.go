// Package unexported gives access to unexported fields of kube-scheduler's structs. It fails with
// an error if a Kubernetes release has other fields.
package unexported

import (
	"fmt"
	"reflect"
	"unsafe"
)

// Field makes field point to the unexported field name of a struct, which has to be addressable. It
// sets err if there is no such field of type T.
func Field[T any](fields reflect.Value, name string, field **T, err *error) {
	value := fields.FieldByName(name)
	want := reflect.TypeFor[T]()
	if !value.IsValid() || value.Type() != want {
		*err = fmt.Errorf("kube-scheduler's %v has no field %s of type %v: this build needs another release of Kubernetes", fields.Type(), name, want)
		return
	}
	*field = (*T)(unsafe.Pointer(value.UnsafeAddr()))
}
