// Package unexported gives access to unexported fields of kube-scheduler's structs. It fails with
// an error if a Kubernetes release has other fields.
package unexported

import (
	"fmt"
	"reflect"
	"unsafe"
)

// Field makes field point to the unexported field with a name. fields is the struct, which must be
// addressable. It sets err if the struct has no such field of type T.
func Field[T any](fields reflect.Value, name string, field **T, err *error) {
	value := fields.FieldByName(name)
	want := reflect.TypeFor[T]()
	if !value.IsValid() || value.Type() != want {
		*err = fmt.Errorf("kube-scheduler's %v has no field %s of type %v: build with the Kubernetes release in go.mod", fields.Type(), name, want)
		return
	}
	*field = (*T)(unsafe.Pointer(value.UnsafeAddr()))
}
