package unexported

import (
	"fmt"
	"reflect"
	"unsafe"
)

// reach makes field point to an unexported field of a struct.
func Field[T any](fields reflect.Value, name string, field **T, err *error) {
	value := fields.FieldByName(name)
	want := reflect.TypeFor[T]()
	if !value.IsValid() || value.Type() != want {
		*err = fmt.Errorf("kube-scheduler's %v has no field %s of type %v: this build needs another release of Kubernetes", fields.Type(), name, want)
		return
	}
	*field = (*T)(unsafe.Pointer(value.UnsafeAddr()))
}
